package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// unusual is a world on a cluster of its own that can prepare transactions, with
// two outbox tables in one stream.
func unusual(t *testing.T) (*fixture.World, *testenv.Postgres) {
	t.Helper()
	cluster := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"max_prepared_transactions": "10", "wal_writer_delay": "2s"}})
	w := fixture.New(t, fixture.Config{Postgres: cluster, Stream: shortDuplicates, Flags: []string{
		"--tables", "[{name: walrelay.outbox}, {name: public.outbox, preset: debezium}]",
	}})
	w.Exec(`CREATE TABLE public.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb);
		CREATE TRIGGER e2e_note AFTER INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION e2e.note('public.outbox');
		ALTER PUBLICATION shop SET TABLE walrelay.outbox, public.outbox;
		CREATE TABLE e2e.names AS SELECT 'm' || i AS name FROM generate_series(1, 50) AS i`)
	return w, cluster
}

const (
	ours   = "INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a1', 'placed', '{}'); "
	theirs = "INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'a1', 'placed', '{}'); "
)

// I1, I2, I3, I5: what PostgreSQL writes about in other ways than plain inserts.
// Each step demands all of the stream so far.
func TestUnusualTransactionsAreDeliveredOnceAndInOrder(t *testing.T) {
	t.Parallel()
	w, cluster := unusual(t)
	relay := w.Start()
	expect := 0
	// events demands that n events more are stored, and nothing is wrong.
	events := func(what string, n int) {
		t.Helper()
		expect += n
		w.AwaitRecorded(uint64(expect))
		if a := w.Check(); a.Stored != expect {
			t.Errorf("%s: %d events are stored, want %d", what, a.Stored, expect)
		}
	}

	w.Exec(savepoints(1500))
	events("savepoints by the thousand", 1500+700+1000)

	w.Exec("BEGIN; " + strings.Repeat(ours+"INSERT INTO e2e.other (filler) VALUES ('x'); "+theirs, 100) + `
		MERGE INTO walrelay.outbox o USING e2e.names s ON o.aggregate_id = s.name WHEN NOT MATCHED THEN
			INSERT (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', s.name, 'merged', '{}');
		INSERT INTO public.outbox (aggregatetype, aggregateid, type) SELECT 'order', aggregate_id, event_type FROM walrelay.outbox WHERE event_type = 'merged';
		COMMIT`)
	events("two tables and MERGE in one transaction", 300)

	copied := strings.Repeat("order\ta1\tcopied\t{}\n", 2000)
	pgconn(t, w, func(c *pgx.Conn) error {
		_, err := c.PgConn().CopyFrom(t.Context(), strings.NewReader(copied), "COPY walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) FROM STDIN")
		return err
	})
	events("COPY", 2000)

	// Prepared transactions outlive sessions and servers; each is where its
	// second half was committed, and nothing before.
	w.Exec("BEGIN; " + strings.Repeat(ours, 20) + theirs + "PREPARE TRANSACTION 'kept'")
	w.Exec("BEGIN; " + strings.Repeat(ours, 20) + "PREPARE TRANSACTION 'undone'")
	w.Exec(ours)
	events("beside prepared transactions", 1)
	if err := cluster.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	startAgain(t, w, cluster)
	w.Exec(ours)
	events("beside prepared transactions after a crash", 1)
	w.Exec("ROLLBACK PREPARED 'undone'")
	w.Exec("COMMIT PREPARED 'kept'")
	w.Exec(ours)
	events("prepared transactions", 22)

	replicated := feed(t, w, cluster)
	events("rows that arrive by logical replication", replicated)

	// A commit that nobody waits for may be lost in a crash; then its event
	// must not be anywhere.
	w.Exec("ALTER DATABASE shop SET synchronous_commit = off")
	load := w.Load(fixture.LoadConfig{Writers: 3})
	w.AwaitRecorded(uint64(expect + 200))
	if err := cluster.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	startAgain(t, w, cluster)
	more(t, load, 50)
	load.Stop()
	w.Check()
	relay.Stop(fixture.Patience)
}

// savepoints is one transaction with n savepoints within each other, rolled back
// to the 701st, and then n one after the other, of which every third is rolled
// back and every row is followed by one outside of it.
func savepoints(n int) string {
	var b strings.Builder
	b.WriteString("BEGIN; ")
	for i := range n {
		fmt.Fprintf(&b, "SAVEPOINT s%d; %s", i, ours)
	}
	b.WriteString("ROLLBACK TO s700; ")
	for i := range n {
		b.WriteString("SAVEPOINT x; " + ours)
		if i%3 == 0 {
			b.WriteString("ROLLBACK TO x; ")
		} else {
			b.WriteString("RELEASE x; ")
		}
		b.WriteString(theirs)
	}
	b.WriteString("COMMIT")
	return b.String()
}

func pgconn(t *testing.T, w *fixture.World, do func(*pgx.Conn) error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), w.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	if err := do(conn); err != nil {
		t.Error(err)
	}
	_ = conn.Close(t.Context())
}

// feed lets another database fill the outbox: its rows come with an origin, and
// are written in the role of a replica, which fires no ordinary trigger. It gives
// how many they are.
func feed(t *testing.T, w *fixture.World, cluster *testenv.Postgres) int {
	t.Helper()
	if err := cluster.CreateDatabase(t.Context(), "feed"); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, cluster.URL("feed"))
	execute(t, conn, `CREATE SCHEMA walrelay;
		CREATE TABLE walrelay.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text, payload jsonb);
		CREATE PUBLICATION feed FOR TABLE walrelay.outbox`)
	execute(t, conn, "SELECT pg_create_logical_replication_slot('feed', 'pgoutput')")
	w.Exec("ALTER TABLE walrelay.outbox ENABLE ALWAYS TRIGGER e2e_note")
	w.Exec(fmt.Sprintf("CREATE SUBSCRIPTION feed CONNECTION '%s' PUBLICATION feed WITH (create_slot = false, slot_name = 'feed', copy_data = false)", cluster.URL("feed")))
	execute(t, conn, strings.Repeat(ours, 5))
	execute(t, conn, "INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', 'f' || i % 7, 'fed', '{}' FROM generate_series(1, 1000) AS i")
	return 1005
}
