package publish

import (
	"context"
	"errors"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// aheadWindows is how many windows of messages that can move are taken while
// messages flow: enough to find other keys behind a busy one, and few enough
// to be stored within a drain. What is held back does not count.
const aheadWindows = 16

// Lanes publishes to one JetStream stream that others write to as well. Of the
// messages with one [Message.Key] at most one is in flight, so that a second
// attempt cannot be overtaken by the next one; keys go side by side, up to
// Config.Window. It serves one session: Tail, ReadTail, Begin, then Run in its
// own goroutine and Send from others.
//
// Order is per key, and Stored is told in no order over keys. What holds back
// one event or one subject holds back its keys only; what is the connection's
// or the whole stream's trouble is waited for by all.
//
// An attempt without an answer may be stored. It is repeated with the same id
// while the stream surely remembers that, and otherwise looked for in the
// stream, and in what its leader has taken and not stored yet. On a stream that
// removes messages by itself ([StreamFacts.Removes]), one that is gone cannot be
// found: there the duplicate window limits how long a repetition is recognised.
type Lanes struct {
	publisher
	lanes  map[string]*lane
	flight map[uint64]*lane // by the number of the attempt
	number uint64           // of the last attempt
	// Lanes that are in no hold and not in flight are in one of these.
	ready, judged, doubted, refused laneList
	holds                           holds
	toRefuse                        chan struct{} // wakes who refuses

	held, bytes           int // messages in all lanes and what they take
	stuckLanes, stuckHeld int // lanes that wait for more than their turn, and their messages
	limit                 int // messages in flight allowed now
	open                  bool
	proven                bool // an answer came since sending began anew
	end                   uint64
	floors                floors

	// What another process of our source may have sent before, see taken.go.
	read    uint64            // how far the stream was read for it
	hasRead bool              // by ReadTail, not only taken for read by Begin
	sure    bool              // all of it that can come stands in what was read
	arrived map[string]uint64 // by id, the sequence of what came behind the tail

	topSeq uint64   // of our source's last message in the tail that was read
	top    identity // of the same
}

// NewLanes gives lanes that do nothing yet. Config.Refused is called from a
// goroutine of its own: while it blocks, only its event's key waits.
func NewLanes(conn *Conn, cfg Config) *Lanes {
	if cfg.Window <= 0 {
		cfg.Window = windowFirst
	}
	l := &Lanes{
		publisher: newPublisher(conn, cfg), lanes: map[string]*lane{}, flight: map[uint64]*lane{},
		holds: newHolds(), toRefuse: make(chan struct{}, 1),
	}
	l.worthTelling = func() bool { return l.held == 0 || !l.open }
	return l
}

// Begin sets what is known of the stream. lastAcked is the highest sequence of
// this very stream known to have been acknowledged, from the witness; 0 if
// unknown. A lower end is a gap, which Run declares. It is called once, before
// Run.
func (l *Lanes) Begin(_ context.Context, tail Tail, lastAcked uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked, l.end = lastAcked, tail.LastSeq
	l.created, l.facts = tail.Created, tail.Facts
	if !l.hasRead {
		l.read = tail.LastSeq
	}
	l.setState(StateResync, "")
}

// Floor gives a sequence behind which every event at next or a later position
// stands that is stored. With it in the witness beside the commit LSN of next,
// the next session's ReadTail sees all that PostgreSQL may send again. Calls
// must have ascending positions; what is before next is forgotten.
func (l *Lanes) Floor(next envelope.Position) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.floors.at(next)
}

// Send copies m and publishes it when it is its key's turn. It blocks while the
// byte bound is reached, whatever holds the messages up, and while messages
// flow also when it is far ahead of the window.
func (l *Lanes) Send(ctx context.Context, tx uint64, pos envelope.Position, m *Message) error {
	if m.MsgID == "" {
		return errNoID
	}
	m = l.signed(m)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.room(ctx, parcelSize(m), l.cfg.GiveWay); err != nil {
		return err
	}
	p := newParcel(m, l.templates.find(m.Headers))
	p.tx, p.pos = tx, pos
	l.floors.sent(pos, l.acked)
	l.enter(m.Key, p)
	return nil
}

