package router_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/router"
)

func TestAMessageHasTheHeadersOfItsRow(t *testing.T) {
	t.Parallel()
	m := published(t, newRouter(t, config()), outbox(val("headers", oidJSONB, `{"traceparent": "00-ab-cd-01", "n": 1}`)))
	want := []envelope.Header{
		{Name: "Nats-Msg-Id", Value: someUUID},
		{Name: "Walrelay-Source", Value: "shop"},
		{Name: "Walrelay-Position", Value: "1/0/16B3748/3"},
		{Name: "Walrelay-Committed-At", Value: "2026-01-02T03:04:06Z"},
		{Name: "Walrelay-Aggregate-Type", Value: "order"},
		{Name: "Walrelay-Aggregate-Id", Value: "42"},
		{Name: "Walrelay-Event-Type", Value: "order.placed"},
		{Name: "Walrelay-Created-At", Value: "2026-01-02 03:04:05.678+00"},
		{Name: "traceparent", Value: "00-ab-cd-01"},
		{Name: "n", Value: "1"},
	}
	if diff := cmp.Diff(want, m.Headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

func TestLeanHeadersKeepWhatConsumersNeed(t *testing.T) {
	t.Parallel()
	lean := func(c *router.Config) { c.Lean = true }
	want := []envelope.Header{
		{Name: "Nats-Msg-Id", Value: someUUID},
		{Name: "Walrelay-Source", Value: "shop"},
		{Name: "Walrelay-Position", Value: "1/0/16B3748/3"},
		{Name: "Walrelay-Aggregate-Id", Value: "42"},
		{Name: "Walrelay-Event-Type", Value: "order.placed"},
	}
	if diff := cmp.Diff(want, published(t, newRouter(t, config(lean)), outbox()).Headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	m := published(t, newRouter(t, config(lean, subject("ev.{event_type}"))), outbox())
	if got, _ := header(m, envelope.HeaderAggregateType); got != "order" {
		t.Errorf("a subject without the aggregate type leaves out the header, too")
	}
}

func TestAPositionOrTimeThatIsNotKnownIsNoHeader(t *testing.T) {
	t.Parallel()
	row := outbox()
	row.Position, row.CommittedAt = envelope.Position{}, time.Time{}
	m := published(t, newRouter(t, config()), row)
	for _, name := range []string{envelope.HeaderPosition, envelope.HeaderCommittedAt} {
		if v, ok := header(m, name); ok {
			t.Errorf("%s = %q, want none", name, v)
		}
	}
}

func TestAColumnThatTheWireWouldChangeIsEscapedAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config(subject("ev.x")))
	for in, want := range map[string]string{
		"42": "42", "": "", "a b": "a b", "日本": "日本",
		" x ": "%20x%20", "50%": "50%25", "a\r\nNats-Msg-Id: 1": "a%0D%0ANats-Msg-Id: 1", "\t": "%09", " ": "%20", "  ": "%20%20",
	} {
		m := published(t, r, outbox(val("aggregate_id", oidText, in)))
		if got, ok := header(m, envelope.HeaderAggregateID); !ok || got != want {
			t.Errorf("header of %q = %q, want %q", in, got, want)
		}
		h, _ := overTheWire(t, m)
		e, err := envelope.Read(h.Get)
		if err != nil || e.AggregateID != in {
			t.Errorf("Read gives the aggregate id %q, %v, want %q", e.AggregateID, err, in)
		}
		if len(h) != len(m.Headers) {
			t.Errorf("%d headers arrive, want %d", len(h), len(m.Headers))
		}
	}
}

func TestA25OddTimesPassAsText(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config(func(c *router.Config) { c.CloudEvents = true }))
	for in, want := range map[string]string{
		"infinity": "", "-infinity": "", "0044-03-15 00:00:00+00 BC": "", "294276-12-31 00:00:00+00": "",
		"2026-01-02 03:04:05": "", "2026-01-02 03:04:05+00": "2026-01-02T03:04:05Z", "2026-01-02": "",
		"2026-01-02 03:04:05.5-03:30": "2026-01-02T03:04:05.5-03:30", "2026-01-02 03:04:05+14": "2026-01-02T03:04:05+14:00",
		"1800-01-02 03:04:05+00:19:32": "",
	} {
		m := published(t, r, outbox(val("created_at", 1184, in)))
		if got, _ := header(m, envelope.HeaderCreatedAt); got != in {
			t.Errorf("%s = %q, want %q", envelope.HeaderCreatedAt, got, in)
		}
		if got, _ := header(m, "ce-time"); got != want {
			t.Errorf("ce-time of %q = %q, want %q", in, got, want)
		}
	}
}

