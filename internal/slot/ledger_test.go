package slot_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/slot"
)

// naive is the ledger written for the reader: it keeps everything for ever and
// walks the list each time.
type naive struct {
	entries []*naiveEntry
	txs     map[uint64]*naiveEntry
	held    bool
	best    envelope.LSN
}

type naiveEntry struct {
	lsn            envelope.LSN
	entered        bool
	events, stored int
	owed           int // of the events: left to another session, and not among those that Commit is told of
}

func (n *naive) confirmed() envelope.LSN {
	if n.held {
		return n.best
	}
	for _, e := range n.entries {
		if e.stored < e.events {
			break
		}
		n.best = max(n.best, e.lsn)
	}
	return n.best
}

// I2.
func TestTheLedgerNeverConfirmsPastAnOutstandingEvent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var ledger slot.Ledger
		model := naive{txs: map[uint64]*naiveEntry{}}
		var open uint64
		sent := map[uint64]int{} // events handed over and not yet reported as stored
		order := []uint64{}
		lsn := envelope.LSN(100)
		if rapid.Bool().Draw(t, "held") {
			ledger.Hold()
			model.held = true
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"begin", "event", "event", "commit", "keepalive", "stored", "stored", "release", "owe"}).Draw(t, "step") {
			case "begin":
				if open == 0 {
					open = ledger.Begin()
					model.txs[open] = &naiveEntry{}
				}
			case "event":
				if open != 0 {
					model.txs[open].events++
					if sent[open] == 0 {
						order = append(order, open)
					}
					sent[open]++
				}
			case "commit":
				if open != 0 {
					lsn += 10
					e := model.txs[open]
					e.lsn, e.entered = lsn, true
					model.entries = append(model.entries, e)
					ledger.Commit(lsn, e.events-e.owed)
					open = 0
				}
			case "keepalive":
				lsn += envelope.LSN(rapid.IntRange(0, 5).Draw(t, "ahead"))
				if !ledger.Owes() { // one before the owed transaction's commit could be confirmed, and is not
					model.entries = append(model.entries, &naiveEntry{lsn: lsn, entered: true})
				}
				ledger.Keepalive(lsn)
			case "stored":
				if len(order) == 0 {
					continue
				}
				// Several streams: any transaction can be reported next.
				i := rapid.IntRange(0, len(order)-1).Draw(t, "which")
				tx := order[i]
				n := rapid.IntRange(1, sent[tx]).Draw(t, "n")
				sent[tx] -= n
				model.txs[tx].stored += n
				if sent[tx] == 0 {
					order = append(order[:i], order[i+1:]...)
				}
				if err := ledger.Stored(tx, n); err != nil {
					t.Fatalf("Stored(%d, %d) = %v", tx, n, err)
				}
			case "owe":
				// An event that no stream takes in this session.
				if open != 0 && len(model.entries) > 20 {
					model.txs[open].events++
					model.txs[open].owed++
					ledger.Owe()
				}
			case "release":
				ledger.Release()
				model.held = false
			}
			if got, want := ledger.Confirmed(), model.confirmed(); got != want {
				t.Fatalf("Confirmed() = %v, want %v", got, want)
			}
		}
	})
}

// I2.
func TestA01AKeepaliveDoesNotOvertakeAnOpenTransaction(t *testing.T) {
	t.Parallel()
	var l slot.Ledger
	tx := l.Begin()
	l.Keepalive(0x900)
	if got := l.Confirmed(); got != 0x900 {
		t.Errorf("Confirmed() after a keepalive inside the first transaction = %v, want 0/900: it stands before the commit", got)
	}
	l.Commit(0xA00, 1)
	l.Keepalive(0xB00)
	if got := l.Confirmed(); got != 0x900 {
		t.Errorf("Confirmed() with an event outstanding = %v, want 0/900", got)
	}
	if err := l.Stored(tx, 1); err != nil {
		t.Fatal(err)
	}
	if got := l.Confirmed(); got != 0xB00 {
		t.Errorf("Confirmed() = %v, want 0/B00", got)
	}
}

func TestALedgerThatIsToldTooMuchSaysSo(t *testing.T) {
	t.Parallel()
	var l slot.Ledger
	tx := l.Begin()
	l.Commit(0x100, 2)
	if err := l.Stored(tx, 3); err == nil {
		t.Error("Stored(3 of 2) = nil, want an error")
	}
	if err := l.Stored(tx+1, 1); err == nil {
		t.Error("Stored for an unknown transaction = nil, want an error")
	}
}

func TestTheLedgerStaysSmallBehindABlockedTransaction(t *testing.T) {
	t.Parallel()
	var l slot.Ledger
	blocked := l.Begin()
	l.Commit(1, 1)
	for i := range 1_000_000 {
		tx := l.Begin()
		l.Commit(envelope.LSN(i+2), 1)
		if err := l.Stored(tx, 1); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.Len(); got > 1<<15 {
		t.Errorf("Len() = %d after a million finished transactions behind a blocked one, want at most %d", got, 1<<15)
	}
	if err := l.Stored(blocked, 1); err != nil {
		t.Fatal(err)
	}
	if got := l.Confirmed(); got != 1_000_001 {
		t.Errorf("Confirmed() = %d, want 1000001", got)
	}
}

func BenchmarkLedger(b *testing.B) {
	b.ReportAllocs()
	var l slot.Ledger
	for i := 0; b.Loop(); i++ {
		tx := l.Begin()
		l.Commit(envelope.LSN(i), 1)
		_ = l.Stored(tx, 1)
	}
}
