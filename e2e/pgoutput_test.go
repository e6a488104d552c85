package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// publishAll makes the publication what users' own ones are by default.
func publishAll(w *fixture.World) {
	w.Exec(fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert, update, delete, truncate')", w.Source))
}

func TestA16ATruncateIsNoEventAndStopsNothing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	publishAll(w)
	relay := w.Start()
	w.Place(1)
	w.Exec("TRUNCATE walrelay.outbox")
	w.Exec("CREATE TABLE e2e.child (id uuid REFERENCES walrelay.outbox)")
	w.Exec("TRUNCATE e2e.other, walrelay.outbox CASCADE")
	w.Exec("TRUNCATE walrelay.outbox RESTART IDENTITY CASCADE")
	w.Place(1)
	w.Stored(2)
	w.Check()
	if !strings.Contains(relay.Text(), "table truncated") {
		t.Error("the log does not tell of the truncates")
	}
	relay.Stop(fixture.Patience)
}

// I1: what walrelay does not use is not interpreted, and an id is its text.
func TestA17RowsOfEveryTypeAreDelivered(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	w.Exec(`ALTER TABLE walrelay.outbox
		ADD c01 int[] DEFAULT '{1,2,null}', ADD c02 int4range DEFAULT '[1,5)', ADD c03 tsvector DEFAULT 'a fat cat', ADD c04 point DEFAULT '(1,2)',
		ADD c05 xml DEFAULT '<a/>', ADD c06 money DEFAULT '12.30', ADD c07 bit(3) DEFAULT B'101', ADD c08 date DEFAULT '2026-01-02',
		ADD c09 time DEFAULT '03:04', ADD c10 timetz DEFAULT '03:04+02', ADD c11 interval DEFAULT '1 day 2 h', ADD c12 inet DEFAULT '10.0.0.1/8',
		ADD c13 macaddr DEFAULT '08:00:2b:01:02:03', ADD c14 numeric DEFAULT 'NaN', ADD c15 float8 DEFAULT '-0', ADD c16 bytea DEFAULT '\x00ff',
		ADD c17 path DEFAULT '[(0,0),(1,1)]', ADD c18 tsquery DEFAULT 'fat & cat', ADD c19 int4multirange DEFAULT '{[1,2),[5,6)}', ADD c20 bool DEFAULT true,
		ADD c21 "char" DEFAULT 'x', ADD c22 name DEFAULT 'n', ADD c23 pg_lsn DEFAULT '0/1', ADD c24 txid_snapshot DEFAULT '10:20:10', ADD c25 oid DEFAULT 1,
		ADD c26 regclass DEFAULT 'pg_class', ADD c27 jsonpath DEFAULT '$.a', ADD c28 varbit DEFAULT B'1', ADD c29 text[][] DEFAULT '{{a,b},{c,NULL}}', ADD c30 int DEFAULT NULL`)
	w.Place(1)
	w.Exec(`CREATE TYPE e2e.mood AS ENUM ('sad', 'happy'); CREATE DOMAIN e2e.ident AS uuid; CREATE TYPE e2e.pair AS (a int, b text);
		ALTER TABLE walrelay.outbox ALTER id DROP DEFAULT; ALTER TABLE walrelay.outbox DISABLE TRIGGER e2e_note`)
	prefix := w.Source + ":walrelay.outbox:"
	var want []string
	for _, id := range []struct{ kind, value, want string }{
		{"bigint", "9007199254740993", prefix + "9007199254740993"},
		{"numeric", "1.10", prefix + "1.10"},
		{"text", "a:b é", prefix + "a%3Ab%20%C3%A9"},
		{"e2e.mood", "happy", prefix + "happy"},
		{"e2e.ident", "11111111-2222-4333-8444-555555555555", ""},
		{"char(10)", "ab", prefix + "ab%20%20%20%20%20%20%20%20"},
		{"e2e.pair", "(1,x)", prefix + "%281%2Cx%29"},
		{"uuid", "21111111-2222-4333-8444-555555555555", "21111111-2222-4333-8444-555555555555"},
	} {
		w.Exec("DELETE FROM walrelay.outbox")
		w.Exec(fmt.Sprintf("ALTER TABLE walrelay.outbox ALTER id TYPE %s USING NULL", id.kind))
		w.Exec(fmt.Sprintf(`INSERT INTO walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ('%s', 'order', 'a1', 'placed', '{}')`, id.value))
		if id.want == "" {
			// A domain over uuid is sent as its own type: scoped or not, the value is whole.
			id.want = id.value
		}
		want = append(want, id.want)
	}
	var got []string
	for i, m := range w.Stored(1 + len(want))[1:] {
		id := m.Event.ID
		if strings.HasSuffix(id, ":"+want[i]) {
			id = want[i]
		}
		got = append(got, id)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("event ids (-want +got):\n%s", diff)
	}
	relay.Stop(fixture.Patience)
}

