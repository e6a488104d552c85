package router

import (
	"time"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
)

// A Row is one insert to route.
type Row struct {
	// Relation describes the columns of Tuple.
	Relation *decode.Relation
	Tuple    decode.Tuple
	// Position is the event's position; the zero value means not known, and
	// then the message has none.
	Position envelope.Position
	// CommittedAt is the time of the commit; zero means not known.
	CommittedAt time.Time
}

// A Verdict is what becomes of a row.
type Verdict uint8

// What becomes of a row. The zero value is none of them.
const (
	Publish   Verdict = iota + 1 // Message is complete
	Skip                         // its route says that it is not published
	Unrouted                     // no route takes it
	NotOutbox                    // its relation is none of the outbox tables
	Refused                      // it can never be published as it is; Refusal says why
)

// String gives the verdict in snake case, such as not_outbox.
func (v Verdict) String() string {
	switch v {
	case Publish:
		return "publish"
	case Skip:
		return "skip"
	case Unrouted:
		return "unrouted"
	case NotOutbox:
		return "not_outbox"
	case Refused:
		return "refused"
	}
	return "none"
}

// A Routed is what [Router.Route] made of a row. Its strings and slices point
// into the row and into the Router: they are valid until the next call.
type Routed struct {
	Verdict Verdict
	// Stream is the stream of the matched route, and StreamIndex its index
	// in [Router.Streams]. It is empty and -1 where no route matched. A
	// refused row has none only where its event type could not be read: it
	// may then belong to any stream.
	Stream      string
	StreamIndex int
	// Message is complete when the verdict is Publish. Of a refused row it
	// has what could be made: the body whenever the payload could be
	// decoded, the subject where it is legal. Of an unrouted one it has the
	// body alone, of a skipped one nothing.
	Message Message
	// Refusal is set when the verdict is Refused.
	Refusal Refusal
	// Event is what the row says of itself, as far as it could be read. It
	// is set for every verdict but NotOutbox.
	Event Event
}

// A Message is what is published.
type Message struct {
	Subject string
	// Headers are in the order they are written. The first one is always
	// Nats-Msg-Id; a publisher that writes it by itself takes the rest.
	Headers []envelope.Header
	Body    []byte
	// MsgID is the value of Nats-Msg-Id, see envelope.MsgID.
	MsgID string
	// HeaderBytes is the size of Headers on the wire, with the line that
	// opens the block and the one that closes it, without what the
	// publisher adds.
	HeaderBytes int
}

// An Event is what a row says of itself: for dead letters, logs and parked
// aggregates.
type Event struct {
	// ID is the event's id, the same as Message.MsgID; empty where the row
	// has no id.
	ID string
	// RowID is the id as PostgreSQL prints it.
	RowID string
	// AggregateType, AggregateID, EventType and CreatedAt are as PostgreSQL
	// prints them, not escaped; empty where null.
	AggregateType, AggregateID, EventType, CreatedAt string
	// Table is schema.name.
	Table string
	// Headers is the text of the headers column, which need not be JSON;
	// nil where null or not mapped.
	Headers []byte
	// Payload is the message's body; where a bytea could not be decoded, its
	// text. It is nil where null.
	Payload []byte
	// NullPayload says that the payload is SQL's null.
	NullPayload bool
}

// Further gives what a dead letter of the row must keep beside its [Event] to
// be routed again: created_at and the further mapped columns by name, each as
// PostgreSQL's text or nil for null. It is nil where the row cannot be read.
func (r *Router) Further(row *Row) map[string]*string {
	if row.Relation == nil {
		return nil
	}
	p, err := r.planFor(row.Relation)
	if err != nil || p.table == nil || len(row.Tuple) != p.columns {
		return nil
	}
	columns := map[string]*string{}
	keep := func(name string, at int) {
		switch {
		case at < 0:
		case row.Tuple[at].Kind == decode.Text:
			value := string(row.Tuple[at].Data)
			columns[name] = &value
		case row.Tuple[at].Kind == decode.Null:
			columns[name] = nil
		}
	}
	keep(p.table.cols.CreatedAt, p.createdAt)
	for i, e := range p.table.extras {
		keep(e.column, p.extras[i])
	}
	return columns
}

// A Refusal says why a row can never be published as it is.
type Refusal struct {
	Reason Reason
	// Detail tells the operator what is wrong with which object, and what to
	// do. It has neither payload nor header values.
	Detail string
}

// A Reason is why a row was refused: a stable word for metrics and for the
// table of dead letters.
type Reason string

// The reasons. docs/message.md lists what leads to each.
const (
	ReasonUndecodable     Reason = "undecodable"      // a mapped column's value is not what PostgreSQL sends under our settings
	ReasonNullID          Reason = "null_id"          // the id is null
	ReasonEmptyID         Reason = "empty_id"         // the id is the empty string
	ReasonInvalidSubject  Reason = "invalid_subject"  // an empty token, a wildcard, a blank or a control character
	ReasonSubjectTooLong  Reason = "subject_too_long" // more than MaxSubject bytes
	ReasonReservedSubject Reason = "reserved_subject" // under $ or an inbox: it would talk to the server or to the relay
	ReasonInvalidHeaders  Reason = "invalid_headers_json"
	ReasonReservedHeader  Reason = "reserved_header"  // a name that is the relay's, JetStream's or the route's
	ReasonInvalidHeader   Reason = "invalid_header"   // a name or value that does not survive the wire
	ReasonDuplicateHeader Reason = "duplicate_header" // one name twice, also in another case
	ReasonHeadersTooLarge Reason = "headers_too_large"
	ReasonTooLarge        Reason = "too_large" // body and headers over the server's or the stream's limit
)