func TestA26HeaderValuesKeepTheirDigitsAndNestedOnesAreJSON(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	m := published(t, r, outbox(val("headers", oidJSON,
		` {"n" : 1234567890123456789, "d":1.10, "e": 1e400, "t":true,"f":false , "z": null, "s":"x", "empty":"",
		"nested": {"a": [1, 2.50, "x y", "q\" }"], "b" : {} }, "list": [ ], "esc": "\u00e9\ud83d\ude00\/\"\\"} `)))
	want := []envelope.Header{
		{Name: "n", Value: "1234567890123456789"},
		{Name: "d", Value: "1.10"},
		{Name: "e", Value: "1e400"},
		{Name: "t", Value: "true"},
		{Name: "f", Value: "false"},
		{Name: "s", Value: "x"},
		{Name: "empty", Value: ""},
		{Name: "nested", Value: `{"a":[1,2.50,"x y","q\" }"],"b":{}}`},
		{Name: "list", Value: "[]"},
		{Name: "esc", Value: `é😀/"\`},
	}
	if diff := cmp.Diff(want, m.Headers[8:]); diff != "" {
		t.Errorf("headers of the row (-want +got):\n%s", diff)
	}
}

func TestA27HeadersOfTheWrongShapeAreRefused(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	for _, c := range []col{
		val("headers", oidJSONB, "[]"), val("headers", oidJSONB, "null"), val("headers", oidJSONB, `"x"`),
		val("headers", oidText, ""), val("headers", oidText, "x=1"), val("headers", 16400, `"a"=>"b"`),
		val("headers", oidText, `{"a":1`), val("headers", oidText, `{"a":1} x`), val("headers", oidJSON, `{"a":"\ud800"}`),
		val("headers", oidJSON, `{"a":"\ud800\u0041"}`), val("headers", oidJSON, `{"\udc00":1}`),
	} {
		out := refused(t, r, outbox(c), router.ReasonInvalidHeaders)
		if string(out.Message.Body) != `{"amount": 1}` || out.Message.Subject == "" {
			t.Errorf("a row refused for its headers has the body %q and the subject %q", out.Message.Body, out.Message.Subject)
		}
	}
	for _, c := range []col{null("headers", oidJSONB), val("headers", oidJSONB, "{}"), val("headers", oidText, " { } "), val("headers", oidText, `{"a":null}`)} {
		if m := published(t, r, outbox(c)); len(m.Headers) != 8 {
			t.Errorf("headers %q give %d headers, want the 8 of the relay", c.data, len(m.Headers))
		}
	}
}

func TestA56AHeaderThatCommandsTheStreamIsRefused(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	for _, name := range []string{
		"Nats-Rollup", "Nats-Msg-Id", "nats-msg-id", "NATS-TTL", "Nats-Expected-Stream", "Walrelay-Position", "walrelay-x", "Status", "description",
	} {
		refused(t, r, outbox(val("headers", oidJSONB, `{"`+name+`": "1"}`)), router.ReasonReservedHeader)
	}
	// The escaped form is the same name.
	refused(t, r, outbox(val("headers", oidJSON, `{"\u004eats-Rollup": "all"}`)), router.ReasonReservedHeader)
	if m := published(t, r, outbox(val("headers", oidJSONB, `{"ce-id": "1"}`))); m.MsgID != someUUID {
		t.Errorf("MsgID = %q, want the row's id", m.MsgID)
	}
}

func TestA57WhatCannotGoOnTheWireIsRefused(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	object := func(name, value string) col {
		b, err := json.Marshal(map[string]string{name: value})
		if err != nil {
			t.Fatal(err)
		}
		return val("headers", oidJSON, string(b))
	}
	for _, name := range []string{"", "a b", "a:b", "clé", "日本", "a\r\nb", "X/Y", "a\tb", "a\x00", `a"b`, "(a)"} {
		refused(t, r, outbox(object(name, "v")), router.ReasonInvalidHeader)
	}
	for _, value := range []string{"v\r\nNats-Msg-Id: 1", " x ", " ", "x ", "\tx", "a\nb", "a\x00b", "a\x7f"} {
		out := refused(t, r, outbox(object("X-Secret", value)), router.ReasonInvalidHeader)
		if strings.Contains(out.Refusal.Detail, strings.TrimSpace(value)) && strings.TrimSpace(value) != "" && len(value) > 4 {
			t.Errorf("the detail shows a header value: %s", out.Refusal.Detail)
		}
	}
	for _, value := range []string{"", "日本", "a b", "x:y", "50%"} {
		m := published(t, r, outbox(object("x", value)))
		h, _ := overTheWire(t, m)
		if got := h["x"]; len(got) != 1 || got[0] != value {
			t.Errorf("value %q arrives as %q", value, got)
		}
	}
	refused(t, r, outbox(object("x", strings.Repeat("v", 70_000))), router.ReasonHeadersTooLarge)
	refused(t, r, outbox(val("headers", oidJSON, `{"a":"1","A":"2"}`)), router.ReasonDuplicateHeader)
	refused(t, r, outbox(val("headers", oidJSON, `{"a":"1","a":"2"}`)), router.ReasonDuplicateHeader)

	thousand := func(suffix string) col {
		var parts []string
		for i := range 1000 {
			parts = append(parts, fmt.Sprintf(`"Name-%d":"v"`, i))
		}
		return val("headers", oidJSON, "{"+strings.Join(parts, ",")+suffix+"}")
	}
	if m := published(t, r, outbox(thousand(""))); len(m.Headers) != 1008 {
		t.Errorf("%d headers, want 1008", len(m.Headers))
	}
	refused(t, r, outbox(thousand(`,"NAME-500":"v"`)), router.ReasonDuplicateHeader)
	refused(t, r, outbox(thousand(`,"name-3":"v"`)), router.ReasonDuplicateHeader)
}

func TestARowDoesNotOverrideTheHeadersOfItsRoute(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config(extraColumn("tenant", "X-Tenant"), func(c *router.Config) {
		c.Routes[0].Headers = []envelope.Header{{Name: "X-Region", Value: "eu"}}
	}))
	tenant := val("tenant", oidText, "acme")
	m := published(t, r, outbox(tenant))
	for name, want := range map[string]string{"X-Tenant": "acme", "X-Region": "eu"} {
		if got, _ := header(m, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	refused(t, r, outbox(tenant, val("headers", oidJSONB, `{"x-region": "us"}`)), router.ReasonReservedHeader)
	refused(t, r, outbox(tenant, val("headers", oidJSONB, `{"x-tenant": "us"}`)), router.ReasonReservedHeader)
	refused(t, r, outbox(val("tenant", oidText, "a\nb")), router.ReasonInvalidHeader)
	if _, ok := header(published(t, r, outbox(null("tenant", oidText))), "X-Tenant"); ok {
		t.Error("a null column has a header")
	}
}

func TestACloudEventHasItsAttributes(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config(func(c *router.Config) { c.CloudEvents = true }))
	m := published(t, r, outbox(val("aggregate_id", oidText, `é "1"%`)))
	want := []envelope.Header{
		{Name: "ce-specversion", Value: "1.0"},
		{Name: "ce-id", Value: someUUID},
		{Name: "ce-source", Value: "shop"},
		{Name: "ce-type", Value: "order.placed"},
		{Name: "ce-subject", Value: "%C3%A9%20%221%22%25"},
		{Name: "ce-time", Value: "2026-01-02T03:04:05.678Z"},
		{Name: "ce-datacontenttype", Value: "application/json"},
	}
	if diff := cmp.Diff(want, m.Headers[8:]); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	m = published(t, r, outbox(val("payload", oidBytea, `\x00`), val("headers", oidJSONB, `{"content-type": "application/avro"}`)))
	if got, _ := header(m, "ce-datacontenttype"); got != "application/avro" {
		t.Errorf("ce-datacontenttype = %q, want the row's content type", got)
	}
	refused(t, r, outbox(val("headers", oidJSONB, `{"CE-Id": "1"}`)), router.ReasonReservedHeader)
	refused(t, r, outbox(val("headers", oidJSONB, `{"content-type": "application/CloudEvents+json"}`)), router.ReasonReservedHeader)
	loose := newRouter(t, config(subject("ev.x"), func(c *router.Config) { c.CloudEvents = true }))
	refused(t, loose, outbox(null("event_type", oidText)), router.ReasonInvalidHeader)
}

// TestTheSizeIsWhatTheClientWrites compares with the client's own arithmetic.
func TestTheSizeIsWhatTheClientWrites(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config(func(c *router.Config) { c.CloudEvents = true }))
	rapid.Check(t, func(rt *rapid.T) {
		headers, err := json.Marshal(rapid.MapOf(rapid.StringMatching(`[A-Za-z][A-Za-z0-9_.-]{0,9}`), rapid.String()).Draw(rt, "headers"))
		if err != nil {
			rt.Fatal(err)
		}
		out := route(t, r, outbox(
			val("aggregate_id", oidText, rapid.String().Draw(rt, "aggregate id")),
			val("id", oidText, rapid.StringN(1, -1, -1).Draw(rt, "id")),
			val("headers", oidJSONB, string(headers)),
		))
		if out.Verdict != router.Publish {
			return
		}
		got, size := overTheWire(t, out.Message)
		if size != out.Message.HeaderBytes {
			rt.Errorf("HeaderBytes = %d, and the client writes %d", out.Message.HeaderBytes, size)
		}
		for _, h := range out.Message.Headers {
			if v := got[h.Name]; len(v) != 1 || v[0] != h.Value {
				rt.Errorf("header %s arrives as %q, want %q", h.Name, v, h.Value)
			}
		}
	})
}
