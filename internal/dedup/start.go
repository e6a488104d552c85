package dedup

import (
	"fmt"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// Tail is the end of a stream as its leader tells it.
type Tail struct {
	Created time.Time
	LastSeq uint64
	// Gone says that the last message is no longer there: consumed, expired or
	// purged. Its sequence is still known.
	Gone bool
	// Ours says that the last message was written by this source.
	Ours bool
	// Position and MsgID are those of the last message's mark.
	Position envelope.Position
	MsgID    string
	// Subject is where the last message lies, to name a foreign one.
	Subject string
}

// Known is what the witness remembers of a stream; zero when it remembers
// nothing.
type Known struct {
	Created  time.Time
	LastSeq  uint64
	Position envelope.Position
	MsgID    string
	// From is, of a stream that others write to as well, a sequence behind
	// which every event stands that the slot may send again. Settled is the
	// position before which every event is stored or recorded.
	From    uint64
	Settled envelope.Position
	// Epoch is the database's history of when this was noted; 0: not known.
	Epoch uint32
	// Asides says that messages that are not live may stand behind LastSeq:
	// then nobody can count the live ones.
	Asides bool
}

// Slot is where the slot stands, read after it was taken.
type Slot struct {
	Confirmed envelope.LSN
	// WALEnd is the end of the server's WAL.
	WALEnd envelope.LSN
	// Epoch is the database's history of now.
	Epoch uint32
	// Left says of each earlier epoch that this history comes from where it
	// left it, that is, where a standby was promoted: what was committed below
	// belongs to both, what was committed from there on this database never
	// had.
	Left map[uint32]envelope.LSN
}

// Never says whether the database never had the event at pos, since a standby
// was promoted that lacked it.
func (s Slot) Never(pos envelope.Position) bool {
	left, known := s.Left[pos.Epoch]
	return known && pos.Commit >= left
}

// shares says whether the event at pos belongs to the history of now.
func (s Slot) shares(pos envelope.Position) bool {
	left, known := s.Left[pos.Epoch]
	return pos.Epoch == s.Epoch || known && pos.Commit < left
}

// end is where an earlier epoch was left.
func (s Slot) end(epoch uint32) envelope.Position {
	return envelope.Position{Epoch: epoch, Commit: s.Left[epoch]}
}

// A LostError says that the stream does not hold what it acknowledged.
type LostError struct {
	Stream string
	Known  Known
	Tail   Tail
	// Replaced says that another message stands at the known sequence: others
	// went on writing behind what was lost.
	Replaced bool
}

// Error names what was known and what is there.
func (e *LostError) Error() string {
	if !e.Known.Created.Equal(e.Tail.Created) {
		return fmt.Sprintf("stream %q was made anew at %s; the relay knew one of %s with sequence %d: what that one held is gone",
			e.Stream, stamp(e.Tail.Created), stamp(e.Known.Created), e.Known.LastSeq)
	}
	if e.Replaced {
		return fmt.Sprintf("stream %q has another message at sequence %d than the one that it acknowledged: the broker lost what it had stored, and others wrote behind",
			e.Stream, e.Known.LastSeq)
	}
	return fmt.Sprintf("stream %q ends at sequence %d and has acknowledged %d: the broker lost what it had stored",
		e.Stream, e.Tail.LastSeq, e.Known.LastSeq)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// A ForeignError says that somebody else writes to a stream of which the relay
// must be the only writer.
type ForeignError struct {
	Stream  string
	Seq     uint64
	Subject string
}

// Error names the stream, the message and the ways out.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("another writer on stream %q: message %d on subject %q is not of this relay; "+
		"stop that writer, give the relay a stream of its own, or set shared: true for this stream", e.Stream, e.Seq, e.Subject)
}

// Start decides where a stream goes on: from its end, from what the witness
// remembers, and from where the slot stands. The errors are *LostError,
// *ForeignError and *RewoundError; each stops delivery.
func Start(stream string, tail Tail, known Known, slot Slot) (*Mark, error) {
	if err := CheckLoss(stream, tail, known); err != nil {
		return nil, err
	}
	remembered := !known.Created.IsZero()
	switch {
	case tail.LastSeq == 0:
		return &Mark{met: true}, nil
	case tail.Gone && !remembered:
		// Nobody remembers what the stream held: a first start.
		return &Mark{met: true}, nil
	case tail.Gone:
		m := Mark{pos: known.Position, id: known.MsgID, unnamed: tail.LastSeq - known.LastSeq}
		if known.Asides {
			m.unnamed = 0 // rather a second time than not at all
		}
		if _, left := slot.Left[known.Epoch]; left && m.unnamed > 0 {
			m.until = slot.end(known.Epoch) // those that cannot be named may be of what this database never had
		}
		return markOf(stream, m, slot)
	case tail.Ours:
		return markOf(stream, Mark{pos: tail.Position, id: tail.MsgID}, slot)
	case !remembered || known.Position.IsZero() && known.LastSeq == tail.LastSeq:
		// The messages were there before the relay's first one.
		return &Mark{met: true}, nil
	default:
		return nil, &ForeignError{Stream: stream, Seq: tail.LastSeq, Subject: tail.Subject}
	}
}

// CheckLoss gives a *LostError if the stream does not hold what it acknowledged.
func CheckLoss(stream string, tail Tail, known Known) error {
	if !known.Created.IsZero() && (!known.Created.Equal(tail.Created) || tail.LastSeq < known.LastSeq) {
		return &LostError{Stream: stream, Known: known, Tail: tail}
	}
	return nil
}

// Remembered gives the mark of a stream whose end cannot be read now: what the
// witness remembers of it is stored, and must be met like any mark. More may be
// stored; that is for the session that can read the end.
func Remembered(stream string, known Known, slot Slot) (*Mark, error) {
	return markOf(stream, Mark{pos: known.Position, id: known.MsgID}, slot)
}

func markOf(stream string, m Mark, slot Slot) (*Mark, error) {
	if reason := beyond(m.pos, slot); reason != "" {
		return nil, &RewoundError{
			Stream: stream, Mark: m.pos, Seen: envelope.Position{Epoch: slot.Epoch, Commit: slot.WALEnd}, Reason: reason,
		}
	}
	never := slot.Never(m.pos)
	if never {
		// In a chain everything below it is stored.
		m = Mark{pos: slot.end(m.pos.Epoch), until: slot.end(m.pos.Epoch)}
	}
	left := !m.until.IsZero() && slot.Confirmed >= m.until.Commit
	if left {
		m.unnamed = 0
	}
	// The slot sends nothing again that was committed before its confirmed LSN.
	passed := left || m.pos.IsZero() || !never && !slot.shares(m.pos) || m.pos.Commit < slot.Confirmed
	m.started = passed
	m.met = passed && m.unnamed == 0
	return &m, nil
}

// beyond says why the database cannot have an event of the stream at pos, ""
// if it can.
func beyond(pos envelope.Position, slot Slot) string {
	switch {
	case pos.Epoch > slot.Epoch:
		return fmt.Sprintf("the stream's last event is of epoch %d, the database knows only %d", pos.Epoch, slot.Epoch)
	case pos.Epoch == slot.Epoch && slot.WALEnd < pos.Commit:
		return "the database's write-ahead log ends before the stream's last event"
	default:
		return ""
	}
}