// I1: what was rolled back within a transaction does not take the rest along.
func TestA18SavepointsInALargeTransactionLoseNoRow(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	w.Exec(fmt.Sprintf("ALTER DATABASE %s SET logical_decoding_work_mem = '64kB'", w.Source))
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	w.Exec("INSERT INTO e2e.aggregate VALUES ('a1'), ('a2')")
	const many = "SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', repeat('x', 300)) FROM generate_series(1, $1::int)"
	tx := begin(t, w)
	exec(t, tx, many, 500)
	exec(t, tx, "SAVEPOINT a")
	exec(t, tx, many, 500)
	exec(t, tx, "ROLLBACK TO a")
	exec(t, tx, many, 3)
	w.Exec("SELECT e2e.place(gen_random_uuid(), 'a2', 'placed', '') FROM generate_series(1, 20)")
	exec(t, tx, "SAVEPOINT b")
	exec(t, tx, "SAVEPOINT c")
	exec(t, tx, many, 200)
	exec(t, tx, "ROLLBACK TO b")
	exec(t, tx, "SELECT e2e.place_and_fail(gen_random_uuid(), 'a1', 'placed', repeat('x', 100000))")
	exec(t, tx, many, 2)
	w.Stored(20) // nothing of an open transaction
	commit(t, tx)
	w.Check()
	w.Stored(525)
	relay.Stop(fixture.Patience)
}

// I4: an event is what was first inserted.
func TestA20AnUpdateInTheSameTransactionLeavesTheEventAsInserted(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	publishAll(w)
	w.Exec("ALTER TABLE walrelay.outbox ALTER payload SET STORAGE EXTERNAL; DROP TRIGGER outbox_refuse_update ON walrelay.outbox")
	relay := w.Start()
	w.Exec("INSERT INTO e2e.aggregate VALUES ('a1')")
	tx := begin(t, w)
	exec(t, tx, "SELECT e2e.place('00000000-0000-4000-8000-000000000001', 'a1', 'placed', repeat('x', 300000))")
	exec(t, tx, "UPDATE walrelay.outbox SET event_type = 'changed'")
	commit(t, tx)
	w.Exec(`UPDATE walrelay.outbox SET headers = '{"a": "b"}'`)
	w.Check() // compares subject and body with those of the insert
	if m := w.Stored(1)[0]; m.Event.EventType != "placed" || len(m.Body) < 300000 {
		t.Errorf("the event has type %q and %d bytes, want placed and 300000 at least", m.Event.EventType, len(m.Body))
	}
	relay.Stop(fixture.Patience)
}

