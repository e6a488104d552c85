package dedup

import (
	"fmt"

	"github.com/walrelay/walrelay/envelope"
)

const unsent = "the slot went past the mark without sending its event"

// A Mark is how far one stream is known to hold this source's live events.
//
// Skipping is proven: the last event skipped must be the stream's last live
// message, with the same position and the same id. Until then the mark is not
// met, and nothing may be confirmed.
type Mark struct {
	pos     envelope.Position
	id      string // empty: not known, the position alone must be met
	unnamed uint64 // events of this stream behind pos that are stored too, though nobody can say which but by counting
	met     bool
	started bool // a position at or behind pos was seen
	// until is where the database left the history that the mark is of: it
	// has no event of the stream from there on. Zero where it never left it.
	until envelope.Position
}

// Met says whether everything that the stream holds has been passed: from here
// on events are new.
func (m *Mark) Met() bool { return m.met }

// Position is the mark itself; zero when there was nothing to skip.
func (m *Mark) Position() envelope.Position { return m.pos }

// Pass tells the mark of the next row that the slot sent, of whatever stream,
// with its message id. It is an error when the row contradicts the mark.
func (m *Mark) Pass(pos envelope.Position, id string) error {
	if m.met || m.left(pos) || m.unnamed > 0 && m.started {
		return nil
	}
	switch c := pos.Compare(m.pos); {
	case c < 0:
		return nil
	case c > 0 && m.unnamed > 0:
		// The mark is the witness': its event itself may be confirmed already.
		m.started = true
		return nil
	case c > 0:
		return &RewoundError{Mark: m.pos, Seen: pos, Reason: unsent}
	case m.id != "" && id != m.id:
		return &RewoundError{Mark: m.pos, Seen: pos, Reason: fmt.Sprintf("the row at the mark has message id %q, the stream has %q", id, m.id)}
	}
	m.started = true
	m.met = m.unnamed == 0
	return nil
}

// left says that pos is beyond the history that the mark is of, which the mark
// is met by.
func (m *Mark) left(pos envelope.Position) bool {
	if m.until.IsZero() || pos.Compare(m.until) < 0 {
		return false
	}
	m.unnamed, m.met = 0, true
	return true
}

// Counts says whether Stored would decide by counting.
func (m *Mark) Counts(pos envelope.Position) bool { return m.unnamed > 0 && pos.Compare(m.pos) > 0 }

// Stored says whether the event at pos, which Pass has just been told of and
// which goes to this mark's stream, is in the stream already.
func (m *Mark) Stored(pos envelope.Position) bool {
	if pos.Compare(m.pos) <= 0 {
		return true
	}
	if m.unnamed == 0 {
		return false
	}
	m.unnamed--
	m.met = m.unnamed == 0
	return true
}

// Reached tells the mark that the server has sent everything that was committed
// up to walEnd. It is an error when the mark should have been met by then.
func (m *Mark) Reached(walEnd envelope.LSN) error {
	if !m.until.IsZero() && walEnd >= m.until.Commit {
		m.unnamed, m.met = 0, true
	}
	if m.met || m.unnamed > 0 || walEnd <= m.pos.Commit {
		return nil
	}
	return &RewoundError{Mark: m.pos, Seen: envelope.Position{Epoch: m.pos.Epoch, Commit: walEnd}, Reason: unsent}
}

// A RewoundError says that the stream holds events which this database does not
// send: a restored or rewound database, an old primary, or another one. Nothing
// may be published or confirmed.
type RewoundError struct {
	Stream     string
	Mark, Seen envelope.Position
	Reason     string
}

// Error names both positions and the way out.
func (e *RewoundError) Error() string {
	return fmt.Sprintf("this database is not the one that stream %q was filled from: %s (the stream holds events up to %s, the database is at %s); "+
		"connect the database that continues this history; or let this one continue it with: walrelay adopt --database", e.Stream, e.Reason, e.Mark, e.Seen)
}
