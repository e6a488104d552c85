package envtest

import (
	"testing"

	"github.com/walrelay/walrelay/internal/testenv"
)

// Env gives an environment with a folder and servers of its own, closed when
// the test ends. The helper process and prepared clusters are shared by all
// tests of the process.
func Env(tb testing.TB) *testenv.Env {
	tb.Helper()
	root, err := sharedEnv()
	if err != nil {
		tb.Fatalf("make an environment: %v", err)
	}
	env, err := root.Split()
	if err != nil {
		tb.Fatalf("make an environment: %v", err)
	}
	tb.Cleanup(func() {
		if err := env.Close(); err != nil {
			tb.Errorf("close the environment: %v", err)
		}
	})
	return env
}

// Postgres starts a cluster for this test alone, one that may be stopped and
// killed.
func Postgres(tb testing.TB, cfg testenv.PGConfig) *testenv.Postgres {
	tb.Helper()
	p, err := Env(tb).StartPostgres(tb.Context(), cfg)
	if err != nil {
		tb.Fatalf("start PostgreSQL: %v", err)
	}
	return p
}

// Standby makes a standby of a server for this test, which restarts the server.
func Standby(tb testing.TB, primary *testenv.Postgres, cfg testenv.StandbyConfig) *testenv.Postgres {
	tb.Helper()
	p, err := Env(tb).StartStandby(tb.Context(), primary, cfg)
	if err != nil {
		tb.Fatalf("start a standby: %v", err)
	}
	return p
}

// NATS starts a nats-server for this test as a process of its own, one that may
// be stopped and killed.
func NATS(tb testing.TB, cfg testenv.NATSConfig) *testenv.NATS {
	tb.Helper()
	n, err := Env(tb).StartNATS(tb.Context(), cfg)
	if err != nil {
		tb.Fatalf("start nats-server: %v", err)
	}
	return n
}

// EmbeddedNATS starts a nats-server for this test within this process. At most
// one configuration may be given; none is the default one.
func EmbeddedNATS(tb testing.TB, cfg ...testenv.NATSConfig) *testenv.EmbeddedNATS {
	tb.Helper()
	var c testenv.NATSConfig
	if len(cfg) > 0 {
		c = cfg[0]
	}
	n, err := Env(tb).StartEmbeddedNATS(c)
	if err != nil {
		tb.Fatalf("start nats-server: %v", err)
	}
	tb.Cleanup(n.Close) // before the folder goes
	return n
}

// PgBouncer starts a pooler before a cluster for this test and gives its host
// and port.
func PgBouncer(tb testing.TB, cfg testenv.PgBouncerConfig) string {
	tb.Helper()
	addr, err := Env(tb).StartPgBouncer(tb.Context(), cfg)
	if err != nil {
		tb.Fatalf("start pgbouncer: %v", err)
	}
	return addr
}
