package router_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/router"
)

func TestTheFirstRouteThatMatchesWins(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config(func(c *router.Config) {
		c.Tables = append(c.Tables, router.Table{Schema: "billing", Name: "events", Columns: router.Debezium()})
		c.Routes = []router.Route{
			{Table: "walrelay.outbox", EventTypes: []string{"heartbeat", "debug"}, Skip: true},
			{Table: "walrelay.outbox", EventTypes: []string{"order.placed"}, Stream: "ORDERS"},
			{Table: "billing.events", Stream: "BILLING", Subject: "b.{event_type}"},
			{EventTypes: []string{"order.shipped"}, Stream: "ORDERS", Subject: "shipped"},
		}
	}))
	if diff := cmp.Diff([]string{"ORDERS", "BILLING"}, r.Streams()); diff != "" {
		t.Fatalf("Streams (-want +got):\n%s", diff)
	}
	debezium := row("billing", "events", val("id", oidUUID, someUUID), val("aggregatetype", oidText, "invoice"),
		val("aggregateid", oidText, "7"), val("type", oidText, "sent"), val("payload", oidText, "{}"))
	for _, c := range []struct {
		row     *router.Row
		verdict router.Verdict
		stream  string
		index   int
		subject string
	}{
		{outbox(), router.Publish, "ORDERS", 0, "outbox.shop.order.order.placed"},
		{outbox(val("event_type", oidText, "order.shipped")), router.Publish, "ORDERS", 0, "shipped"},
		{outbox(val("event_type", oidText, "heartbeat"), null("id", oidUUID)), router.Skip, "", -1, ""},
		{outbox(val("event_type", oidText, "other")), router.Unrouted, "", -1, ""},
		{debezium, router.Publish, "BILLING", 1, "b.sent"},
		{row("public", "orders", val("id", oidInt8, "1")), router.NotOutbox, "", -1, ""},
	} {
		out := route(t, r, c.row)
		if out.Verdict != c.verdict || out.Stream != c.stream || out.StreamIndex != c.index || out.Message.Subject != c.subject {
			t.Errorf("%s: Route = %s, %q, %d, %q, want %s, %q, %d, %q", c.row.Relation, out.Verdict, out.Stream, out.StreamIndex, out.Message.Subject,
				c.verdict, c.stream, c.index, c.subject)
		}
	}
	if out := route(t, r, outbox(val("event_type", oidText, "other"))); string(out.Message.Body) != `{"amount": 1}` || out.Event.ID != someUUID {
		t.Errorf("an unrouted event has body %q and id %q", out.Message.Body, out.Event.ID)
	}
}

func TestA17TheIdIsTheExactTextAndOtherColumnsAreNotLookedAt(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	for _, c := range []struct {
		id   col
		want string
	}{
		{val("id", oidInt8, "17"), "shop:walrelay.outbox:17"},
		{val("id", oidUUID, someUUID), someUUID},
		{val("id", 1700, "1.10"), "shop:walrelay.outbox:1.10"},
		{val("id", oidText, someUUID), "shop:walrelay.outbox:" + someUUID},
		{val("id", 16999, someUUID), "shop:walrelay.outbox:" + someUUID}, // a domain over uuid
		{val("id", 1042, "ab   "), "shop:walrelay.outbox:ab%20%20%20"},
		{val("id", 17000, "(1,x)"), "shop:walrelay.outbox:%281%2Cx%29"},
	} {
		m := published(t, r, outbox(c.id,
			val("point", 600, "(1,2)"), col{"odd", 17001, decode.Binary, "\x00"}, col{"big", oidText, decode.Unchanged, ""}))
		if m.MsgID != c.want {
			t.Errorf("MsgID of %q = %q, want %q", c.id.data, m.MsgID, c.want)
		}
	}
	// Null and text are the only forms that a mapped column can have.
	for _, c := range []col{
		{"payload", oidJSONB, decode.Unchanged, ""},
		{"id", oidUUID, decode.Binary, "0123456789abcdef"},
		{"event_type", oidText, decode.Binary, "x"},
	} {
		out := refused(t, r, outbox(c), router.ReasonUndecodable)
		if want := c.name != "event_type"; (out.StreamIndex == 0) != want {
			t.Errorf("%s: StreamIndex = %d", c.name, out.StreamIndex)
		}
	}
	short := outbox()
	short.Tuple = short.Tuple[:3]
	refused(t, r, short, router.ReasonUndecodable)
}

