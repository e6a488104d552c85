package router

import (
	"fmt"

	"github.com/walrelay/walrelay/envelope"
)

// DefaultSubject is the subject template of a route that has none.
const DefaultSubject = "outbox.{source}.{aggregate_type}.{event_type}"

// A Config says which tables are outboxes and where their events go.
type Config struct {
	// Source names the relay's source: 1 to 64 letters, digits, dots,
	// hyphens and underscores.
	Source string
	// Tables are the outbox tables; at least one.
	Tables []Table
	// Routes are tried in order and the first match wins; at least one. An
	// event that none matches is unrouted.
	Routes []Route
	// Lean leaves out the headers that tell little: the times, and the
	// aggregate type where the subject tells it.
	Lean bool
	// CloudEvents adds the attributes of CloudEvents 1.0 in binary mode.
	// Rows must not set ce-* headers then.
	CloudEvents bool
}

// A Table is one outbox table.
type Table struct {
	// Schema and Name name it as PostgreSQL does, unquoted.
	Schema, Name string
	// Columns maps its columns. The zero value is [Own].
	Columns Columns
}

// Columns name the columns of an outbox table. In a value that is not zero, an
// empty name of a required column (ID to Payload) is that of [Own], and an
// empty name of an optional one (Headers to Seq) means that there is none.
// Every column named here must exist, apart from Xid and Seq, which only
// readers of the table use.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload string
	Headers, CreatedAt, Xid, Seq                       string
	// Extra maps further columns to header names. An empty header name
	// makes the column known to subject templates only.
	Extra map[string]string
}

// Own gives the columns of the outbox that walrelay's migration makes.
func Own() Columns {
	return Columns{
		ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type",
		Payload: "payload", Headers: "headers", CreatedAt: "created_at", Xid: "xid", Seq: "seq",
	}
}

// Debezium gives the columns that Debezium's outbox event router reads.
func Debezium() Columns {
	return Columns{
		ID: "id", AggregateType: "aggregatetype", AggregateID: "aggregateid", EventType: "type", Payload: "payload",
	}
}

// Effective gives c with the names that are left to their defaults.
func (c Columns) Effective() Columns {
	own := Own()
	own.Extra = c.Extra
	named := []struct{ name, def *string }{
		{&c.ID, &own.ID},
		{&c.AggregateType, &own.AggregateType},
		{&c.AggregateID, &own.AggregateID},
		{&c.EventType, &own.EventType},
		{&c.Payload, &own.Payload},
	}
	zero := c.Headers == "" && c.CreatedAt == "" && c.Xid == "" && c.Seq == ""
	for _, n := range named {
		zero = zero && *n.name == ""
	}
	if zero {
		return own
	}
	for _, n := range named {
		if *n.name == "" {
			*n.name = *n.def
		}
	}
	return c
}

// A Route sends events to a stream.
type Route struct {
	// Table is schema.name of the table whose events it takes; empty means
	// any.
	Table string
	// EventTypes are the event types that it takes; empty means all.
	EventTypes []string
	// Stream is the JetStream stream. A route that skips needs none.
	Stream string
	// Subject is the template of the subject; empty means [DefaultSubject].
	Subject string
	// Skip publishes nothing: the event is counted and passed over.
	Skip bool
	// Headers are written on each message of the route. A row must not set
	// a header of the same name.
	Headers []envelope.Header
}

// A ConfigError is one problem of a [Config].
type ConfigError struct {
	// Field is where it is, such as routes[1].subject.
	Field string
	// Value is what stands there.
	Value string
	// Problem says what is wrong with it, and Fix what to write instead.
	Problem, Fix string
}

// Error names the field, its value, the problem and the fix.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s: %q %s; %s", e.Field, e.Value, e.Problem, e.Fix)
}
