package dedup_test

import (
	"errors"
	"testing"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
)

func pos(epoch uint32, commit envelope.LSN) envelope.Position {
	return envelope.Position{Epoch: epoch, Commit: commit}
}

// promoted is a database that left epoch 1 at 0x500.
func promoted(confirmed envelope.LSN) dedup.Slot {
	return dedup.Slot{Confirmed: confirmed, WALEnd: 0x900, Epoch: 2, Left: map[uint32]envelope.LSN{1: 0x500}}
}

// deliver gives the mark rows by their position, the id being the commit LSN,
// and returns those that are not passed over.
func deliver(t *testing.T, m interface {
	Pass(pos envelope.Position, id string) error
	Stored(pos envelope.Position) bool
}, rows ...envelope.Position,
) (published []envelope.Position) {
	t.Helper()
	for _, p := range rows {
		if err := m.Pass(p, p.Commit.String()); err != nil {
			t.Fatalf("Pass(%v) = %v", p, err)
		}
		if !m.Stored(p) {
			published = append(published, p)
		}
	}
	return published
}

// I1, I5: what was stored before the promotion is passed over and must be met,
// also in its old epoch.
func TestAMarkBelowTheSwitchPointMustBeMet(t *testing.T) {
	t.Parallel()
	tail := dedup.Tail{Created: created, LastSeq: 3, Ours: true, Position: pos(1, 0x400), MsgID: pos(1, 0x400).Commit.String()}
	m, err := dedup.Start("S", tail, dedup.Known{}, promoted(0x300))
	if err != nil || m.Met() {
		t.Fatalf("Start() = %v, met %v, want a mark that is not met yet", err, m.Met())
	}
	if got := deliver(t, m, pos(1, 0x380), pos(1, 0x400), pos(1, 0x480), pos(2, 0x600)); len(got) != 2 || got[0] != pos(1, 0x480) || !m.Met() {
		t.Errorf("published = %v, met %v, want the two behind the mark", got, m.Met())
	}
	if m, err = dedup.Start("S", tail, dedup.Known{}, promoted(0x300)); err != nil {
		t.Fatal(err)
	}
	if _, rewound := errors.AsType[*dedup.RewoundError](m.Pass(pos(2, 0x600), "x")); !rewound {
		t.Error("a row of the new epoch passes a mark of the old one that was not met, want a *RewoundError")
	}
	if m, err = dedup.Start("S", tail, dedup.Known{}, promoted(0x410)); err != nil || !m.Met() {
		t.Errorf("Start() with a slot beyond the mark = %v, met %v, want nothing to skip", err, m.Met())
	}
}

// I1, I5: a mark that the database never had is met by the switch point, and
// everything below it is stored.
func TestAMarkBeyondTheSwitchPointIsMetThere(t *testing.T) {
	t.Parallel()
	tail := dedup.Tail{Created: created, LastSeq: 3, Ours: true, Position: pos(1, 0x500), MsgID: "never"}
	begin := func(confirmed envelope.LSN) *dedup.Mark {
		m, err := dedup.Start("S", tail, dedup.Known{}, promoted(confirmed))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := begin(0x300)
	if got := deliver(t, m, pos(1, 0x400)); len(got) != 0 || m.Met() {
		t.Errorf("published = %v, met %v before the switch point, want none and not met", got, m.Met())
	}
	if got := deliver(t, m, pos(2, 0x500)); len(got) != 1 || !m.Met() {
		t.Errorf("published = %v, met %v behind the switch point, want the row and met", got, m.Met())
	}
	m = begin(0x300)
	if err := m.Reached(0x4FF); err != nil || m.Met() {
		t.Errorf("Reached(below) = %v, met %v, want not met", err, m.Met())
	}
	if err := m.Reached(0x500); err != nil || !m.Met() {
		t.Errorf("Reached(the switch point) = %v, met %v, want met", err, m.Met())
	}
	if m = begin(0x500); !m.Met() {
		t.Error("the slot is beyond the switch point and the mark is not met")
	}
}

// I1: where the stream's end is gone, what is counted may be of what the
// database never had.
func TestCountingEndsAtTheSwitchPoint(t *testing.T) {
	t.Parallel()
	known := dedup.Known{Created: created, LastSeq: 3, Position: pos(1, 0x300), Epoch: 1}
	tail := dedup.Tail{Created: created, LastSeq: 6, Gone: true}
	m, err := dedup.Start("S", tail, known, promoted(0x310))
	if err != nil || m.Met() {
		t.Fatalf("Start() = %v, met %v", err, m.Met())
	}
	if got := deliver(t, m, pos(1, 0x400), pos(2, 0x600), pos(2, 0x700)); len(got) != 2 || !m.Met() {
		t.Errorf("published = %v, met %v, want the two of the new epoch", got, m.Met())
	}
	known.Epoch = 2 // noted after the promotion: all of them are of this database
	if m, err = dedup.Start("S", tail, known, promoted(0x310)); err != nil {
		t.Fatal(err)
	}
	if got := deliver(t, m, pos(1, 0x400), pos(2, 0x600), pos(2, 0x700)); len(got) != 0 || !m.Met() {
		t.Errorf("published = %v, met %v, want none: three are stored", got, m.Met())
	}
}

// I1, I5.
func TestLanesPassOverWhatAPromotedDatabaseNeverHad(t *testing.T) {
	t.Parallel()
	held := map[envelope.Position]string{}
	for _, p := range []envelope.Position{pos(1, 0x280), pos(1, 0x400), pos(1, 0x500), pos(1, 0x600)} {
		held[p] = p.Commit.String()
	}
	for _, settled := range []envelope.Position{{}, pos(1, 0x300)} {
		s, err := dedup.NewSeen("S", held, settled, promoted(0x300))
		if err != nil || s.Met() {
			t.Fatalf("NewSeen() = %v, met %v, want 1/0/400 to be met", err, s.Met())
		}
		if got := deliver(t, s, pos(1, 0x380), pos(1, 0x400), pos(2, 0x600)); len(got) != 2 || !s.Met() {
			t.Errorf("published = %v, met %v, want all but the one that is held", got, s.Met())
		}
	}
	// What was settled beyond the switch point says nothing of this database.
	s, err := dedup.NewSeen("S", held, pos(1, 0x580), promoted(0x300))
	if err != nil || !s.Met() {
		t.Fatalf("NewSeen() = %v, met %v", err, s.Met())
	}
	if got := deliver(t, s, pos(1, 0x480), pos(2, 0x550)); len(got) != 1 || got[0] != pos(2, 0x550) {
		t.Errorf("published = %v, want the one of the new epoch", got)
	}
}