func TestA22ColumnsAreFoundByNameInEachRelation(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	first := outbox()
	published(t, r, first)

	moved := outbox()
	last := len(moved.Tuple) - 1
	for _, i := range []int{0, 4} { // id and payload move, and a column is added before all
		j := last - i
		moved.Tuple[i], moved.Tuple[j] = moved.Tuple[j], moved.Tuple[i]
		moved.Relation.Columns[i], moved.Relation.Columns[j] = moved.Relation.Columns[j], moved.Relation.Columns[i]
	}
	moved.Tuple = append(decode.Tuple{{Kind: decode.Null}}, moved.Tuple...)
	moved.Relation.Columns = append([]decode.Column{{Name: "new", TypeOID: oidBool}}, moved.Relation.Columns...)
	moved.Relation.Generation = 2
	m := published(t, r, moved)
	if m.MsgID != someUUID || string(m.Body) != `{"amount": 1}` {
		t.Errorf("after the columns moved: id %q, body %q", m.MsgID, m.Body)
	}
	if m = published(t, r, first); m.MsgID != someUUID {
		t.Errorf("old rows with the old relation: id %q", m.MsgID)
	}

	// The same Relation under another generation is another one.
	*first.Relation = *outbox(val("payload", oidBytea, "")).Relation
	first.Relation.Generation = 9
	first.Tuple[4].Data = []byte(`\x00ff`)
	if m = published(t, r, first); string(m.Body) != "\x00\xff" {
		t.Errorf("after payload became bytea: body %x, want 00ff", m.Body)
	}

	// Columns that the message does not need may be missing.
	bare := row("walrelay", "outbox", val("id", oidUUID, someUUID), val("aggregate_type", oidText, "a"), val("aggregate_id", oidText, "1"),
		val("event_type", oidText, "t"), val("payload", oidJSONB, "{}"), val("headers", oidJSONB, "{}"), val("created_at", 1184, "infinity"))
	published(t, r, bare)
}

func TestA22AMissingColumnStopsDelivery(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	published(t, r, outbox())
	renamed := outbox()
	renamed.Relation.Columns[3].Name = "event_typ"
	for range 2 {
		var out router.Routed
		err := r.Route(renamed, &out)
		var missing *router.ColumnError
		if !errors.As(err, &missing) {
			t.Fatalf("Route = %v, want a ColumnError", err)
		}
		if missing.Table != "walrelay.outbox" || missing.Column != "event_type" || missing.Field != "event_type" || len(missing.Have) != 9 {
			t.Errorf("ColumnError = %+v", missing)
		}
		for _, want := range []string{"walrelay.outbox", `"event_type"`, `nearest: "event_typ"`, "columns.event_type"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not say %q", err, want)
			}
		}
	}
	corrected := newRouter(t, config(func(c *router.Config) {
		c.Tables[0].Columns = router.Own()
		c.Tables[0].Columns.EventType = "event_typ"
	}))
	published(t, corrected, renamed)
	published(t, r, outbox())
}

func TestA23APartitionCountsAsItsRoot(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	leaf := outbox(val("id", oidInt8, "1"))
	leaf.Relation.Name = "outbox_2026_01"
	if got := route(t, r, leaf).Verdict; got != router.NotOutbox {
		t.Fatalf("verdict of an unknown table = %s, want not_outbox", got)
	}
	if err := r.SetPartition("walrelay", "outbox_2026_01", "walrelay", "outbox"); err != nil {
		t.Fatal(err)
	}
	if got, want := published(t, r, leaf).MsgID, "shop:walrelay.outbox:1"; got != want {
		t.Errorf("MsgID = %q, want %q", got, want)
	}
	if err := r.SetPartition("walrelay", "x", "public", "nothing"); err == nil {
		t.Error("SetPartition takes a root that is no outbox")
	}
}

