package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/walrelay/walrelay/envelope"
)

// An Aside says what a message is that does not come from the slot in its turn:
// healed, backfilled, replayed or requeued.
type Aside struct {
	// Origin is <kind>/<number>, see envelope.HeaderOrigin.
	Origin string
	// Late says that newer events of its aggregate may be stored.
	Late bool
	// Once says that it is enough to have been stored at some time: where the
	// stream remembers the id and has removed the message since, it counts as
	// stored. Otherwise it is sent again when the duplicate window has passed.
	Once bool
}

// AsideReserve is how many bytes of header an Aside adds at most.
const AsideReserve = len(envelope.HeaderOrigin) + len(envelope.HeaderMark) + len(envelope.HeaderLate) + 3*len(": \r\n") + 120

// Late is the header of an event that is stored behind newer ones of its
// aggregate, live or not.
var Late = envelope.Header{Name: envelope.HeaderLate, Value: "1"}

// LateReserve is how many bytes of header it adds.
const LateReserve = len(envelope.HeaderLate) + len(": 1\r\n")

// NewIDReserve is how many bytes of header a new message id adds at most: a
// uuid, beside the event's own id in a header of its own.
const NewIDReserve = len(envelope.HeaderEventID) + len(": \r\n") + 36

// headers gives m's with those of a.
func (a Aside) headers(m *Message, mark envelope.Position) []envelope.Header {
	list := make([]envelope.Header, 0, len(m.Headers)+3)
	list = append(list, m.Headers...)
	list = append(list, envelope.Header{Name: envelope.HeaderOrigin, Value: a.Origin})
	if !mark.IsZero() {
		list = append(list, envelope.Header{Name: envelope.HeaderMark, Value: mark.String()})
	}
	if a.Late {
		list = append(list, Late)
	}
	return list
}

// SendAside is Send for a message that is not live. It takes its place behind
// what was sent, and tells the position of the last live event before it, so
// that the stream's end stays a mark. It waits for room as long as it takes.
func (s *Stream) SendAside(ctx context.Context, tx uint64, m *Message, a Aside) error {
	if m.MsgID == "" {
		return errNoID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	size := dataLen(m) + AsideReserve + envelope.SignatureReserve + entryBytes
	for !s.roomFor(size) {
		if err := s.wait(ctx, 0); err != nil {
			return err
		}
	}
	if s.stopErr != nil {
		return s.stopErr
	}
	with := *m
	with.Headers = a.headers(m, s.live)
	if s.live.IsZero() {
		// Without a mark the position would be taken for one.
		with.Headers = slices.DeleteFunc(with.Headers, func(h envelope.Header) bool { return h.Name == envelope.HeaderPosition })
	}
	signed := s.signed(&with)
	e := s.w.push(signed, s.templates.find(signed.Headers))
	e.tx, e.pos, e.aside, e.once = tx, s.live, true, a.Once
	s.pump()
	return nil
}

// Passed says that the live event at pos is known to be stored, though it was
// not sent in this session.
func (s *Stream) Passed(pos envelope.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = pos
}

// SendAside is Send for a message that is not live.
func (l *Lanes) SendAside(ctx context.Context, tx uint64, m *Message, a Aside) error {
	if m.MsgID == "" {
		return errNoID
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	with := *m
	with.Headers = a.headers(m, envelope.Position{})
	signed := l.signed(&with)
	if err := l.room(ctx, parcelSize(signed), 0); err != nil {
		return err
	}
	p := newParcel(signed, l.templates.find(signed.Headers))
	p.tx, p.aside, p.once = tx, true, a.Once
	l.enter(m.Key, p)
	return nil
}

// Passed is for chains.
func (l *Lanes) Passed(envelope.Position) {}

// EachHeader tells visit of the messages behind sequence from, without bodies
// where there are many, and gives the end up to which it read. What the stream
// has removed is passed over. It asks for as long as it takes; an [*APIError]
// says that there is no such stream.
func (s *publisher) EachHeader(ctx context.Context, from uint64, visit func(StoredMessage) error) (last uint64, err error) {
	pause := newBackOff(reconnectFirst, s.cfg.RetryMost)
	var stopped error
	note := func(m StoredMessage) error {
		stopped = visit(m)
		return stopped
	}
	for {
		info, err := s.conn.StreamInfo(ctx, s.cfg.Stream)
		if err == nil {
			from, err = s.headers(ctx, info.Facts, from, info.LastSeq, note)
		}
		api, answered := errors.AsType[*APIError](err)
		switch {
		case err == nil:
			return info.LastSeq, nil
		case stopped != nil:
			return from, stopped
		case ctx.Err() != nil:
			return from, context.Cause(ctx)
		case answered && api.NotFound():
			return from, fmt.Errorf("read headers of stream %q: %w", s.cfg.Stream, err)
		}
		s.report(ctx, err.Error())
		sleep(ctx, pause.NextBackOff())
	}
}
