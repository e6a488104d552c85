package publish

import (
	"context"
	"errors"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// A Stream publishes to one JetStream stream as a chain. It serves one session:
// Tail, Begin, then Run in its own goroutine and Send from others.
type Stream struct {
	publisher
	w       window
	limit   int // messages in flight allowed now
	pace    pace
	batches batcher
	baseID  identity // of the message at w.base, zero if not known
	seqBuf  []byte
	live    envelope.Position // of the last live event that was sent, or passed

	maxPayload int // of the server that is written to

	whyAt      time.Time // when sending stopped
	answeredAt time.Time
	headSince  time.Time
}

// New gives a stream that does nothing yet.
func New(conn *Conn, cfg Config) *Stream {
	s := &Stream{publisher: newPublisher(conn, cfg), pace: newPace(cfg.Window), batches: newBatcher(cfg.Batching)}
	s.templates.chained = true
	s.worthTelling = func() bool { return s.w.held() == 0 || !s.sending() }
	return s
}

// Begin sets where the chain goes on: after tail.LastSeq. lastAcked is the
// highest sequence of this very stream (same creation time) known to have been
// acknowledged, from the witness; 0 if unknown. A lower end is a gap, which Run
// declares. It is called once, before Run.
func (s *Stream) Begin(_ context.Context, tail Tail, lastAcked uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.base = tail.LastSeq
	s.acked = max(tail.LastSeq, lastAcked)
	s.created = tail.Created
	s.facts = tail.Facts
	s.baseID, s.live = tail.last, tail.Position
	s.cut = true // nothing in flight to wait for
	s.setState(StateResync, "")
}

// Send copies m and publishes it in its turn. It blocks while the window is
// full (when messages flow) or while the byte bound is; in an outage it queues
// up to that bound, and then waits or gives ErrNoRoom, as Config.GiveWay says.
// Position is the event's, tx what Stored is told.
func (s *Stream) Send(ctx context.Context, tx uint64, pos envelope.Position, m *Message) error {
	if m.MsgID == "" {
		return errNoID
	}
	m = s.signed(m)
	size := dataLen(m) + entryBytes
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.roomFor(size) {
		if err := s.wait(ctx, s.cfg.GiveWay); err != nil && !errors.Is(err, errWaited) {
			return err
		}
		if s.cfg.GiveWay > 0 && !s.troubleSince.IsZero() && time.Since(s.troubleSince) >= s.cfg.GiveWay && !s.roomFor(size) {
			return ErrNoRoom
		}
	}
	if s.stopErr != nil {
		return s.stopErr
	}
	e := s.w.push(m, s.templates.find(m.Headers))
	e.tx, e.pos = tx, pos
	s.live = pos
	s.pump()
	return nil
}

func (s *Stream) roomFor(size int) bool {
	switch {
	case s.stopErr != nil:
		return true // Send gives that error
	case s.w.bytes > 0 && s.w.bytes+size > s.cfg.MaxBytes:
		return false
	default:
		return !s.sending() || s.w.held() < s.window()
	}
}

// Drain waits until everything sent is stored and Stored was told, or Run has
// returned.
func (s *Stream) Drain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drain(ctx, func() bool { return s.w.held() > 0 })
}

func (s *Stream) sending() bool { return s.state == StateFlowing || s.state == StateProbing }

// headStored moves the head on, which the stream has at its place.
func (s *Stream) headStored(now time.Time) {
	e := s.w.at(s.w.head)
	s.lastPos = e.pos
	s.lastID = append(s.lastID[:0], e.id()...)
	s.lastAside = e.aside
	s.storedAt, s.headSince = now, now
	s.baseID = identity{}
	s.owe(e, now)
	s.w.stored()
	s.acked = max(s.acked, s.w.base)
}

// known identifies the message at the base.
func (s *Stream) known() identity {
	if s.baseID.msgID != "" || len(s.lastID) == 0 {
		return s.baseID
	}
	return identity{source: s.cfg.Source, msgID: string(s.lastID), pos: s.lastPos}
}
