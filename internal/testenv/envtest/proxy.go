package envtest

import (
	"testing"

	"github.com/walrelay/walrelay/internal/testenv"
)

// Proxy starts a proxy in front of upstream, a host and port, for this test.
func Proxy(t testing.TB, upstream string) *testenv.Proxy {
	t.Helper()
	p, err := Env(t).Proxy(upstream)
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	return p
}

// NATSCluster starts a cluster of n nats-servers for this test, each a process
// of its own.
func NATSCluster(t testing.TB, n int, cfg testenv.NATSConfig) []*testenv.NATS {
	t.Helper()
	servers, err := Env(t).StartNATSCluster(t.Context(), n, cfg)
	if err != nil {
		t.Fatalf("start a cluster of nats-servers: %v", err)
	}
	return servers
}
