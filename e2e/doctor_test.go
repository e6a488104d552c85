package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

// everything is what the catalogues of a cluster say, one line an object.
const everything = `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
	SELECT format('slot %s', s) AS line FROM pg_replication_slots s
	UNION ALL SELECT format('relation %s', c.*) FROM pg_class c WHERE relkind <> 't' AND relnamespace::regnamespace::text !~ '^pg_'
	UNION ALL SELECT format('role %s', r.*) FROM pg_roles r
	UNION ALL SELECT format('member %s', m.*) FROM pg_auth_members m
	UNION ALL SELECT format('schema %s', n.*) FROM pg_namespace n
	UNION ALL SELECT format('publication %s', p.*) FROM pg_publication p
	UNION ALL SELECT format('published %s', r.*) FROM pg_publication_rel r
	UNION ALL SELECT format('database %s', d.*) FROM pg_database d
	UNION ALL SELECT format('setting %s %s %s', name, setting, pending_restart) FROM pg_settings WHERE context <> 'internal' AND name !~ '^application_name$'
	UNION ALL SELECT format('transactions %s', pg_snapshot_xmax(pg_current_snapshot()))) l`

// The promise of issue and design in one: what is wrong with a set-up is told
// with what mends it, nothing is touched, and with the fixes as printed it
// works.
func TestDoctorNamesWhatIsMissingAndTheFixesAsPrintedMendIt(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"wal_level": "replica", "autovacuum": "off"}})
	admin := prepare(t, server.URL("postgres"))
	broker := envtest.NATS(t, testenv.NATSConfig{})
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	set := []string{
		"WALRELAY_DATABASE_URL=" + strings.Replace(server.URL("postgres"), "postgres@", "relay@", 1), "WALRELAY_NATS=" + broker.URL(), "WALRELAY_SOURCE=shop",
	}
	before := value(t, admin, everything)
	fixes := map[string]string{}
	doctor := func(wantCode int, wantFailed ...string) {
		t.Helper()
		code, out := fixture.Command(t, set, "doctor", "--json")
		var report walrelay.Report
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatalf("doctor --json: %v\n%s", err, out)
		}
		var failed []string
		for _, c := range report.Checks {
			if c.Verdict == walrelay.VerdictFail {
				failed = append(failed, c.Name)
				fixes[c.Name] = c.Fix
				if c.Why == "" || c.Fix == "" || c.Value == "" {
					t.Errorf("failed check %+v lacks its value, why or fix", c)
				}
			}
		}
		if code != wantCode || !slices.Equal(failed, wantFailed) {
			t.Errorf("doctor: code %d, failed %q, want %d, %q\n%s", code, failed, wantCode, wantFailed, out)
		}
	}

	doctor(1, "wal_level", "replication connection", "connection", "stream")
	if after := value(t, admin, everything); after != before {
		t.Errorf("doctor changed the catalogues:\n%s\nbefore:\n%s", after, before)
	}
	code, text := fixture.Command(t, set, "doctor")
	for _, line := range []string{"FAIL  wal_level", "fix: ALTER SYSTEM SET wal_level = logical;", "FAIL  replication connection", `fix: ALTER ROLE "relay" REPLICATION;`, "FAIL  stream", "4 failed"} {
		if !strings.Contains(text, line) {
			t.Errorf("doctor prints no %q:\n%s", line, text)
		}
	}
	if code != 1 {
		t.Errorf("doctor: code %d, want 1", code)
	}

	// Behind an unreachable broker no stream could be looked for.
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	doctor(1, "wal_level", "replication connection", "stream")
	js := jetStream(t, broker.URL())
	if _, err := js.Stream(t.Context(), "SHOP"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("stream SHOP: %v, want none: doctor makes nothing", err)
	}

	execute(t, admin, fixes["wal_level"])
	execute(t, admin, fixes["replication connection"])
	if err := server.Stop(t.Context(), testenv.Fast); err != nil { // "counts after a restart"
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	command, ok := strings.CutPrefix(strings.Trim(strings.TrimPrefix(fixes["stream"], "create it with "), "`"), "walrelay ")
	if !ok {
		t.Fatalf("fix of the stream = %q, want a command", fixes["stream"])
	}
	// The database is not migrate's business here: its owner has made it.
	if code, out := fixture.Command(t, []string{"WALRELAY_NATS=" + broker.URL(), "WALRELAY_SOURCE=shop"}, strings.Fields(command)...); code != 0 {
		t.Fatalf("walrelay %s: code %d\n%s", command, code, out)
	}
	doctor(0)

	// And a relay, told nothing else, delivers.
	fixture.Background(t, set, "run", "--admin", "off")
	admin = connect(t, server.URL("postgres"))
	envtest.Eventually(t, 30*time.Second, func() error {
		var held bool
		err := admin.QueryRow(t.Context(), "SELECT active FROM pg_replication_slots WHERE slot_name = 'shop'").Scan(&held)
		if err == nil && !held {
			err = errors.New("the slot is not held")
		}
		return err
	})
	execute(t, admin, "SELECT walrelay.append('order', '1', 'order.placed', '{}')")
	envtest.Eventually(t, 30*time.Second, func() error {
		stream, err := js.Stream(t.Context(), "SHOP")
		if err != nil {
			return err
		}
		if n := stream.CachedInfo().State.Msgs; n != 1 {
			return errors.New("the event has not arrived")
		}
		return nil
	})
	doctor(0)
}

// prepare makes what an owner makes for a role that may not, and gives the
// owner's connection.
func prepare(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), cfg, migrations.Config{SchemaOnly: true}, nil); err != nil {
		t.Fatal(err)
	}
	admin := connect(t, address)
	execute(t, admin, `CREATE PUBLICATION shop FOR TABLE walrelay.outbox WITH (publish = 'insert', publish_via_partition_root = true);
		CREATE ROLE relay LOGIN; GRANT USAGE ON SCHEMA walrelay TO relay; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walrelay TO relay`)
	return admin
}

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value(t *testing.T, conn *pgx.Conn, sql string) (text string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatalf("%.60s: %v", sql, err)
	}
	return text
}

func jetStream(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// Doctor looks at two servers while a relay goes on between them.
func TestDoctorTakesARelayThatGoesOnForNoLoss(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	w.Start()
	load := w.Load(fixture.LoadConfig{})
	envtest.Eventually(t, fixture.Patience, func() error { return load.Reached(100) })
	for range 40 {
		report, err := walrelay.Doctor(t.Context(), walrelay.Config{DatabaseURL: w.DatabaseURL, NATS: w.NATSURL, Source: w.Source})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(report.Checks, func(c walrelay.Check) bool { return c.Name == "end of the stream" })
		if i < 0 || report.Checks[i].Verdict != walrelay.VerdictOK {
			t.Fatalf("the stream's end is no well check of %+v", report.Checks)
		}
	}
	load.Stop()
	w.Check()
}
