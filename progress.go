package walrelay

import (
	"sync"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

const (
	// stalledAfter is how long nothing may move, though there is something to
	// do, before the relay says that it is stalled. PostgreSQL has been seen to
	// stand still for half of that with data flushed.
	stalledAfter = time.Minute
	// withheldAfter is the same where the cause is known: the relay says so once
	// PostgreSQL has been seen to wait for a standby, as it always does for a
	// moment.
	withheldAfter = 5 * time.Second
	// pageHeader is how far the server's end can lie behind the last byte that
	// is ever sent: where a page has just begun its header has no record.
	pageHeader = 64
)

// A progress knows of one session for how long nothing has moved, and for how
// long the server's WAL has gone on without being done with: received, and its
// events stored. A slot that sends nothing looks like one that has nothing to
// send; the difference is in what the server says of its own end.
//
// What is done with may be confirmed later, see cover: that is no standing still.
//
// Invariant: ends are in the order of their times, none is reached by done.
type progress struct {
	mu       sync.Mutex
	moved    time.Time // when received, stored or done last changed
	received uint64
	stored   uint64
	done     envelope.LSN
	ends     []walEnd
}

// A walEnd is the end of the server's WAL at some time.
type walEnd struct {
	lsn envelope.LSN
	at  time.Time
}

// mostEnds bounds ends: the oldest is what matters, the others only serve to
// find the next oldest.
const mostEnds = 64

// note takes where the session stands now.
func (p *progress) note(received, stored uint64, done envelope.LSN, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if received == p.received && stored == p.stored && done == p.done && !p.moved.IsZero() {
		return
	}
	p.received, p.stored, p.done, p.moved = received, stored, done, now
	p.settle()
}

// seen takes the end of the server's WAL.
func (p *progress) seen(end envelope.LSN, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ends) == mostEnds {
		p.ends = append(p.ends[:1], p.ends[2:]...) // the oldest stays
	}
	p.ends = append(p.ends, walEnd{lsn: end, at: now})
	p.settle()
}

func (p *progress) settle() {
	n := 0
	for n < len(p.ends) && p.ends[n].lsn <= p.done+pageHeader {
		n++
	}
	if n > 0 {
		p.ends = append(p.ends[:0], p.ends[n:]...)
	}
}

// behind is since when there is WAL that is not done with, zero when there is
// none that is known, and still since when nothing has moved while there was;
// zero where nothing waits.
func (p *progress) behind() (since, still time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ends) == 0 {
		return time.Time{}, time.Time{}
	}
	since, still = p.ends[0].at, p.moved
	if since.After(still) {
		still = since
	}
	return since, still
}
