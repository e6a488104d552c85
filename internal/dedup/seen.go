package dedup

import (
	"fmt"
	"slices"

	"github.com/walrelay/walrelay/envelope"
)

// A Seen is which of this source's live events one stream holds, where they
// stand in no order and other messages in between.
//
// As with a [Mark], skipping is proven: each event that the stream holds must
// be met at its position with its id before anything may be confirmed.
type Seen struct {
	stream  string
	settled envelope.Position // events before it are stored or recorded
	reached bool              // the slot sends nothing any more that is before it
	epoch   uint32            // of now
	events  []seenEvent       // in the order of position, those before next are dealt with
	next    int
	stored  bool // the row that Pass was told of last
}

type seenEvent struct {
	pos envelope.Position
	id  string
}

// NewSeen decides from seen, which has the message ids of the events in the
// stream by position. Events before settled, the witness' confirmed LSN in its
// epoch, are known to be stored or recorded; seen may leave them out. Those that
// the database never had are passed over. An error is a *RewoundError.
func NewSeen(stream string, seen map[envelope.Position]string, settled envelope.Position, slot Slot) (*Seen, error) {
	s := &Seen{stream: stream, settled: settled, epoch: slot.Epoch}
	// The witness can be ahead of the slot: what it has confirmed to itself need
	// not have come through to PostgreSQL.
	s.reached = slot.Confirmed >= settled.Commit || !slot.shares(settled)
	for pos, id := range seen {
		if reason := beyond(pos, slot); reason != "" {
			return nil, s.rewound(pos, envelope.Position{Epoch: slot.Epoch, Commit: slot.WALEnd}, reason)
		}
		// The slot sends nothing again that was committed before its
		// confirmed LSN.
		if slot.shares(pos) && pos.Commit >= slot.Confirmed && pos.Compare(settled) >= 0 {
			s.events = append(s.events, seenEvent{pos, id})
		}
	}
	slices.SortFunc(s.events, func(a, b seenEvent) int { return a.pos.Compare(b.pos) })
	return s, nil
}

// Met says whether everything that the stream holds has been passed, and all that
// is settled.
func (s *Seen) Met() bool { return s.reached && s.next == len(s.events) }

// Position is that of the last event to be met; zero where there is none.
func (s *Seen) Position() envelope.Position {
	if len(s.events) == 0 {
		return envelope.Position{}
	}
	return s.events[len(s.events)-1].pos
}

// Pass tells of the next row that the slot sent, of whatever stream, with its
// message id. It is an error when the row contradicts what the stream holds.
func (s *Seen) Pass(pos envelope.Position, id string) error {
	s.stored = pos.Compare(s.settled) < 0
	s.reached = s.reached || !s.stored
	for ; s.next < len(s.events); s.next++ {
		switch e := s.events[s.next]; {
		case e.pos.Compare(pos) > 0:
			return nil
		case e.pos == pos && e.id == id:
			s.stored = true
		case e.pos == pos:
			return s.rewound(e.pos, pos, fmt.Sprintf("the row there has message id %q, the stream has %q", id, e.id))
		default:
			return s.rewound(e.pos, pos, unsent)
		}
	}
	return nil
}

// Stored says whether the event at pos, which Pass has just been told of and
// which goes to this stream, is in the stream already.
func (s *Seen) Stored(envelope.Position) bool { return s.stored }

// Counts is always false: each event is recognised by itself.
func (s *Seen) Counts(envelope.Position) bool { return false }

// Reached tells that the server has sent everything that was committed up to
// walEnd. It is an error when an event should have been met by then.
func (s *Seen) Reached(walEnd envelope.LSN) error {
	s.reached = s.reached || walEnd >= s.settled.Commit
	if s.next == len(s.events) || walEnd <= s.events[s.next].pos.Commit {
		return nil
	}
	return s.rewound(s.events[s.next].pos, envelope.Position{Epoch: s.epoch, Commit: walEnd}, unsent)
}

func (s *Seen) rewound(mark, seen envelope.Position, reason string) error {
	return &RewoundError{Stream: s.stream, Mark: mark, Seen: seen, Reason: reason}
}
