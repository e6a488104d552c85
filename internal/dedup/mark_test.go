package dedup_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
)

var created = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type event struct {
	pos    envelope.Position
	id     string
	stream int
}

// history draws transactions in commit order, each with events of two streams.
func history(t *rapid.T) []event {
	var all []event
	commit := envelope.LSN(1000)
	for range rapid.IntRange(1, 12).Draw(t, "transactions") {
		commit += envelope.LSN(rapid.IntRange(8, 64).Draw(t, "gap"))
		for i := range rapid.IntRange(1, 4).Draw(t, "rows") {
			all = append(all, event{
				pos:    envelope.Position{Epoch: 1, Commit: commit, Index: uint64(i)},
				id:     fmt.Sprintf("id-%d", len(all)),
				stream: rapid.IntRange(0, 1).Draw(t, "stream"),
			})
		}
	}
	return all
}

// I5.
func TestWhateverTheSlotSendsAgainAnEventIsStoredOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := history(t)
		mine := func(n int) []event {
			var of []event
			for _, e := range all[:n] {
				if e.stream == 0 {
					of = append(of, e)
				}
			}
			return of
		}
		stored := len(mine(rapid.IntRange(0, len(all)).Draw(t, "received")))
		of := mine(len(all))
		witnessed := rapid.IntRange(0, stored).Draw(t, "witnessed")
		gone := stored > 0 && rapid.Bool().Draw(t, "gone")

		// The slot may stand anywhere before the first transaction that has an
		// event which is not stored, or not witnessed where the end is gone.
		safe := stored
		if gone {
			safe = witnessed
		}
		var confirmed envelope.LSN
		for _, e := range all {
			if safe < len(of) && e.pos.Commit >= of[safe].pos.Commit {
				break
			}
			if rapid.Bool().Draw(t, "confirm") {
				confirmed = e.pos.Commit + 4
			}
		}
		tail := dedup.Tail{Created: created, LastSeq: uint64(stored), Gone: gone}
		if stored > 0 && !gone {
			tail.Ours, tail.Position, tail.MsgID = true, of[stored-1].pos, of[stored-1].id
		}
		known := dedup.Known{Created: created, LastSeq: uint64(witnessed)}
		if witnessed > 0 {
			known.Position, known.MsgID = of[witnessed-1].pos, of[witnessed-1].id
		}
		mark, err := dedup.Start("S", tail, known, dedup.Slot{Confirmed: confirmed, WALEnd: 1 << 20, Epoch: 1})
		if err != nil {
			t.Fatalf("Start = %v", err)
		}
		next := stored
		for _, e := range all {
			if e.pos.Commit < confirmed {
				continue
			}
			if err := mark.Pass(e.pos, e.id); err != nil {
				t.Fatalf("Pass(%v) = %v", e.pos, err)
			}
			if e.stream != 0 {
				continue
			}
			if mark.Stored(e.pos) {
				continue
			}
			if next >= len(of) || of[next] != e {
				t.Fatalf("event %v is published as number %d of the stream; stored %d, witnessed %d, confirmed %v, gone %v", e.pos, next, stored, witnessed, confirmed, gone)
			}
			next++
		}
		if next != len(of) {
			t.Fatalf("%d of %d events are in the stream", next, len(of))
		}
		if !mark.Met() {
			t.Fatal("the mark is not met at the end")
		}
	})
}

