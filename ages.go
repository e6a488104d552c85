package walrelay

import (
	"sync"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// ages knows when the oldest transaction was committed that is not settled. It
// outlives sessions: what one has not settled is still owed.
//
// Invariant: the spans lie in the order of their LSNs, and each covers all
// transactions that were received from its first one to its last.
type ages struct {
	mu    sync.Mutex
	spans []ageSpan
}

// ageSpan is one second's worth of transactions, which bounds their number.
type ageSpan struct {
	first, last envelope.LSN // commit LSNs
	at          time.Time    // commit time of the first
}

const ageSpanLength = time.Second

// began notes a transaction and drops what lies below safe.
func (a *ages) began(safe, commit envelope.LSN, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(safe)
	a.received(commit, at)
}

// received notes a transaction when it begins.
func (a *ages) received(commit envelope.LSN, at time.Time) {
	if n := len(a.spans); n > 0 {
		switch {
		case commit < a.spans[0].first:
			a.spans = a.spans[:0] // all of it is sent again
		case commit <= a.spans[n-1].last:
			return
		case at.Sub(a.spans[n-1].at) < ageSpanLength:
			a.spans[n-1].last = commit
			return
		}
	}
	a.spans = append(a.spans, ageSpan{first: commit, last: commit, at: at})
}

// settle drops what lies below an LSN that may be confirmed.
func (a *ages) settle(safe envelope.LSN) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(safe)
}

func (a *ages) drop(safe envelope.LSN) {
	n := 0
	for n < len(a.spans) && a.spans[n].last < safe {
		n++
	}
	if n > 0 {
		a.spans = append(a.spans[:0], a.spans[n:]...)
	}
}

// oldest is the commit time of the oldest transaction that is not settled.
func (a *ages) oldest() (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.spans) == 0 {
		return time.Time{}, false
	}
	return a.spans[0].at, true
}
