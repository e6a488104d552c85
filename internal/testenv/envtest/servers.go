package envtest

import (
	"testing"

	"github.com/walrelay/walrelay/internal/testenv"
)

// Env gives an environment with a folder and servers of its own, closed when
// the test ends. The helper process and prepared clusters are shared by all
// tests of the process.
func Env(t testing.TB) *testenv.Env {
	t.Helper()
	root, err := sharedEnv()
	if err != nil {
		t.Fatalf("make an environment: %v", err)
	}
	env, err := root.Split()
	if err != nil {
		t.Fatalf("make an environment: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Errorf("close the environment: %v", err)
		}
	})
	return env
}

// Postgres starts a cluster for this test alone, one that may be stopped and
// killed.
func Postgres(t testing.TB, cfg testenv.PGConfig) *testenv.Postgres {
	t.Helper()
	p, err := Env(t).StartPostgres(t.Context(), cfg)
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	return p
}

// NATS starts a nats-server for this test as a process of its own, one that may
// be stopped and killed.
func NATS(t testing.TB, cfg testenv.NATSConfig) *testenv.NATS {
	t.Helper()
	n, err := Env(t).StartNATS(t.Context(), cfg)
	if err != nil {
		t.Fatalf("start nats-server: %v", err)
	}
	return n
}

// EmbeddedNATS starts a nats-server for this test within this process. At most
// one configuration may be given; none is the default one.
func EmbeddedNATS(t testing.TB, cfg ...testenv.NATSConfig) *testenv.EmbeddedNATS {
	t.Helper()
	var c testenv.NATSConfig
	if len(cfg) > 0 {
		c = cfg[0]
	}
	n, err := Env(t).StartEmbeddedNATS(c)
	if err != nil {
		t.Fatalf("start nats-server: %v", err)
	}
	t.Cleanup(n.Close) // before the folder goes
	return n
}