func TestA24AndA26TheBodyIsThePayload(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	for _, c := range []struct {
		payload col
		want    string
	}{
		{val("payload", oidJSONB, `{"d": 1.10, "e": 1e400, "n": 12345678901234567890123}`), `{"d": 1.10, "e": 1e400, "n": 12345678901234567890123}`},
		{val("payload", oidJSON, ` {"a":1,  "a":2}`), ` {"a":1,  "a":2}`},
		{val("payload", oidText, "any\r\n\ttext"), "any\r\n\ttext"},
		{val("payload", oidText, `\x00ff`), `\x00ff`},
		{val("payload", oidBytea, `\x00ff5c`), "\x00\xff\\"},
	} {
		if got := string(published(t, r, outbox(c.payload)).Body); got != c.want {
			t.Errorf("body of %q = %q, want %q", c.payload.data, got, c.want)
		}
	}
	for _, escaped := range []string{`\000\377`, "", `\x0`, `\xzz`} {
		out := refused(t, r, outbox(val("payload", oidBytea, escaped)), router.ReasonUndecodable)
		if !strings.Contains(out.Refusal.Detail, "bytea_output") {
			t.Errorf("the detail names no fix: %s", out.Refusal.Detail)
		}
	}
}

func TestA27NullAndEmptyPayloadsAreToldApart(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	for _, c := range []struct {
		payload col
		body    string
		null    bool
	}{
		{null("payload", oidJSONB), "", true},
		{null("payload", oidBytea), "", true},
		{val("payload", oidJSONB, "null"), "null", false},
		{val("payload", oidText, ""), "", false},
		{val("payload", oidBytea, `\x`), "", false},
		{val("payload", oidJSONB, "{}"), "{}", false},
	} {
		out := route(t, r, outbox(c.payload))
		v, ok := header(out.Message, envelope.HeaderPayload)
		if string(out.Message.Body) != c.body || ok != c.null || ok && v != "null" || out.Event.NullPayload != c.null {
			t.Errorf("payload %s %q: body %q, %s %q (%t), want %q, %t", c.payload.kind, c.payload.data, out.Message.Body, envelope.HeaderPayload, v, ok, c.body, c.null)
		}
	}
}

func TestA47TheSameIdInTwoTablesIsTwoIds(t *testing.T) {
	t.Parallel()
	cfg := config(func(c *router.Config) {
		c.Tables = []router.Table{{Schema: "walrelay", Name: "outbox_a"}, {Schema: "walrelay", Name: "outbox_b"}}
	})
	r := newRouter(t, cfg)
	cfg.Source = "other"
	other := newRouter(t, cfg)
	seen := map[string]bool{}
	for _, table := range []string{"outbox_a", "outbox_b"} {
		row := outbox(val("id", oidInt8, "1"))
		row.Relation.Name = table
		seen[strings.Clone(published(t, r, row).MsgID)] = true
		seen[strings.Clone(published(t, other, row).MsgID)] = true
	}
	if len(seen) != 4 {
		t.Errorf("ids = %v, want four", seen)
	}
}

func TestA48DistinctIdsStayDistinct(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	ids := []string{" ", "  sp ", "sp", "a\nb", "a b", "é日本", "a:b", "a%3Ab", strings.Repeat("x", 1000), strings.Repeat("x", 70_000), strings.Repeat("é", 300)}
	seen := map[string]string{}
	for _, id := range ids {
		m := published(t, r, outbox(val("id", oidText, id)))
		h, _ := overTheWire(t, m)
		got := h.Get(envelope.HeaderMsgID)
		if other, ok := seen[got]; ok {
			t.Errorf("ids %.20q and %.20q are both %q", id, other, got)
		}
		seen[got] = id
		p, err := envelope.ParseMsgID(got)
		if err != nil || p.Table != "walrelay.outbox" || p.Source != "shop" || p.ID != id && p.Digest == "" {
			t.Errorf("ParseMsgID(%q) = %+v, %v", got, p, err)
		}
		if len(got) > 600 {
			t.Errorf("the id of %.20q has %d bytes", id, len(got))
		}
	}
	refused(t, r, outbox(null("id", oidText)), router.ReasonNullID)
	refused(t, r, outbox(null("id", oidUUID)), router.ReasonNullID)
	out := refused(t, r, outbox(val("id", oidText, "")), router.ReasonEmptyID)
	if out.Event.ID != "" || out.Stream != "SHOP" || out.Message.Subject == "" {
		t.Errorf("a row without id: event id %q, stream %q, subject %q", out.Event.ID, out.Stream, out.Message.Subject)
	}
}

