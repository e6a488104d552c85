package envtest

import (
	"testing"

	"github.com/walrelay/walrelay/internal/testenv"
)

// Proxy starts a proxy in front of upstream, a host and port, for this test.
func Proxy(tb testing.TB, upstream string) *testenv.Proxy {
	tb.Helper()
	p, err := Env(tb).Proxy(upstream)
	if err != nil {
		tb.Fatalf("start a proxy: %v", err)
	}
	return p
}

// NATSCluster starts a cluster of n nats-servers for this test, each a process
// of its own.
func NATSCluster(tb testing.TB, n int, cfg testenv.NATSConfig) []*testenv.NATS {
	tb.Helper()
	servers, err := Env(tb).StartNATSCluster(tb.Context(), n, cfg)
	if err != nil {
		tb.Fatalf("start a cluster of nats-servers: %v", err)
	}
	return servers
}
