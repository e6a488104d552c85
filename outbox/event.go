package outbox

import (
	"fmt"
	"maps"

	"github.com/google/uuid"
)

// An Event is one row of the outbox.
type Event struct {
	// ID is the event's identity: the message id, and what consumers keep
	// as receipt. Zero means a new UUID of version 7; use [NewID] where the
	// id must be known.
	ID uuid.UUID
	// AggregateType is the kind of thing that the event is about, such as
	// order. It becomes a part of the subject: 1 to 255 bytes, dots only
	// between other characters.
	AggregateType string
	// AggregateID says which one, such as an order's number: 1 to 255
	// bytes. Events of one aggregate keep their order everywhere.
	AggregateID string
	// Type is the kind of the event, such as order.placed. It becomes a part
	// of the subject: 1 to 255 bytes, dots only between other characters.
	Type string
	// Payload is the body. json.RawMessage and []byte are taken as they are
	// and must be JSON where the column is; every other value is encoded
	// with encoding/json. Nil is JSON's null, and SQL's null where the
	// column is not JSON.
	Payload any
	// Headers are sent as headers of the message. Names are printable ASCII
	// without blanks and separators; Nats-*, Walrelay-*, Status and
	// Description are reserved, in any case.
	Headers map[string]string
}

// WithHeader gives a copy of the event that has the header too. The receiver is
// left as it is.
func (e Event) WithHeader(name, value string) Event {
	headers := make(map[string]string, len(e.Headers)+1)
	maps.Copy(headers, e.Headers)
	headers[name] = value
	e.Headers = headers
	return e
}

// WithID gives a copy of the event that has the id.
func (e Event) WithID(id uuid.UUID) Event {
	e.ID = id
	return e
}

// NewID makes an event id: a UUID of version 7, whose values ascend with time
// and so are cheap for an index.
func NewID() (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, fmt.Errorf("make an event id: %w", err)
	}
	return id, nil
}

// An EventType ties the payload's Go type to the names on the wire, so that one
// declaration serves every place that writes the event. Make it with [Type].
type EventType[T any] struct {
	aggregate, name string
}

// Type declares an event type: the aggregate's type, the event's, and the Go
// type of its payload. The names are checked when an event is appended.
//
//	var OrderPlacedEvent = outbox.Type[OrderPlaced]("order", "order.placed")
func Type[T any](aggregateType, eventType string) EventType[T] {
	return EventType[T]{aggregate: aggregateType, name: eventType}
}

// AggregateType gives the aggregate's type.
func (t EventType[T]) AggregateType() string { return t.aggregate }

// Name gives the event's type, as in [Event.Type].
func (t EventType[T]) Name() string { return t.name }

// New makes an event of this type about one aggregate.
func (t EventType[T]) New(aggregateID string, payload T) Event {
	return Event{AggregateType: t.aggregate, AggregateID: aggregateID, Type: t.name, Payload: payload}
}