func TestA51AnEventOverTheLimitIsRefusedWithItsSizes(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	r := newRouter(t, config())
	headers := published(t, r, outbox()).HeaderBytes
	body := func(n int) *router.Row { return outbox(val("payload", oidText, strings.Repeat("x", n))) }
	const reserve = 100
	r.SetLimits("SHOP", router.Limits{MaxPayload: limit, HeaderReserve: reserve})
	r.SetLimits("UNKNOWN", router.Limits{MaxPayload: 1})

	published(t, r, body(limit-headers-reserve))
	for _, n := range []int{limit - headers - reserve + 1, limit, 10 << 20} {
		out := refused(t, r, body(n), router.ReasonTooLarge)
		for _, want := range []string{strconv.Itoa(n), strconv.Itoa(headers + reserve), strconv.Itoa(limit), "max_payload"} {
			if !strings.Contains(out.Refusal.Detail, want) {
				t.Errorf("detail %q does not say %s", out.Refusal.Detail, want)
			}
		}
		if len(out.Message.Body) != n {
			t.Errorf("the refused message has a body of %d bytes, want %d", len(out.Message.Body), n)
		}
	}
	// A bytea doubles in the row, not in the message.
	published(t, r, outbox(val("payload", oidBytea, `\x`+strings.Repeat("00", 900<<10))))

	r.SetLimits("SHOP", router.Limits{MaxPayload: limit, MaxMsgSize: 2000, HeaderReserve: reserve})
	published(t, r, body(2000-headers-reserve))
	out := refused(t, r, body(2001-headers-reserve), router.ReasonTooLarge)
	if !strings.Contains(out.Refusal.Detail, "max_msg_size") || !strings.Contains(out.Refusal.Detail, "SHOP") {
		t.Errorf("detail %q does not name the stream's limit", out.Refusal.Detail)
	}
	r.SetLimits("SHOP", router.Limits{MaxPayload: 64 << 20, MaxMsgSize: -1})
	published(t, r, body(10<<20))
}

func TestTheHeaderBlockCountsWithTheReserve(t *testing.T) {
	t.Parallel()
	const reserve = 150
	r := newRouter(t, config())
	r.SetLimits("SHOP", router.Limits{HeaderReserve: reserve})
	long := func(n int) *router.Row {
		return outbox(val("headers", oidJSONB, `{"x": "`+strings.Repeat("v", n)+`"}`))
	}
	fits := 65535 - reserve - published(t, r, long(0)).HeaderBytes
	published(t, r, long(fits))
	refused(t, r, long(fits+1), router.ReasonHeadersTooLarge)
}

func TestAnEventIsDescribedForDeadLetters(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	out := refused(t, r, outbox(val("headers", oidJSONB, `{"Nats-Rollup": "all"}`)), router.ReasonReservedHeader)
	want := router.Event{
		ID: someUUID, RowID: someUUID, AggregateType: "order", AggregateID: "42", EventType: "order.placed",
		CreatedAt: "2026-01-02 03:04:05.678+00", Table: "walrelay.outbox", Headers: []byte(`{"Nats-Rollup": "all"}`),
		Payload: []byte(`{"amount": 1}`),
	}
	if diff := cmp.Diff(want, out.Event); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}

// I4.
func TestTheSameRowGivesTheSameMessage(t *testing.T) {
	t.Parallel()
	type kept struct {
		Subject, ID, Body string
		Headers           []envelope.Header
	}
	keep := func(m router.Message) kept {
		k := kept{strings.Clone(m.Subject), strings.Clone(m.MsgID), string(m.Body), nil}
		for _, h := range m.Headers {
			k.Headers = append(k.Headers, envelope.Header{Name: strings.Clone(h.Name), Value: strings.Clone(h.Value)})
		}
		return k
	}
	r := newRouter(t, config())
	row := outbox(val("headers", oidJSONB, `{"a": "\"", "b": {"c": 1}}`), val("id", oidText, "é"))
	first := keep(published(t, r, row))
	published(t, r, outbox(val("payload", oidBytea, `\x`+strings.Repeat("ab", 1000))))
	again := keep(published(t, r, row))
	other := keep(published(t, newRouter(t, config()), row))
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("second attempt (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(first, other); diff != "" {
		t.Errorf("another router (-first +other):\n%s", diff)
	}
}
