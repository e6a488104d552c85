package slot

import (
	"fmt"
	"slices"

	"github.com/walrelay/walrelay/envelope"
)

// A Ledger orders what one session received and tells which LSN is safe to
// confirm. It is a pure value: the caller guards it.
//
// A transaction enters at its commit, with the number of its events that are
// not yet stored or dead-lettered. A keepalive enters with none, also one that
// comes inside a transaction, whose commit then stands behind it. The head
// leaves when nothing of it is outstanding.
//
// Invariant: Confirmed never reaches the end LSN of a transaction that still
// has an outstanding event, nor anything received after it.
type Ledger struct {
	entries   []entry
	head      int
	openTx    uint64
	early     int // events of the open transaction that were stored before its commit came
	lastTx    uint64
	held      bool
	owedFrom  uint64 // the first transaction with an event that this session leaves to another one; zero: none
	confirmed envelope.LSN
}

type entry struct {
	lsn     envelope.LSN
	tx      uint64 // zero: a keepalive, or entries merged because nothing of them is outstanding
	pending int
}

// compactAt is the number of entries from which the ledger looks for
// neighbours to merge. Entries are small; what bounds their number otherwise is
// the number of events in flight.
const compactAt = 1 << 14

// Begin opens a transaction and returns its number, by which its events are
// reported as stored. Numbers rise from 1.
func (l *Ledger) Begin() uint64 {
	l.lastTx++
	l.openTx, l.early = l.lastTx, 0
	return l.openTx
}

// Commit enters the open transaction with its end LSN and the number of its
// events for which Stored was or will be called.
func (l *Ledger) Commit(end envelope.LSN, events int) {
	pending := events - l.early
	tx := l.openTx
	l.openTx, l.early = 0, 0
	if l.owedFrom != 0 {
		return
	}
	l.push(entry{lsn: end, tx: tx, pending: pending})
}

// Keepalive enters the server's WAL end. It can be confirmed only when
// everything received before it is stored, so it takes its turn.
func (l *Ledger) Keepalive(walEnd envelope.LSN) {
	if l.owedFrom == 0 {
		l.push(entry{lsn: walEnd})
	}
}

// Owe says that an event of the open transaction is left to a later session.
// From this transaction on nothing can be confirmed in this one, so nothing
// from it on is kept: whatever the ledger is told of it is let pass.
func (l *Ledger) Owe() {
	if l.owedFrom == 0 {
		l.owedFrom = l.openTx
	}
}

// Owes says whether Owe was called.
func (l *Ledger) Owes() bool { return l.owedFrom != 0 }

// Stored says that n more events of transaction tx are stored or
// dead-lettered. It is an error to report more than the transaction has, or a
// transaction that the ledger does not hold: confirming goes wrong from there,
// so the session must end.
func (l *Ledger) Stored(tx uint64, n int) error {
	switch {
	case l.owedFrom != 0 && tx >= l.owedFrom:
		return nil
	case tx != 0 && tx == l.openTx:
		l.early += n
		return nil
	}
	i, ok := l.find(tx)
	if !ok || l.entries[i].pending < n {
		return fmt.Errorf("ledger: %d stored events reported for transaction number %d, which does not wait for them", n, tx)
	}
	l.entries[i].pending -= n
	if i == l.head {
		l.pop()
	}
	return nil
}

// Hold keeps everything in the ledger until Release: nothing is confirmed
// before the mark of each stream is met.
func (l *Ledger) Hold() { l.held = true }

// Release ends Hold.
func (l *Ledger) Release() {
	l.held = false
	l.pop()
}

// Confirmed is the LSN to confirm: that of the entry which left last. Zero
// means that nothing may be confirmed yet.
func (l *Ledger) Confirmed() envelope.LSN { return l.confirmed }

// Len is the number of entries that wait.
func (l *Ledger) Len() int { return len(l.entries) - l.head }

func (l *Ledger) push(e entry) {
	// Behind an entry of which nothing is outstanding, another such entry adds
	// only its LSN: both leave together.
	if n := len(l.entries); n > l.head && e.pending == 0 && l.entries[n-1].pending == 0 {
		l.entries[n-1].lsn = max(l.entries[n-1].lsn, e.lsn)
		l.pop()
		return
	}
	if len(l.entries) == cap(l.entries) {
		l.makeRoom()
	}
	l.entries = append(l.entries, e)
	l.pop()
}

func (l *Ledger) pop() {
	if l.held {
		return
	}
	for l.head < len(l.entries) && l.entries[l.head].pending == 0 {
		l.confirmed = max(l.confirmed, l.entries[l.head].lsn)
		l.head++
	}
	if l.head == len(l.entries) {
		l.entries, l.head = l.entries[:0], 0
	}
}

// makeRoom moves the entries to the front, merges neighbours of which nothing
// is outstanding when there are many, and grows unless half of the room is free
// then: so each push costs a constant number of copies on average.
func (l *Ledger) makeRoom() {
	kept := l.entries[:0]
	merge := len(l.entries)-l.head >= compactAt
	for _, e := range l.entries[l.head:] {
		if n := len(kept); merge && n > 0 && e.pending == 0 && kept[n-1].pending == 0 {
			kept[n-1].lsn = max(kept[n-1].lsn, e.lsn)
			continue
		}
		kept = append(kept, e)
	}
	if len(kept) > cap(kept)/2 {
		kept = slices.Grow(kept, max(64, cap(kept)))
	}
	l.entries, l.head = kept, 0
}

// find gives the index of transaction tx's entry. Transactions enter in the
// order of their numbers; entries without one lie between them, so the search
// steps over those.
func (l *Ledger) find(tx uint64) (int, bool) {
	low, high := l.head, len(l.entries)
	for low < high {
		mid := (low + high) / 2
		at := mid
		for at < high && l.entries[at].tx == 0 {
			at++
		}
		switch {
		case at == high:
			high = mid
		case l.entries[at].tx == tx:
			return at, true
		case l.entries[at].tx < tx:
			low = at + 1
		default:
			high = mid
		}
	}
	return 0, false
}