func TestAnotherHistoryIsRecognised(t *testing.T) {
	t.Parallel()
	at := func(commit envelope.LSN) envelope.Position { return envelope.Position{Epoch: 1, Commit: commit} }
	ours := dedup.Tail{Created: created, LastSeq: 5, Ours: true, Position: at(0x500), MsgID: "five"}
	slot := dedup.Slot{Confirmed: 0x100, WALEnd: 0x900, Epoch: 1}
	rewound := func(t *testing.T, err error) {
		t.Helper()
		if _, ok := errors.AsType[*dedup.RewoundError](err); !ok {
			t.Errorf("error = %v, want a *RewoundError", err)
		}
	}
	t.Run("the WAL ends before the mark", func(t *testing.T) {
		t.Parallel()
		_, err := dedup.Start("S", ours, dedup.Known{}, dedup.Slot{Confirmed: 0x100, WALEnd: 0x400, Epoch: 1})
		rewound(t, err)
	})
	t.Run("the mark's epoch is unknown", func(t *testing.T) {
		t.Parallel()
		later := ours
		later.Position.Epoch = 2
		_, err := dedup.Start("S", later, dedup.Known{}, slot)
		rewound(t, err)
	})
	t.Run("the row at the mark has another id", func(t *testing.T) {
		t.Parallel()
		m, err := dedup.Start("S", ours, dedup.Known{}, slot)
		if err != nil {
			t.Fatal(err)
		}
		rewound(t, m.Pass(at(0x500), "six"))
	})
	t.Run("a row behind the mark comes first", func(t *testing.T) {
		t.Parallel()
		m, err := dedup.Start("S", ours, dedup.Known{}, slot)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Pass(at(0x400), "four"); err != nil {
			t.Fatal(err)
		}
		rewound(t, m.Pass(at(0x600), "six"))
	})
	t.Run("the server has sent everything and the mark was not in it", func(t *testing.T) {
		t.Parallel()
		m, err := dedup.Start("S", ours, dedup.Known{}, slot)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Reached(0x500); err != nil {
			t.Errorf("Reached(the mark's commit LSN) = %v, want nil: its transaction may be on its way", err)
		}
		rewound(t, m.Reached(0x501))
	})
}

func TestWhatAStreamLostIsRecognised(t *testing.T) {
	t.Parallel()
	known := dedup.Known{Created: created, LastSeq: 9, Position: envelope.Position{Epoch: 1, Commit: 0x100}, MsgID: "nine"}
	slot := dedup.Slot{Confirmed: 0x200, WALEnd: 0x900, Epoch: 1}
	for name, tail := range map[string]dedup.Tail{
		"it ends earlier":    {Created: created, LastSeq: 8, Ours: true, Position: envelope.Position{Epoch: 1, Commit: 0x80}, MsgID: "eight"},
		"it was made anew":   {Created: created.Add(time.Hour), LastSeq: 20, Ours: true},
		"it is new and void": {Created: created.Add(time.Hour)},
	} {
		_, err := dedup.Start("S", tail, known, slot)
		if _, ok := errors.AsType[*dedup.LostError](err); !ok {
			t.Errorf("%s: error = %v, want a *LostError", name, err)
		}
	}
}

func TestAnotherWriterIsRecognised(t *testing.T) {
	t.Parallel()
	slot := dedup.Slot{Confirmed: 0x200, WALEnd: 0x900, Epoch: 1}
	foreign := dedup.Tail{Created: created, LastSeq: 9, Subject: "x"}
	if m, err := dedup.Start("S", foreign, dedup.Known{}, slot); err != nil || !m.Met() {
		t.Errorf("first start on a stream with others' messages: %v, want no error and nothing to skip", err)
	}
	_, err := dedup.Start("S", foreign, dedup.Known{Created: created, LastSeq: 8, Position: envelope.Position{Epoch: 1, Commit: 1}}, slot)
	if _, ok := errors.AsType[*dedup.ForeignError](err); !ok {
		t.Errorf("a foreign message behind ours: error = %v, want a *ForeignError", err)
	}
}

// I1: where messages that are not live may stand behind what the witness knows,
// nobody counts them as live ones.
func TestWhatIsNotLiveIsNotCounted(t *testing.T) {
	t.Parallel()
	at := func(commit envelope.LSN) envelope.Position { return envelope.Position{Epoch: 1, Commit: commit} }
	known := dedup.Known{Created: created, LastSeq: 9, Position: at(0x100), Epoch: 1}
	for _, asides := range []bool{false, true} {
		known.Asides = asides
		m, err := dedup.Start("S", dedup.Tail{Created: created, LastSeq: 11, Gone: true}, known, dedup.Slot{Confirmed: 0x101, WALEnd: 0x900, Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i, commit := range []envelope.LSN{0x200, 0x300, 0x400} {
			if err := m.Pass(at(commit), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
			if got, want := m.Stored(at(commit)), i < 2 && !asides; got != want {
				t.Errorf("asides %v: event %d counts as stored: %v, want %v", asides, i, got, want)
			}
		}
	}
}
