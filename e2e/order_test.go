package e2e_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
)

const insertEvent = `INSERT INTO walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, 'order', 'a1', 'placed', '{}')`

// I3: only commit order is an order.
func TestA07InterleavedTransactionsComeInCommitOrder(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	ids := []string{
		"00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002", "00000000-0000-4000-8000-000000000003",
	}
	relay := w.Start()
	early := begin(t, w)
	write(t, early, ids[0])
	late := begin(t, w)
	write(t, late, ids[1])
	commit(t, late)
	w.Stored(1)
	relay.Stop(fixture.Patience)
	relay = w.Start()
	relay.Await("relaying", fixture.Patience)
	write(t, early, ids[2])
	commit(t, early)
	var got []string
	for _, m := range w.Stored(3) {
		got = append(got, m.Event.ID)
	}
	if diff := cmp.Diff([]string{ids[1], ids[0], ids[2]}, got); diff != "" {
		t.Errorf("order of the stream (-want +got):\n%s", diff)
	}
	w.Check()
	relay.Stop(fixture.Patience)
}

// I3: many sessions, with restarts in between.
func TestA07ManySessionsComeInCommitOrderOverRestarts(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	load := w.Load(fixture.LoadConfig{Writers: 24, Transactions: 40, Pause: 40 * time.Millisecond})
	for i := range 4 {
		relay := w.Start()
		relay.Await("relaying", fixture.Patience) // before, a signal ends it at once
		w.AwaitRecorded(uint64(200 * (i + 1)))
		relay.Stop(fixture.Patience)
	}
	relay := w.Start()
	load.Wait()
	w.Check()
	relay.Stop(fixture.Patience)
}

// I1: ids neither rise nor are they dense.
func TestA08AnIdThatCommitsLateIsNotSkipped(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	w.Exec(`ALTER TABLE walrelay.outbox ALTER id DROP DEFAULT, ALTER id TYPE bigint USING NULL;
		CREATE SEQUENCE e2e.id; ALTER TABLE walrelay.outbox ALTER id SET DEFAULT nextval('e2e.id')`)
	const next = `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a1', 'placed', '{}')`
	relay := w.Start()
	low := begin(t, w)
	exec(t, low, next)
	gap := begin(t, w)
	exec(t, gap, next)
	high := begin(t, w)
	exec(t, high, next)
	commit(t, high)
	if err := gap.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Stored(1)
	relay.Stop(fixture.Patience)
	relay = w.Start()
	relay.Await("relaying", fixture.Patience)
	commit(t, low)
	var got []string
	for _, m := range w.Stored(2) {
		got = append(got, m.Event.ID)
	}
	prefix := w.Source + ":walrelay.outbox:"
	if diff := cmp.Diff([]string{prefix + "3", prefix + "1"}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	w.Check()
	relay.Stop(fixture.Patience)
}

// I3: a publish that is lost on the wire stops those behind it.
func TestA63AMessageLostInTheMiddleReordersNothing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyNATS: true, Stream: shortDuplicates, Flags: []string{"--ack-timeout", "1s", "--window", "256"}})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	load := w.Load(fixture.LoadConfig{Writers: 3, Aggregates: 2})
	for range 4 {
		before, err := w.LastSeq(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.AwaitRecorded(before + 50)
		// What the relay sends meanwhile is lost, and then the connection.
		if err := w.NATSProxy.Swallow(testenv.Upstream); err != nil {
			t.Fatal(err)
		}
		more(t, load, 20)
		if err := w.NATSProxy.Release(testenv.Upstream); err != nil {
			t.Fatal(err)
		}
		more(t, load, 20)
		if err := w.NATSProxy.Cut(); err != nil {
			t.Fatal(err)
		}
		if err := w.NATSProxy.Restore(); err != nil {
			t.Fatal(err)
		}
	}
	load.Stop()
	w.Check()
	relay.Stop(fixture.Patience)
}

func begin(t *testing.T, w *fixture.World) pgx.Tx {
	t.Helper()
	tx, err := w.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func exec(t *testing.T, tx pgx.Tx, sql string, args ...any) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("run SQL %.60q: %v", sql, err)
	}
}

func write(t *testing.T, tx pgx.Tx, id string) {
	t.Helper()
	exec(t, tx, insertEvent, id)
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}
