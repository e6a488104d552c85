package router_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/router"
)

const (
	oidBool  = 16
	oidBytea = 17
	oidInt8  = 20
	oidText  = 25
	oidJSON  = 114
	oidUUID  = 2950
	oidJSONB = 3802
)

const someUUID = "0192f7a4-5f0e-7c3a-9d5e-2f1c8b7a6e5d"

// A col is one column of a test row.
type col struct {
	name string
	oid  uint32
	kind decode.ValueKind
	data string
}

func val(name string, oid uint32, data string) col { return col{name, oid, decode.Text, data} }
func null(name string, oid uint32) col             { return col{name, oid, decode.Null, ""} }

// outbox gives a row of walrelay.outbox with some of its columns replaced or
// added.
func outbox(change ...col) *router.Row {
	cols := []col{
		val("id", oidUUID, someUUID),
		val("aggregate_type", oidText, "order"),
		val("aggregate_id", oidText, "42"),
		val("event_type", oidText, "order.placed"),
		val("payload", oidJSONB, `{"amount": 1}`),
		val("headers", oidJSONB, "{}"),
		val("created_at", 1184, "2026-01-02 03:04:05.678+00"),
		val("xid", 5069, "777"),
		val("seq", oidInt8, "1"),
	}
next:
	for _, c := range change {
		for i := range cols {
			if cols[i].name == c.name {
				cols[i] = c
				continue next
			}
		}
		cols = append(cols, c)
	}
	return row("walrelay", "outbox", cols...)
}

func row(schema, name string, cols ...col) *router.Row {
	rel := &decode.Relation{ID: 1, Schema: schema, Name: name, Generation: 1}
	var tuple decode.Tuple
	for _, c := range cols {
		rel.Columns = append(rel.Columns, decode.Column{Name: c.name, TypeOID: c.oid, TypeMod: -1})
		v := decode.Value{Kind: c.kind}
		if c.kind == decode.Text || c.kind == decode.Binary {
			v.Data = []byte(c.data)
		}
		tuple = append(tuple, v)
	}
	return &router.Row{
		Relation: rel, Tuple: tuple,
		Position:    envelope.Position{Epoch: 1, Commit: 0x16B3748, Index: 3},
		CommittedAt: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
	}
}

// config gives a configuration of one table and one route, changed by f.
func config(f ...func(*router.Config)) router.Config {
	cfg := router.Config{
		Source: "shop",
		Tables: []router.Table{{Schema: "walrelay", Name: "outbox"}},
		Routes: []router.Route{{Stream: "SHOP"}},
	}
	for _, change := range f {
		change(&cfg)
	}
	return cfg
}

func subject(template string) func(*router.Config) {
	return func(c *router.Config) { c.Routes[0].Subject = template }
}

func extraColumn(column, header string) func(*router.Config) {
	return func(c *router.Config) {
		c.Tables[0].Columns.Extra = map[string]string{column: header}
	}
}

func newRouter(t testing.TB, cfg router.Config) *router.Router {
	t.Helper()
	r, err := router.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return r
}

// route routes one row; an error of Route fails the test.
func route(t testing.TB, r *router.Router, row *router.Row) router.Routed {
	t.Helper()
	var out router.Routed
	if err := r.Route(row, &out); err != nil {
		t.Fatalf("Route: %v", err)
	}
	return out
}

// published is route for a row that must not be refused.
func published(t testing.TB, r *router.Router, row *router.Row) router.Message {
	t.Helper()
	out := route(t, r, row)
	if out.Verdict != router.Publish {
		t.Fatalf("verdict = %s (%s: %s), want publish", out.Verdict, out.Refusal.Reason, out.Refusal.Detail)
	}
	return out.Message
}

// refused is route for a row that must be refused for a reason.
func refused(t testing.TB, r *router.Router, row *router.Row, want router.Reason) router.Routed {
	t.Helper()
	out := route(t, r, row)
	if out.Verdict != router.Refused || out.Refusal.Reason != want {
		t.Fatalf("verdict = %s, reason %q (%s), want refused for %q", out.Verdict, out.Refusal.Reason, out.Refusal.Detail, want)
	}
	if out.Refusal.Detail == "" {
		t.Errorf("a refusal for %s has no detail", want)
	}
	if out.Message.Headers != nil && want != router.ReasonTooLarge && want != router.ReasonHeadersTooLarge {
		t.Errorf("a row refused for %s has headers", want)
	}
	return out
}

func header(m router.Message, name string) (string, bool) {
	for _, h := range m.Headers {
		if h.Name == name {
			return h.Value, true
		}
	}
	return "", false
}

// overTheWire gives the headers as a consumer of the Go client gets them, and
// the bytes that the client writes for them.
func overTheWire(t testing.TB, m router.Message) (nats.Header, int) {
	t.Helper()
	msg := nats.NewMsg(m.Subject)
	var block strings.Builder
	block.WriteString("NATS/1.0\r\n")
	for _, h := range m.Headers {
		msg.Header.Add(h.Name, h.Value)
		block.WriteString(h.Name + ": " + h.Value + "\r\n")
	}
	block.WriteString("\r\n")
	got, err := nats.DecodeHeadersMsg([]byte(block.String()))
	if err != nil {
		t.Fatalf("the client cannot read the headers: %v", err)
	}
	return got, msg.Size() - len(m.Subject)
}
