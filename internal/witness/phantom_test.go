package witness_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/walrelay/walrelay/internal/witness"
)

// I10: what a database never had is listed once, whatever happens to the relay,
// and nobody waits for its end.
func TestPhantomsAreListedOnceForAStreamAndAnEpoch(t *testing.T) {
	t.Parallel()
	conn := connect(t, newDatabase(t))
	session := uuid.New()
	begins := taking(session)
	begins.Epoch, begins.Begins = 2, &witness.Epoch{Number: 2, SystemID: "7", Timeline: 2, FirstLSN: 0x500}
	if _, err := witness.Take(t.Context(), conn, begins); err != nil {
		t.Fatal(err)
	}
	epochs, err := witness.Epochs(t.Context(), conn, "walrelay", "shop")
	if err == nil && len(epochs) == 1 {
		begins.Begins.At = epochs[0].At
	}
	if err != nil || len(epochs) != 1 || epochs[0] != *begins.Begins {
		t.Errorf("Epochs() = %v, %v, want the one that the session began", epochs, err)
	}
	list := func(session uuid.UUID, stream string, epoch uint32) (int64, error) {
		return witness.ListPhantoms(t.Context(), conn, "walrelay", "shop", session,
			witness.Gap{Epoch: epoch, Stream: stream, Events: 2, Detail: witness.GapDetail{Events: []string{"a", "b"}}})
	}
	if _, err := list(uuid.New(), "SHOP", 2); !errors.Is(err, witness.ErrSessionLost) {
		t.Errorf("ListPhantoms() of a session that is over = %v, want %v", err, witness.ErrSessionLost)
	}
	for _, c := range []struct {
		stream string
		epoch  uint32
		new    bool
	}{{"SHOP", 2, true}, {"SHOP", 2, false}, {"MORE", 2, true}, {"SHOP", 3, true}} {
		if id, err := list(session, c.stream, c.epoch); err != nil || id != 0 != c.new {
			t.Errorf("ListPhantoms(%s, %d) = %d, %v, want a new gap: %v", c.stream, c.epoch, id, err, c.new)
		}
	}
	gaps, err := witness.Gaps(t.Context(), conn, "walrelay", "shop", 10)
	if err != nil || len(gaps) != 3 {
		t.Fatalf("Gaps() = %v, %v, want 3", gaps, err)
	}
	for _, g := range gaps {
		if g.Kind != witness.GapPhantom || g.State != witness.GapListed || g.EndedAt.IsZero() || len(g.Detail.Events) != 2 {
			t.Errorf("gap = %+v, want a phantom one that is listed and over", g)
		}
	}
}