func TestA21EachInsertIsOneEventAndNothingElseIs(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	publishAll(w)
	relay := w.Start()
	w.Exec("CREATE TABLE e2e.source AS SELECT 'm' || i AS name FROM generate_series(1, 2) AS i")
	const columns = "(id, aggregate_type, aggregate_id, event_type, payload)"
	id := func(n int) string { return fmt.Sprintf("'00000000-0000-4000-8000-%012d'", n) }
	for name, sql := range map[string]string{
		"insert and delete":     "BEGIN; INSERT INTO walrelay.outbox " + columns + " VALUES (" + id(1) + ", 'order', 'x', 'deleted', '{}'); DELETE FROM walrelay.outbox WHERE id = " + id(1) + "; COMMIT",
		"insert":                "INSERT INTO walrelay.outbox " + columns + " VALUES (" + id(2) + ", 'order', 'x', 'plain', '{}')",
		"on conflict nothing":   "INSERT INTO walrelay.outbox " + columns + " VALUES (" + id(3) + ", 'order', 'x', 'upsert', '{}'), (" + id(3) + ", 'order', 'x', 'upsert', '{}') ON CONFLICT DO NOTHING",
		"on conflict update":    "INSERT INTO walrelay.outbox " + columns + " VALUES (" + id(4) + ", 'order', 'x', 'upsert2', '{}') ON CONFLICT (id) DO UPDATE SET payload = '1'",
		"merge":                 "MERGE INTO walrelay.outbox o USING e2e.source s ON o.aggregate_id = 'merge ' || s.name WHEN NOT MATCHED THEN INSERT (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'merge ' || s.name, 'merged', '{}')",
		"insert select":         "INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', name, 'selected', '{}' FROM e2e.source",
		"function of migration": "SELECT walrelay.append('order', 'x', 'appended', '{}')",
	} {
		t.Log(name)
		w.Exec(sql)
	}
	conn, err := w.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Conn().PgConn().CopyFrom(t.Context(), strings.NewReader("order\tx\tcopied\t{}\n"),
		"COPY walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) FROM STDIN"); err != nil {
		t.Fatal(err)
	}
	conn.Release()
	// The writer learns that an event does not change.
	_, err = w.Pool.Exec(t.Context(), "INSERT INTO walrelay.outbox "+columns+" VALUES ("+id(2)+", 'order', 'x', 'plain', '{}') ON CONFLICT (id) DO UPDATE SET payload = '1'")
	if err == nil || !strings.Contains(err.Error(), "does not change") {
		t.Errorf("an upsert that updates gives %v, want that an event does not change", err)
	}
	// Triggers of the user: one rewrites the row, one writes another event.
	w.Exec(`CREATE FUNCTION e2e.rewrite() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.payload := '{"rewritten": true}'; RETURN NEW; END $$;
		CREATE TRIGGER rewrite BEFORE INSERT ON walrelay.outbox FOR EACH ROW WHEN (NEW.event_type = 'original') EXECUTE FUNCTION e2e.rewrite();
		CREATE FUNCTION e2e.second() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'x', 'second', '{}'); RETURN NULL; END $$;
		CREATE TRIGGER second AFTER INSERT ON walrelay.outbox FOR EACH ROW WHEN (NEW.event_type = 'original') EXECUTE FUNCTION e2e.second()`)
	w.Exec("INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'x', 'original', '{}')")
	w.Check()
	count := make(map[string]int)
	for _, m := range w.Stored(12) {
		count[m.Event.EventType]++
	}
	want := map[string]int{"deleted": 1, "plain": 1, "upsert": 1, "upsert2": 1, "merged": 2, "selected": 2, "appended": 1, "copied": 1, "original": 1, "second": 1}
	if diff := cmp.Diff(want, count); diff != "" {
		t.Errorf("events by type (-want +got):\n%s", diff)
	}
	relay.Stop(fixture.Patience)
}

// I1: columns are found by name in the description that precedes each row.
func TestA22ColumnsMayChangeWhileTheRelayRunsAndWhileItIsDown(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	changes := []string{
		"ALTER TABLE walrelay.outbox ADD tenant text DEFAULT 't'",
		"ALTER TABLE walrelay.outbox DROP tenant",
		"ALTER TABLE walrelay.outbox DROP payload; ALTER TABLE walrelay.outbox ADD payload jsonb",
		"ALTER TABLE walrelay.outbox ALTER aggregate_id TYPE varchar(200)",
		"ALTER TABLE walrelay.outbox ALTER payload TYPE json USING payload::json",
		"ALTER TABLE walrelay.outbox ALTER payload TYPE bytea USING convert_to(payload::text, 'UTF8')",
		"ALTER TABLE walrelay.outbox ALTER payload TYPE jsonb USING convert_from(payload, 'UTF8')::jsonb",
		"ALTER TABLE walrelay.outbox RENAME seq TO sequence",
	}
	const insert = "INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a1', 'placed', '{}')"
	relay := w.Start()
	for i, change := range changes {
		w.Exec(insert)
		w.Exec(change)
		w.Exec(insert)
		w.Stored(2 * (i + 1))
	}
	relay.Stop(fixture.Patience)
	for _, change := range append([]string{"ALTER TABLE walrelay.outbox RENAME sequence TO seq"}, changes...) {
		w.Exec(insert)
		w.Exec(change)
		w.Exec(insert)
	}
	relay = w.Start()
	w.Check()
	for _, m := range w.Stored(4*len(changes) + 2) {
		if got := string(m.Body); got != "{}" && got != "" {
			t.Errorf("message %d has body %q, want {}", m.Seq, got)
		}
	}
	relay.Stop(fixture.Patience)
}

// I1, I10: a column that is needed and missing stops delivery with its name.
func TestA22AMissingColumnStopsDeliveryByName(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	w.Place(1)
	w.Check()
	w.Exec("ALTER TABLE walrelay.outbox RENAME event_type TO kind")
	w.Exec("INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, kind, payload) VALUES ('order', 'a1', 'placed', '{}')")
	end := w.WALEnd()
	if reason := relay.Await("halted", fixture.Patience); !strings.Contains(reason, "event_type") {
		t.Errorf("the reason %q does not name the column", reason)
	}
	w.Stored(1)
	relay.Stop(fixture.Patience)
	if at := w.SlotAt(); at >= end {
		t.Errorf("the confirmed LSN %s passed the row that cannot be read, before %s", at, end)
	}
}