// room waits until there is some. With giveWay it gives ErrNoRoom where nothing
// has flowed for that long. The mutex is held by the caller and given up
// meanwhile.
func (l *Lanes) room(ctx context.Context, size int, giveWay time.Duration) error {
	for !l.roomFor(size) {
		if err := l.wait(ctx, giveWay); err != nil && !errors.Is(err, errWaited) {
			return err
		}
		if giveWay > 0 && !l.troubleSince.IsZero() && time.Since(l.troubleSince) >= giveWay && !l.roomFor(size) {
			return ErrNoRoom
		}
	}
	return l.stopErr
}

// enter puts a message behind the others of its key.
func (l *Lanes) enter(key string, p *parcel) {
	ln := l.lanes[key]
	if ln == nil {
		ln = &lane{key: string(append([]byte{}, key...))}
		l.lanes[ln.key] = ln
	}
	ln.push(p)
	l.held++
	l.bytes += parcelBytes + len(p.data) + len(ln.key)
	if ln.stuck {
		l.stuckHeld++
	}
	if ln.n == 1 {
		l.setReady(ln)
		l.pump()
	}
}

func (l *Lanes) roomFor(size int) bool {
	switch {
	case l.stopErr != nil:
		return true // Send gives that error
	case l.bytes > 0 && l.bytes+size > l.cfg.MaxBytes:
		return false
	default:
		return !l.open || l.held-l.stuckHeld < aheadWindows*l.cfg.Window
	}
}

// Drain waits until everything sent is stored and Stored was told, or Run has
// returned.
func (l *Lanes) Drain(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drain(ctx, func() bool { return l.held > 0 })
}

// Status gives what is known now. LastSeq is the highest sequence acknowledged,
// Position and MsgID are of the message there. It can take as long as a write
// to a full socket, five seconds at most.
func (l *Lanes) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.status()
	st.InFlight, st.Queued, st.Bytes = len(l.flight), l.held-len(l.flight), l.bytes
	if l.open && l.stuckLanes > 0 {
		st.Reason = l.stuckReason(st.Reason)
	}
	for _, ln := range l.flight {
		if at := ln.first.sentAt; st.UnacknowledgedSince.IsZero() || at.Before(st.UnacknowledgedSince) {
			st.UnacknowledgedSince = at
		}
	}
	return st
}

// assess shows what follows from what waits. While sending has stopped, the
// recovery shows what it does.
func (l *Lanes) assess() {
	switch {
	case !l.open || l.state == StateFlowing && l.stuckLanes == 0:
		return
	case l.holds.shown != nil:
		l.setState(StateWaiting, l.holds.shown.reason)
	case l.stuckLanes > 0:
		l.setState(StateRefusing, "an event is being made a dead letter")
	case !l.proven && l.held > 0:
		l.setState(StateProbing, l.reason)
	default:
		l.setState(StateFlowing, "")
	}
}

// setReady puts a lane that is in no list behind the others that can be sent.
func (l *Lanes) setReady(ln *lane) {
	ln.phase = laneReady
	l.ready.pushBack(ln)
}

// next takes the first message of ln out, which is stored or a dead letter, and
// goes on with the next one.
func (l *Lanes) next(ln *lane, stored bool) {
	ln.first.leaves(stored)
	l.bytes -= ln.pop()
	l.held--
	if ln.stuck {
		l.stuckHeld--
	}
	l.release(ln)
	l.setStuck(ln, false)
	if ln.n == 0 {
		delete(l.lanes, ln.key)
		return
	}
	l.setReady(ln)
}

// stored takes out the first message of ln, which stands at seq.
func (l *Lanes) stored(ln *lane, seq uint64) {
	p := ln.first
	l.storedAt = time.Now()
	if seq > l.acked {
		l.acked, l.lastAside = seq, p.aside
		if !p.aside {
			l.lastPos = p.pos
		}
		l.lastID = append(l.lastID[:0], p.id()...)
		l.end = max(l.end, seq)
	}
	l.owe(&p.entry, l.storedAt)
	l.next(ln, true)
}
