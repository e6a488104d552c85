package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/outbox"
)

// becomes waits until a query gives true.
func becomes(t *testing.T, w *fixture.World, what, sql string, args ...any) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		if !fixture.Value[bool](w, sql, args...) {
			return fmt.Errorf("not yet: %s", what)
		}
		return nil
	})
}

// A69, A23, I1: partitions come and go under load, on the oldest and the newest
// server; while no relay makes any the default one takes what is written; one
// with an open dead letter stays, whole.
func TestA69PartitionsAreMadeAndDroppedUnderLoad(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func() *testenv.Postgres{
		"oldest": func() *testenv.Postgres { return nil },
		"newest": func() *testenv.Postgres { return envtest.Postgres(t, testenv.PGConfig{Version: 18}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{
				Postgres: server(), Flags: []string{"--retention", "2s"},
				Migrate: []string{"--partitioned", "--partition-interval", "4s", "--partitions-ahead", "2"},
			})
			relay := w.Start()
			present := `SELECT count(*) > 0 FROM walrelay.partitions() WHERE lower <= now() AND upper > now()`
			becomes(t, w, "the relay makes partitions", present)
			w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, headers, payload)
				VALUES ('order', 'p1', 'placed', '{"Nats-Rollup": "all"}', '{}')`)
			letter := w.Dead(1)[0].Number
			// The partition behind the dead letter's: it comes, and goes.
			next := `SELECT EXISTS (SELECT FROM walrelay.partitions() l JOIN walrelay.partitions() p ON p.lower = l.upper
				WHERE l.part = (SELECT tableoid FROM walrelay.outbox WHERE headers ? 'Nats-Rollup'))`
			becomes(t, w, "there is a partition behind the dead letter's", next)
			load := w.Load(fixture.LoadConfig{Keep: true, Pause: 20 * time.Millisecond})
			becomes(t, w, "the partition behind the dead letter's is gone", strings.Replace(next, "EXISTS", "NOT EXISTS", 1))
			relay.Kill()
			w.Exec(`DO $$ BEGIN LOCK TABLE walrelay.outbox IN ACCESS EXCLUSIVE MODE; PERFORM walrelay.hold_partition(part), walrelay.drop_partition(part) FROM walrelay.partitions() WHERE lower > now(); END $$`)
			becomes(t, w, "the default partition takes what is written", `SELECT count(*) > 10 FROM walrelay.outbox_default`)
			w.Start()
			becomes(t, w, "partitions are made again", present)
			load.Stop()
			w.Check()
			becomes(t, w, "all but the dead letter's partition is gone", `SELECT count(*) = 0 FROM walrelay.outbox WHERE tableoid <> (
				SELECT tableoid FROM walrelay.outbox WHERE headers ? 'Nats-Rollup')`)
			letters(t, w, 0, "discard", fmt.Sprint(letter))
			left(t, w, 0)
		})
	}
}

// A23, I1, I4: what reads the table reads a partitioned one alike: events of
// every kind of writer are verified, replayed and healed, and cleanup says what it
// would drop before it does.
func TestAPartitionedOutboxIsVerifiedReplayedHealedAndCleaned(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Migrate: []string{"--partitioned"}, Superuser: true})
	at := func(days int) string { return time.Now().AddDate(0, 0, -days).UTC().Format(time.RFC3339) }
	w.Exec(fmt.Sprintf(`CREATE TABLE walrelay.outbox_old PARTITION OF walrelay.outbox FOR VALUES FROM ('%s') TO ('%s')`, at(20), at(10)))
	relay := w.Start()
	tx, err := w.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Append(t.Context(), tx, outbox.Event{AggregateType: "order", AggregateID: "a1", Type: "placed", Payload: map[string]int{"n": 1}}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Exec(`SELECT walrelay.append('order', 'a1', 'placed', '{"n": 2}')`)
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
		SELECT 'order', 'a1', 'placed', '{}', now() - i * interval '1 day' FROM unnest(ARRAY[15, 100]) i`) // an old partition, and the default one
	w.Stored(4)
	demand(t, "verify", verify(t, w), nil)
	if p := replayed(t, w, 0, "--since", "3000h", "--new-id"); p.Stored != 4 {
		t.Errorf("replay published %d events, want 4", p.Stored)
	}
	proven(t, w)
	relay.Stop(30 * time.Second)
	insertMany(w, 100)
	w.Exec("SELECT pg_drop_replication_slot($1)", w.Source)
	relay = w.Start()
	if n := gap(t, w, "slot", "healed"); n != 100 {
		t.Errorf("the gap tells of %d events, want 100", n)
	}
	w.Place(1)
	w.Stored(109)
	proven(t, w)
	relay.Stop(30 * time.Second)
	args := []string{"cleanup", "--database-url", w.DatabaseURL, "--source", w.Source}
	code, out := fixture.Command(t, nil, append(args, "--dry-run")...)
	if want := `partition "walrelay"."outbox_old" is dropped`; code != 0 || !strings.Contains(out, want) || !strings.Contains(out, "2 rows") {
		t.Errorf("cleanup --dry-run = %d, %q, want it to say %q and 2 rows", code, out, want)
	}
	left(t, w, 105)
	w.Exec("UPDATE walrelay.partitioning SET ahead = 33")
	code, out = fixture.Command(t, nil, append(args, "--yes")...)
	if code != 0 || !strings.Contains(out, `dropped: partition "walrelay"."outbox_old"`) || !strings.Contains(out, "made: 3 partitions") {
		t.Errorf("cleanup = %d, %q, want outbox_old dropped and 3 made", code, out)
	}
	left(t, w, 103)
	if code, out = fixture.Command(t, nil, "doctor", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source); !strings.Contains(out, "made until") {
		t.Errorf("doctor = %d, %q, want it to say until when partitions are made", code, out)
	}
}

// The way over from a plain outbox: a second one beside it, both read by one
// relay, until nobody writes to the first.
func TestAPlainOutboxGivesWayToAPartitionedOne(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	code, _ := fixture.Command(t, nil, "migrate", "--partitioned", "--database-url", w.DatabaseURL, "--source", w.Source)
	if code == 0 {
		t.Fatal("migrate --partitioned of a plain outbox = 0, want a refusal")
	}
	relay := w.Start()
	w.Place(10)
	w.Stored(10)
	args := []string{"migrate", "--partitioned", "--schema", "walrelay_parts", "--database-url", w.DatabaseURL, "--source", w.Source}
	if code, out := fixture.Command(t, nil, args...); code != 0 {
		t.Fatalf("migrate --partitioned --schema = %d, %q, want 0", code, out)
	}
	w.Exec(`CREATE TRIGGER e2e_note AFTER INSERT ON walrelay_parts.outbox FOR EACH ROW EXECUTE FUNCTION e2e.note('walrelay_parts.outbox')`)
	relay.Stop(30 * time.Second)
	w.Start("--tables", "[{name: walrelay.outbox}, {name: walrelay_parts.outbox}]", "--retention", "1s")
	w.Place(5)
	w.Exec(`SELECT walrelay_parts.append('order', 'a1', 'placed', '{}') FROM generate_series(1, 5)`)
	w.Stored(20)
	left(t, w, 0)
	w.Check()
	becomes(t, w, "partitions are made ahead", `SELECT count(*) = 31 FROM walrelay_parts.partitions()`)
}
