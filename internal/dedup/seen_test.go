package dedup_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
)

// I1, I5. Lanes store in any order over keys, a witness is written whenever,
// and the slot restarts anywhere before the first event that is not stored and
// before what the witness has confirmed.
func TestWhateverOrderLanesStoreInAnEventIsStoredOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := history(t)
		stored := map[envelope.Position]string{}
		lanes := map[int]bool{} // those that have stopped
		safe := len(all)        // events before it are stored, or go elsewhere
		for k, e := range all {
			if e.stream != 0 {
				continue
			}
			key := rapid.IntRange(0, 3).Draw(t, "key")
			lanes[key] = lanes[key] || rapid.IntRange(0, 5).Draw(t, "stops") == 0
			if lanes[key] {
				safe = min(safe, k)
				continue
			}
			stored[e.pos] = e.id
		}
		// What was ever confirmed: ends of transactions before safe.
		var ends []envelope.LSN
		for k, e := range all {
			if last := k+1 == len(all) || all[k+1].pos.Commit != e.pos.Commit; last && k < safe {
				ends = append(ends, e.pos.Commit+4)
			}
		}
		draw := func(name string) envelope.LSN {
			if k := rapid.IntRange(0, len(ends)).Draw(t, name); k > 0 {
				return ends[k-1]
			}
			return 0
		}
		witnessed, confirmed := draw("witnessed"), draw("confirmed")
		settled := envelope.Position{Epoch: 1, Commit: witnessed}
		seen := map[envelope.Position]string{}
		for pos, id := range stored {
			if pos.Compare(settled) >= 0 || rapid.Bool().Draw(t, "read for nothing") {
				seen[pos] = id
			}
		}
		s, err := dedup.NewSeen("S", seen, settled, dedup.Slot{Confirmed: confirmed, WALEnd: 1 << 20, Epoch: 1})
		if err != nil {
			t.Fatalf("NewSeen = %v", err)
		}
		for _, e := range all {
			if e.pos.Commit < confirmed {
				continue
			}
			if s.Met() && (e.pos.Compare(s.Position()) <= 0 || e.pos.Compare(settled) < 0) {
				t.Fatalf("Met() before %v, the last event to be met is %v, and what is before %v is settled", e.pos, s.Position(), settled)
			}
			// As a reader does: a mark that is met is asked no more.
			met := s.Met()
			if !met {
				if err := s.Pass(e.pos, e.id); err != nil {
					t.Fatalf("Pass(%v) = %v", e.pos, err)
				}
				if !s.Met() && e.pos.Compare(s.Position()) >= 0 && e.pos.Compare(settled) >= 0 {
					t.Fatalf("Met() = false behind %v, the last event to be met is %v, and what is before %v is settled", e.pos, s.Position(), settled)
				}
			}
			if e.stream != 0 {
				continue
			}
			_, has := stored[e.pos]
			if got := !met && s.Stored(e.pos); got != has {
				t.Fatalf("Stored(%v) = %v, want %v; witnessed %v, confirmed %v", e.pos, got, has, witnessed, confirmed)
			}
		}
		if err := s.Reached(1 << 20); err != nil || !s.Met() {
			t.Fatalf("Reached(the end) = %v, Met() = %v", err, s.Met())
		}
	})
}

func TestLanesRecogniseAnotherHistory(t *testing.T) {
	t.Parallel()
	at := func(commit envelope.LSN) envelope.Position { return envelope.Position{Epoch: 2, Commit: commit} }
	slot := dedup.Slot{Confirmed: 0x300, WALEnd: 0x900, Epoch: 2}
	held := map[envelope.Position]string{at(0x500): "five", at(0x700): "seven", {Epoch: 1, Commit: 0x600}: "lost"}
	fresh := func(t *testing.T) *dedup.Seen {
		t.Helper()
		s, err := dedup.NewSeen("S", held, envelope.Position{}, slot)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	rewound := func(t *testing.T, what string, err error) {
		t.Helper()
		if got, ok := errors.AsType[*dedup.RewoundError](err); !ok || got.Stream != "S" {
			t.Errorf("%s: error = %v, want a *RewoundError", what, err)
		}
	}
	_, err := dedup.NewSeen("S", held, envelope.Position{}, dedup.Slot{WALEnd: 0x600, Epoch: 2})
	rewound(t, "the WAL ends before an event", err)
	_, err = dedup.NewSeen("S", held, envelope.Position{}, dedup.Slot{WALEnd: 0x900, Epoch: 1})
	rewound(t, "the epoch is unknown", err)
	rewound(t, "a row behind the first event comes first", fresh(t).Pass(at(0x600), "six"))
	rewound(t, "the row has another id", fresh(t).Pass(at(0x500), "six"))
	rewound(t, "the server has sent more", fresh(t).Reached(0x501))

	s := fresh(t)
	for _, step := range []struct {
		pos    envelope.Position
		id     string
		stored bool
	}{
		{at(0x400), "four", false}, {at(0x500), "five", true}, {at(0x600), "seven", false}, // its id, another position
		{at(0x700), "seven", true}, {at(0x800), "eight", false},
	} {
		if err := s.Pass(step.pos, step.id); err != nil {
			t.Fatalf("Pass(%v) = %v", step.pos, err)
		}
		if got := s.Stored(step.pos); got != step.stored {
			t.Errorf("Stored(%v) = %v, want %v", step.pos, got, step.stored)
		}
		if err := s.Reached(step.pos.Commit); err != nil {
			t.Errorf("Reached(%v) = %v", step.pos.Commit, err)
		}
		if met := step.pos.Commit >= 0x700; s.Met() != met {
			t.Errorf("Met() = %v at %v, want %v", s.Met(), step.pos, met)
		}
	}
}
