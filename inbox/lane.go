package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// lanes holds a consumer's messages until they are done, and says which may be
// applied side by side. Without an order each message has a lane of its own;
// with one, each aggregate.
//
// Invariant: of one lane at most one job is out, and it begins with the lane's
// lowest sequence.
type lanes struct {
	mu      sync.Mutex
	cond    *sync.Cond // work for a worker
	idle    *sync.Cond // a lane that somebody wants to hold
	ordered bool
	closed  bool
	paused  bool // nothing is handed out before all that is old is here
	byKey   map[string]*lane
	bySeq   map[uint64]*entry
	ready   []*lane
	active  int // entries that are not in a failing lane
	waiting int // entries that are
	freed   chan struct{}
	// finished counts events that are done.
	finished int
}

// A lane is what is to be applied one after the other.
type lane struct {
	key     string
	entries []*entry // by sequence
	// parked is the lowest sequence of the lane that is in the database;
	// zero if there is none.
	parked  uint64
	parks   uint64 // how many were parked since the session began
	running bool
	failing bool // its head has failed, and not yet gone
	blocked bool // until the timer ends
	queued  bool // in ready
	wanted  int  // by who wants to hold it
	timer   *time.Timer
}

// A job is the head of a lane, to be applied by one worker.
type job struct {
	lane    *lane
	entries []*entry
	// parked is the sequence of the one event to take from the database;
	// then entries is empty.
	parked uint64
}

func newLanes(ordered bool) *lanes {
	l := &lanes{ordered: ordered, paused: ordered, byKey: map[string]*lane{}, bySeq: map[uint64]*entry{}, freed: make(chan struct{}, 1)}
	l.cond, l.idle = sync.NewCond(&l.mu), sync.NewCond(&l.mu)
	return l
}

