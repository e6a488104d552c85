package walrelay

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/router"
)

// A Table is one outbox table.
type Table struct {
	// Schema and Name name it as PostgreSQL does, unquoted and in their own
	// case.
	Schema, Name string
	// Columns maps its columns. The zero value means those of walrelay's own
	// outbox.
	Columns Columns
}

// Columns say which columns of an outbox table hold what. In a value that is
// not zero, an empty name of a required column (ID to Payload) is that of
// walrelay's own outbox, and an empty name of an optional one means that there
// is none. Columns that are not named are not looked at, of whatever type they
// are.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload string
	// Headers holds a JSON object of further headers.
	Headers string
	// CreatedAt is when the event was written. A table without Xid needs it
	// for healing and retention.
	CreatedAt string
	// Xid is an xid8 column with the writing transaction's id; it makes proofs
	// about rows that are read from the table exact.
	Xid string
	// Seq orders rows that are read from the table: an identity column, or
	// whatever comes closest to the order of their writing.
	Seq string
	// Extra maps further columns to names of headers. An empty name makes the
	// column known to subject templates only.
	Extra map[string]string
}

// DebeziumColumns gives the columns that Debezium's outbox event router reads:
// id, aggregatetype, aggregateid, type and payload.
func DebeziumColumns() Columns { return Columns(router.Debezium()) }

// A Route says where events go.
type Route struct {
	// Table is schema.name, unquoted, of the table whose events it takes.
	// Empty means any.
	Table string
	// EventTypes are the event types that it takes. Empty means all.
	EventTypes []string
	// Stream is the JetStream stream. Empty means the source in capitals.
	Stream string
	// Subject is the template of subjects, see docs/message.md. Empty means
	// outbox.{source}.{aggregate_type}.{event_type}.
	Subject string
	// Headers are written on each message of the route.
	Headers map[string]string
	// Skip publishes nothing: the events are counted and passed over.
	Skip bool
}

// A Stream says how one JetStream stream is written to.
type Stream struct {
	// Name is the stream's name, as routes give it.
	Name string
	// Shared says that others write to the stream too. The relay then keeps
	// the order of each aggregate instead of that of the whole source.
	Shared bool
	// Window and InFlightBytes beat those of Config for this stream. Zero
	// means Config's.
	Window, InFlightBytes int
}

// outboxTable is the outbox that migrate makes.
const outboxTable = "outbox"

// withRoutes fills what tables, routes and streams leave out.
func (c *Config) withRoutes(bad func(field, value, reason string)) {
	if len(c.Tables) == 0 {
		c.Tables = []Table{{Schema: c.Schema, Name: outboxTable}}
	}
	if len(c.Routes) == 0 {
		c.Routes = []Route{{Stream: c.Stream, Subject: c.Subject}}
	} else if c.Subject != "" {
		bad("Subject", c.Subject, "is for the one route that there is without Routes; write it into the routes instead")
	}
	c.Tables, c.Routes, c.Streams = slices.Clone(c.Tables), slices.Clone(c.Routes), slices.Clone(c.Streams)
	used := map[string]bool{}
	for i := range c.Routes {
		rt := &c.Routes[i]
		if !rt.Skip {
			rt.Stream = or(rt.Stream, c.Stream)
			used[rt.Stream] = true
		}
	}
	seen := map[string]bool{}
	for i, st := range c.Streams {
		field := fmt.Sprintf("Streams[%d]", i)
		switch {
		case st.Name == "":
			bad(field, "", "has no name")
		case seen[st.Name]:
			bad(field, st.Name, "is there twice; remove one")
		case !used[st.Name]:
			bad(field, st.Name, "is the stream of no route; the routes have "+strings.Join(slices.Sorted(maps.Keys(used)), ", "))
		}
		seen[st.Name] = true
		if st.Window < 0 || st.Window > maxWindow {
			bad(field+".Window", fmt.Sprint(st.Window), "use 1 to 65536 messages")
		}
		if st.InFlightBytes != 0 && st.InFlightBytes < minInFlight {
			bad(field+".InFlightBytes", fmt.Sprint(st.InFlightBytes), "use at least 1048576 bytes")
		}
	}
}

