package e2e_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// newProof waits for a proof that is newer than those there are. That of a session
// which has just begun comes behind its audit.
func newProof(t *testing.T, w *fixture.World) {
	t.Helper()
	last := fixture.Value[int64](w, "SELECT coalesce(max(id), 0) FROM walrelay.proven")
	envtest.Eventually(t, fixture.Patience, func() error {
		if fixture.Value[int64](w, "SELECT coalesce(max(id), 0) FROM walrelay.proven") == last {
			return fmt.Errorf("there is no newer proof than %d", last)
		}
		return nil
	})
}

// I1, I5: tables whose rows no proof can tell apart. Of one only a clock says
// which rows are old, of the other nothing does. What was stored long before the
// last proof is not missing, nor is what the stream has let go; what passed
// unseen is found all the same, as long as the stream has the rest.
func TestAnAuditOfTablesWithoutXidTakesNothingStoredForMissing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	flags := twoTables(w)
	relay := w.Start(flags...)
	again := func() {
		t.Helper()
		relay.Stop(fixture.Patience)
		relay = w.Start(flags...)
		newProof(t, w)
	}
	w.Load(fixture.LoadConfig{Writers: 2, Transactions: 20, Keep: true}).Wait()
	w.Check()
	newProof(t, w) // the streams' part that it speaks of begins behind all of this
	w.Load(fixture.LoadConfig{Writers: 2, Transactions: 5, Keep: true}).Wait()
	w.Check()
	again()
	again()
	w.Check()
	if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.gap"); n != 0 {
		t.Errorf("%d gaps were found, want none: nothing was lost", n)
	}

	relay.Stop(fixture.Patience)
	w.Exec(`INSERT INTO public.outbox VALUES (gen_random_uuid(), 'order', 'unseen', 'placed', '{}');
		INSERT INTO sales."Events" (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'unseen', 'placed', '{}')`)
	w.Exec("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", w.Source)
	relay = w.Start(flags...)
	if n := gap(t, w, "unseen", "healed"); n != 2 {
		t.Errorf("the gap has %d events, want 2", n)
	}
	w.Check()

	stored, err := w.LastSeq(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := streamOf(t, w).Purge(t.Context(), jetstream.WithPurgeSequence(stored/2)); err != nil {
		t.Fatal(err)
	}
	again()
	if err := streamOf(t, w).DeleteMsg(t.Context(), stored-1); err != nil {
		t.Fatal(err)
	}
	again()
	if now, err := w.LastSeq(t.Context()); err != nil || now != stored {
		t.Errorf("the stream ends at sequence %d (%v), want %d: nothing is sent again", now, err, stored)
	}
	relay.Stop(fixture.Patience)
}
