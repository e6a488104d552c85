package e2e_test

import (
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// bulk writes n events in one transaction. They carry no counter: one row that
// is updated n times in a transaction costs PostgreSQL the square of that.
func bulk(w *fixture.World, n int) {
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'a' || i % 7, 'placed', jsonb_build_object('i', i) FROM generate_series(1, $1::int) AS i`, n)
}

// I2, I3, I5, I7: 300,000 rows with $DRILL_LONG, a tenth of it otherwise.
func TestALargeTransactionWithAKillInItsMiddleLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	rows := 30000
	if long() {
		rows = 300000
	}
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	relay := w.Start()
	w.Place(3)
	w.Check()
	bulk(w, rows)
	w.Place(3)
	middle := uint64(rows/4 + w.Random("instant").IntN(rows/2))
	w.AwaitRecorded(middle)
	relay.Kill()
	relay = w.Start()
	a := w.Check()
	if a.Stored != rows+6 {
		t.Errorf("%d events are stored, want %d", a.Stored, rows+6)
	}
	const limit = 128 << 20
	if most := peak(t, relay.PID()); most > limit && !fixture.Race {
		t.Errorf("the relay took %d MB, want at most %d MB", most>>20, limit>>20)
	} else {
		t.Logf("the relay took %d MB at most", most>>20)
	}
	relay.Stop(fixture.Patience)
}

// I1, I4: what changes about the table is no event, and costs none.
func TestDDLOnTheOutboxUnderLoadLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	relay := w.Start()
	load := w.Load(fixture.LoadConfig{Writers: 3})
	for _, change := range []string{
		"ALTER TABLE walrelay.outbox ADD COLUMN note text",
		"CREATE INDEX outbox_note ON walrelay.outbox (note)",
		"ALTER TABLE walrelay.outbox ALTER note SET DEFAULT repeat('x', 5000)",
		"ALTER TABLE walrelay.outbox ADD COLUMN amount numeric NOT NULL DEFAULT 1.50",
		"ALTER TABLE walrelay.outbox ALTER note DROP DEFAULT, ALTER note TYPE bytea USING convert_to(note, 'UTF8')", // rewrites the table
		"VACUUM FULL walrelay.outbox",
		"ALTER TABLE walrelay.outbox DROP COLUMN note",
		"ALTER TABLE walrelay.outbox REPLICA IDENTITY FULL",
		"CLUSTER walrelay.outbox USING outbox_pkey",
		"ALTER TABLE walrelay.outbox RENAME COLUMN amount TO total",
		"ALTER TABLE walrelay.outbox SET (fillfactor = 50)",
		"ALTER TABLE walrelay.outbox DROP COLUMN total",
		"REINDEX TABLE walrelay.outbox",
		"ANALYZE walrelay.outbox",
	} {
		more(t, load, 10)
		w.Exec(change)
	}
	more(t, load, 30)
	load.Stop()
	w.Check()
	if n := len(w.Dead(0)); n != 0 {
		t.Errorf("%d events became dead letters, want none", n)
	}
	if state, reason := relay.State(); state != "relaying" {
		t.Errorf("the relay is in state %q: %s", state, reason)
	}
	relay.Stop(fixture.Patience)
}