// stream gives the settings of one stream.
func (c *Config) stream(name string) Stream {
	st := Stream{Name: name}
	if i := slices.IndexFunc(c.Streams, func(s Stream) bool { return s.Name == name }); i >= 0 {
		st = c.Streams[i]
	}
	st.Window, st.InFlightBytes = number(st.Window, c.Window), number(st.InFlightBytes, c.InFlightBytes)
	return st
}

func newRouter(c *Config) (*router.Router, error) { return router.New(routerConfig(c)) }

func routerTable(t Table) router.Table {
	return router.Table{Schema: t.Schema, Name: t.Name, Columns: router.Columns(t.Columns)}
}

func routerConfig(c *Config) router.Config {
	cfg := router.Config{Source: c.Source, Lean: c.Lean, CloudEvents: c.CloudEvents}
	for _, t := range c.Tables {
		cfg.Tables = append(cfg.Tables, routerTable(t))
	}
	for _, rt := range c.Routes {
		r := router.Route{Table: rt.Table, EventTypes: rt.EventTypes, Stream: rt.Stream, Subject: rt.Subject, Skip: rt.Skip}
		for _, name := range slices.Sorted(maps.Keys(rt.Headers)) {
			r.Headers = append(r.Headers, envelope.Header{Name: name, Value: rt.Headers[name]})
		}
		cfg.Routes = append(cfg.Routes, r)
	}
	return cfg
}

// routeLines describes tables and routes to people, a line each.
func routeLines(c *Config) []string {
	var lines []string
	for _, t := range c.Tables {
		cols := router.Columns(t.Columns).Effective()
		line := fmt.Sprintf("table %s.%s: id %s, aggregate %s/%s, type %s, payload %s", t.Schema, t.Name, cols.ID, cols.AggregateType, cols.AggregateID, cols.EventType, cols.Payload)
		if cols.Headers != "" {
			line += ", headers " + cols.Headers
		}
		further := make([]string, 0, len(cols.Extra))
		for _, column := range slices.Sorted(maps.Keys(cols.Extra)) {
			further = append(further, column+" as "+cols.Extra[column])
		}
		if len(further) > 0 {
			line += ", " + strings.Join(further, ", ")
		}
		lines = append(lines, line)
	}
	for i, rt := range c.Routes {
		what := "all events"
		if len(rt.EventTypes) > 0 {
			what = strings.Join(rt.EventTypes, ", ")
		}
		line := fmt.Sprintf("route %d: %s of %s to stream %s, subject %s", i+1, what, or(rt.Table, "any table"), rt.Stream, or(rt.Subject, router.DefaultSubject))
		if rt.Skip {
			line = fmt.Sprintf("route %d: %s of %s are skipped", i+1, what, or(rt.Table, "any table"))
		}
		if len(rt.Headers) > 0 {
			line += ", headers " + strings.Join(slices.Sorted(maps.Keys(rt.Headers)), ", ")
		}
		lines = append(lines, line)
	}
	return append(lines, fmt.Sprintf("form: lean %v, CloudEvents %v", c.Lean, c.CloudEvents))
}

// without gives the lines that are not among others.
func without(lines, others []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return slices.Contains(others, l) })
}

// routeProblems gives the problems of tables and routes in the terms of
// Config.
func routeProblems(c *Config) error {
	_, err := newRouter(c)
	var problems []error
	for _, e := range unjoin(err) {
		problem, ok := errors.AsType[*router.ConfigError](e)
		if !ok {
			problems = append(problems, e)
			continue
		}
		field := problem.Field
		if field == "routes[0].subject" && c.Subject != "" {
			field = "Subject"
		}
		problems = append(problems, &ConfigError{Field: field, Value: problem.Value, Reason: problem.Problem + "; " + problem.Fix})
	}
	return errors.Join(problems...)
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}
