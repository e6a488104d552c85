package publish_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func awaitServer(t *testing.T, conn *publish.Conn, port int) {
	t.Helper()
	envtest.Eventually(t, 20*time.Second, func() error {
		if st := conn.Status(); !st.Connected || !strings.HasSuffix(st.Server, fmt.Sprintf(":%d", port)) {
			return fmt.Errorf("connected: %v, to %q (%s), want port %d", st.Connected, st.Server, st.LastError, port)
		}
		return nil
	})
}

// I6: of several servers the one that is there is used, and one that comes back
// is found without a restart.
func TestA59OfSeveralServersTheOneThatIsThereIsUsed(t *testing.T) {
	t.Parallel()
	one, two := envtest.NATS(t, testenv.NATSConfig{}), envtest.NATS(t, testenv.NATSConfig{})
	dead, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	check(t, dead.Close())
	check(t, two.Stop(t.Context()))
	conn := openConn(t, "nats://"+dead.Addr().String()+","+one.URL()+","+two.URL())
	awaitServer(t, conn, one.Port())
	check(t, one.Kill(t.Context()))
	envtest.Eventually(t, 20*time.Second, func() error {
		if st := conn.Status(); st.Connected || st.LastError == "" {
			return fmt.Errorf("connected: %v (%q), want a reason", st.Connected, st.LastError)
		}
		return nil
	})
	check(t, two.Start(t.Context()))
	awaitServer(t, conn, two.Port())
	check(t, two.Kill(t.Context()))
	check(t, one.Start(t.Context()))
	awaitServer(t, conn, one.Port())
}

// I6: servers that were never listed are known from the cluster, so that the
// listed one can go for good.
func TestA59ServersThatTheClusterNamesReplaceTheListedOne(t *testing.T) {
	t.Parallel()
	servers := envtest.NATSCluster(t, 3, testenv.NATSConfig{})
	conn := openConn(t, servers[0].URL())
	awaitServer(t, conn, servers[0].Port())
	check(t, servers[0].Kill(t.Context()))
	envtest.Eventually(t, 20*time.Second, func() error {
		if st := conn.Status(); !st.Connected || strings.HasSuffix(st.Server, fmt.Sprintf(":%d", servers[0].Port())) {
			return fmt.Errorf("connected: %v, to %q (%s), want another server", st.Connected, st.Server, st.LastError)
		}
		return nil
	})
}
