package libpq_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/libpq"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// pair starts a primary and its standby.
func pair(t *testing.T) (primary, standby *testenv.Postgres) {
	t.Helper()
	first := envtest.Postgres(t, testenv.PGConfig{})
	exec(t, connect(t, first.URL("postgres")), "SELECT pg_create_physical_replication_slot('standby', true)")
	if err := first.Stop(t.Context(), testenv.Fast); err != nil {
		t.Fatal(err)
	}
	standby = envtest.Postgres(t, testenv.PGConfig{
		Version: first.Version(), DataFrom: first.DataDir(), Standby: true,
		Settings: map[string]string{
			"primary_conninfo":  fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", first.Port()),
			"primary_slot_name": "standby", "hot_standby": "on",
		},
	})
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return first, standby
}

// A14: of several hosts the primary is taken, on both connections alike, also
// where the first one is a standby, is not there, or says nothing.
func TestA14OfSeveralHostsBothConnectionsTakeThePrimary(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	closed := listener(t)
	_ = closed.Close()
	silent := listener(t) // the kernel takes the connection; nobody answers
	address := func(l net.Listener) string { return l.Addr().String() }
	for _, first := range []struct{ name, addr string }{
		{"standby", standby.Addr()},
		{"nobody", address(closed)},
		{"silence", address(silent)},
		{"name that does not exist", "no-such-host.invalid:5432"},
	} {
		for _, attrs := range []string{"", "&target_session_attrs=primary", "&target_session_attrs=read-write"} {
			t.Run(first.name+attrs, func(t *testing.T) {
				t.Parallel()
				cfg, err := libpq.Parse(fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable&connect_timeout=1%s", first.addr, primary.Addr(), attrs))
				if err != nil {
					t.Fatal(err)
				}
				// As a relay does: its sessions are not read-only by default.
				cfg.RuntimeParams["default_transaction_read_only"] = "off"
				conn, err := pgx.ConnectConfig(t.Context(), cfg)
				if err != nil {
					t.Fatalf("SQL connection: %v", libpq.Explain(err))
				}
				defer conn.Close(t.Context()) //nolint:errcheck // it has done its work
				repl, err := slot.Connect(t.Context(), slot.Config{Postgres: &cfg.Config})
				if err != nil {
					t.Fatalf("replication connection: %v", libpq.Explain(err))
				}
				defer repl.Close()
				for kind, pid := range map[string]uint32{"SQL": conn.PgConn().PID(), "replication": repl.Server().BackendPID} {
					var there bool
					err := connect(t, primary.URL("postgres")).QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", int(pid)).Scan(&there)
					if err != nil || !there {
						t.Errorf("the %s connection is not on the primary (%v)", kind, err)
					}
				}
			})
		}
	}
}

// I10: where no host will do, each is named with its reason.
func TestA14AFailureNamesEachHostAndItsReason(t *testing.T) {
	t.Parallel()
	_, standby := pair(t)
	closed := listener(t)
	_ = closed.Close()
	conninfo := fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable", standby.Addr(), closed.Addr())
	for kind, dial := range dials(t.Context(), conninfo, nil) {
		_, err := dial()
		if err == nil {
			t.Fatalf("%s connection to a standby and nobody: no error", kind)
		}
		for _, part := range []string{standby.Addr(), "server is in standby mode", closed.Addr().String(), "connection refused"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s connection: error %q does not name %q", kind, err, part)
			}
		}
	}
}

// One host that says nothing has its own time, not that of all.
func TestEachHostHasItsOwnTime(t *testing.T) {
	t.Parallel()
	cfg, err := libpq.Parse("host=a,b")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.ConnectTimeout != 20*time.Second {
		t.Errorf("ConnectTimeout = %s, want 20s", cfg.ConnectTimeout)
	}
}

func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
