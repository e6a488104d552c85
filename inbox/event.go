package inbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
)

// A Message is one event as it came, before its payload is decoded. Fields
// that the message does not tell are zero.
type Message struct {
	// ID is the event id, the same in every delivery, replay and requeue.
	// Receipts are keyed by it.
	ID string
	// Source names the relay's source.
	Source string
	// Position orders the events of one source by commit.
	Position envelope.Position
	// AggregateType and AggregateID name what the event is about. With
	// [PerAggregate], events that share both are applied one by one.
	AggregateType, AggregateID string
	// Type is the event type, which chooses the handler.
	Type string
	// CreatedAt is the row's created_at as PostgreSQL printed it. It is text
	// because PostgreSQL knows times (infinity, BC) that Go does not.
	CreatedAt string
	// CommittedAt is the time of the commit.
	CommittedAt time.Time
	// Origin is <kind>/<job> on a message that the slot did not deliver in
	// its turn: healed, replayed, requeued, released or backfilled.
	Origin string
	// Late says that newer events of the aggregate were stored before this
	// one, or may have been applied before it: a dead letter that was
	// requeued. A handler that sets state wants [Message.Version] then.
	Late bool
	// Null says that the payload is SQL's null, as against an empty one.
	Null bool
	// Raw is the payload, byte for byte. It must not be changed.
	Raw []byte
	// Headers are the message's headers, those of the outbox row and
	// walrelay's own. They must not be changed.
	Headers nats.Header
	// Subject is the message's subject.
	Subject string
	// Stream and Sequence say where the message is stored.
	Stream   string
	Sequence uint64
	// Deliveries counts how often JetStream has delivered the message to
	// this consumer, this time included. It counts also what was no try,
	// such as a delivery to a process that was stopped: attempts are counted
	// apart. It is 0 where the message did not come from JetStream's
	// consumer.
	Deliveries uint64
}

// An Event is a Message with its payload decoded into Data.
type Event[T any] struct {
	Message
	// Data is the payload, decoded from JSON. It is T's zero value for a
	// payload that is null. Where T is []byte or json.RawMessage it is the
	// payload as it is, JSON or not.
	Data T
}

// errForeign is why a message is not an event of walrelay.
var errForeign = errors.New("not an event of walrelay")

// read fills in what the headers of m tell. Without an event id and a type a
// message is foreign, and gets an id that names its place.
func (m *Message) read(complete func(*Message)) error {
	e, err := envelope.Read(func(name string) string { return first(m.Headers, name) })
	m.ID, m.Source, m.Position = e.ID, e.Source, e.Position
	m.AggregateType, m.AggregateID, m.Type = e.AggregateType, e.AggregateID, e.EventType
	m.CreatedAt, m.CommittedAt = e.CreatedAt, e.CommittedAt
	m.Origin, m.Late, m.Null = e.Origin, e.Late, e.NullPayload
	if complete != nil {
		complete(m)
	}
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", errForeign, err)
	case !plain(m.ID):
		m.ID = ""
		err = fmt.Errorf("%w: its id is not text of 1 to %d bytes", errForeign, maxIDBytes)
	case m.Type == "":
		err = fmt.Errorf("%w: it has no %s", errForeign, envelope.HeaderEventType)
	}
	if err != nil && !plain(m.ID) {
		m.ID = m.place()
	}
	return err
}

// maxIDBytes is what the receipts' table takes.
const maxIDBytes = 1024

// plain says whether PostgreSQL can keep s as an id.
func plain(s string) bool {
	return s != "" && len(s) <= maxIDBytes && utf8.ValidString(s) && !strings.Contains(s, "\x00")
}

// text makes s one that PostgreSQL can keep.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// first gives the first value of a header, by its exact name and otherwise by
// any spelling: headers of NATS keep the case they were written in.
func first(h nats.Header, name string) string {
	if v, ok := h[name]; ok && len(v) > 0 {
		return v[0]
	}
	for k, v := range h {
		if len(v) > 0 && strings.EqualFold(k, name) {
			return v[0]
		}
	}
	return ""
}

// decode gives the payload of m as a T. Numbers that go into an interface
// keep their digits, as json.Number.
func decode[T any](m *Message) (T, error) {
	var data T
	switch p := any(&data).(type) {
	case *[]byte:
		*p = m.Raw
		return data, nil
	case *json.RawMessage:
		*p = m.Raw
		return data, nil
	}
	if m.Null {
		return data, nil
	}
	d := json.NewDecoder(bytes.NewReader(m.Raw))
	d.UseNumber()
	if err := d.Decode(&data); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the payload is empty")
		}
		return data, &unreadableError{fmt.Errorf("decode payload into %T: %w", data, err)}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return data, &unreadableError{fmt.Errorf("decode payload into %T: more follows after its value", data)}
	}
	return data, nil
}