// aggregateKey names the aggregate of m, in at most what the table of held
// events takes.
func aggregateKey(m *Message) string {
	escaped := strings.NewReplacer(`\`, `\\`, `/`, `\/`)
	key := text(escaped.Replace(m.AggregateType) + "/" + m.AggregateID)
	const most = 1024
	if len(key) <= most {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// add takes a message in. Of one that is here already the new delivery is
// noted, to be acknowledged in its turn.
func (l *lanes) add(e *entry, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.bySeq[e.seq]; known != nil {
		if e.msg != nil {
			known.msg = e.msg
		}
		return
	}
	l.bySeq[e.seq] = e
	ln := l.lane(key)
	e.lane = ln
	at, _ := slices.BinarySearchFunc(ln.entries, e.seq, func(e *entry, seq uint64) int {
		switch {
		case e.seq < seq:
			return -1
		case e.seq > seq:
			return 1
		}
		return 0
	})
	ln.entries = slices.Insert(ln.entries, at, e)
	if ln.failing {
		l.waiting++
	} else {
		l.active++
	}
	l.offer(ln)
}

// lane gives the lane of a key, made if need be.
func (l *lanes) lane(key string) *lane {
	if !l.ordered {
		return &lane{}
	}
	ln := l.byKey[key]
	if ln == nil {
		ln = &lane{key: key}
		l.byKey[key] = ln
	}
	return ln
}

// park notes that the database holds an event of a lane.
func (l *lanes) park(key string, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lane(key)
	ln.parks++
	if ln.parked == 0 || seq < ln.parked {
		ln.parked = seq
	}
	l.offer(ln)
}

// unpark notes the lowest sequence of a lane that is still in the database.
// parks is how many were parked when that was read: it says false where more
// have come since, and is to be called again.
func (l *lanes) unpark(ln *lane, parks, next uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln.parks != parks {
		return false
	}
	ln.parked = next
	return true
}

func (l *lanes) parks(ln *lane) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ln.parks
}

// full says whether an event of this lane had better be parked: those who wait
// behind a failed one are most already, or others of the lane are parked and it
// would only take up room behind them.
func (l *lanes) full(key string, most, behind int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[key]
	return ln != nil && (ln.failing && l.waiting >= most || ln.parked != 0 && len(ln.entries) >= behind)
}

func (l *lanes) offer(ln *lane) {
	if ln.running || ln.blocked || ln.queued || ln.wanted > 0 || (len(ln.entries) == 0 && ln.parked == 0) {
		return
	}
	ln.queued = true
	l.ready = append(l.ready, ln)
	l.cond.Signal()
}

// take waits for work and gives up to n events: of one lane, and of further
// ones where n leaves room. It gives none once the lanes are closed.
func (l *lanes) take(n int) []job {
	l.mu.Lock()
	defer l.mu.Unlock()
	var jobs []job
	for len(jobs) == 0 {
		for (len(l.ready) == 0 || l.paused) && !l.closed {
			l.cond.Wait()
		}
		if l.closed {
			return nil
		}
		jobs = l.gather(n)
	}
	if len(l.ready) > 0 {
		l.cond.Signal()
	}
	return jobs
}

// gather takes the jobs of up to n events that are ready.
func (l *lanes) gather(n int) (jobs []job) {
	for n > 0 && len(l.ready) > 0 {
		ln := l.ready[0]
		if ln.running { // held since it was offered; it is offered again
			l.pop()
			continue
		}
		if ln.parked != 0 && (len(ln.entries) == 0 || ln.parked < ln.entries[0].seq) {
			if len(jobs) > 0 {
				break // by itself
			}
			l.pop()
			ln.running = true
			return []job{{lane: ln, parked: ln.parked}}
		}
		l.pop()
		ln.running = true
		k := min(n, len(ln.entries))
		for ln.parked != 0 && ln.entries[k-1].seq > ln.parked {
			k--
		}
		jobs = append(jobs, job{lane: ln, entries: slices.Clone(ln.entries[:k])})
		n -= k
	}
	return jobs
}

func (l *lanes) pop() {
	l.ready[0].queued = false
	l.ready[0] = nil
	l.ready = l.ready[1:]
}

// done takes an event out.
func (l *lanes) done(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.bySeq, e.seq)
	l.finished++
	ln := e.lane
	if i := slices.Index(ln.entries, e); i >= 0 {
		ln.entries = slices.Delete(ln.entries, i, i+1)
		if ln.failing {
			l.waiting--
		} else {
			l.active--
		}
	}
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// finish ends the job of a lane; for blocks it that long.
func (l *lanes) finish(ln *lane, block time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln.running = false
	if failing := block > 0; failing != ln.failing {
		ln.failing = failing
		n := len(ln.entries)
		if !failing {
			n = -n
		}
		l.active -= n
		l.waiting += n
	}
	switch {
	case block > 0 && !l.closed:
		ln.blocked = true
		ln.timer = time.AfterFunc(block, func() { l.unblock(ln) })
		if ln.wanted > 0 {
			l.idle.Broadcast()
		}
	default:
		l.settle(ln)
	}
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// settle offers a lane of which no job is out, wakes who wants to hold it, or
// forgets it.
func (l *lanes) settle(ln *lane) {
	switch {
	case ln.wanted > 0:
		l.idle.Broadcast()
	case ln.blocked:
	case len(ln.entries) == 0 && ln.parked == 0:
		if l.byKey[ln.key] == ln {
			delete(l.byKey, ln.key)
		}
	default:
		l.offer(ln)
	}
}

// hold waits until no job of a lane is out, and keeps the next ones back until
// release. It gives nil where ctx ends or the lanes are closed first.
func (l *lanes) hold(ctx context.Context, key string) *lane {
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.idle.Broadcast()
	})()
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lane(key)
	ln.wanted++
	for (ln.running || l.paused) && !l.closed && ctx.Err() == nil {
		l.idle.Wait()
	}
	ln.wanted--
	if ln.running || l.paused || l.closed || ctx.Err() != nil {
		if !ln.running {
			l.settle(ln)
		}
		return nil
	}
	ln.running = true
	return ln
}

func (l *lanes) release(ln *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln.running = false
	l.settle(ln)
}

func (l *lanes) unblock(ln *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ln.blocked || l.closed {
		return
	}
	ln.blocked = false
	l.offer(ln)
}

// open lets the workers begin.
func (l *lanes) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = false
	l.cond.Broadcast()
	l.idle.Broadcast()
}

// close wakes all who wait and stops all timers.
func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, ln := range l.byKey {
		if ln.timer != nil {
			ln.timer.Stop()
		}
	}
	l.cond.Broadcast()
	l.idle.Broadcast()
}

// deliveries gives what JetStream waits to hear of.
func (l *lanes) deliveries() []jetstream.Msg {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]jetstream.Msg, 0, len(l.bySeq))
	for _, e := range l.bySeq {
		if e.msg != nil {
			out = append(out, e.msg)
		}
	}
	return out
}

// delivery gives the latest delivery of e, or nil.
func (l *lanes) delivery(e *entry) jetstream.Msg {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.msg
}

func (l *lanes) has(seq uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bySeq[seq] != nil
}

// lowestReplayed gives the lowest sequence of what was found in the stream and
// is not done; zero if there is none.
func (l *lanes) lowestReplayed() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	lowest := uint64(0)
	for seq, e := range l.bySeq {
		if e.replayed && (lowest == 0 || seq < lowest) {
			lowest = seq
		}
	}
	return lowest
}

// room waits until half of the events that may be active are not, and gives how
// many that is: a request costs as much as several messages. It gives 0 when
// ctx ends.
func (l *lanes) room(ctx context.Context, most int) int {
	for {
		l.mu.Lock()
		free := most - l.active
		l.mu.Unlock()
		if free > 0 && free >= most/2 {
			return free
		}
		select {
		case <-ctx.Done():
			return 0
		case <-l.freed:
		}
	}
}

func (l *lanes) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.finished
}

func (l *lanes) sizes() (holding, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active + l.waiting, l.waiting
}
