package publish

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
)

func benchMessage() *Message {
	return &Message{
		Subject: "ev.order.placed", MsgID: "0191b2c0-5a3e-7c9a-8f00-1b2c3d4e5f60", Body: make([]byte, 256),
		Headers: []envelope.Header{
			{Name: envelope.HeaderSource, Value: "bench"},
			{Name: envelope.HeaderPosition, Value: "1/0/16B3748/0"},
			{Name: envelope.HeaderAggregateType, Value: "order"},
			{Name: envelope.HeaderAggregateID, Value: "42"},
			{Name: envelope.HeaderEventType, Value: "order.placed"},
		},
	}
}

// encodeStep takes a message into the window, fills in the client's message from
// it and lets it go.
func encodeStep(w *window, ts *templates, m *Message, out *nats.Msg) {
	e := w.push(m, ts.find(m.Headers))
	e.fill(out, "12345")
	e.template.part(2, 3).set("batch", "2")
	w.sent()
	w.answer(e)
	w.stored()
}

// Not parallel: AllocsPerRun counts what any goroutine allocates.
func TestEncodingAndReadingAnswersAllocateNothing(t *testing.T) {
	var w window
	var out nats.Msg
	ts := templates{stream: "EV", chained: true}
	m := benchMessage()
	encode := func() { encodeStep(&w, &ts, m, &out) }
	for range 2000 {
		encode() // until chunks are used again
	}
	if got := testing.AllocsPerRun(2000, encode); got != 0 {
		t.Errorf("encode: %v allocations an event, want 0", got)
	}
	p, data := newAckParser("EV"), []byte(`{"stream":"EV","seq":123456}`)
	if got := testing.AllocsPerRun(1000, func() {
		if a := p.parse(nil, data); a.kind != ackStored || a.seq != 123456 {
			t.Fatalf("read %+v", a)
		}
	}); got != 0 {
		t.Errorf("ack: %v allocations an event, want 0", got)
	}
}

func BenchmarkEncode(b *testing.B) {
	var w window
	var out nats.Msg
	ts := templates{stream: "EV", chained: true}
	m := benchMessage()
	b.ReportAllocs()
	for b.Loop() {
		encodeStep(&w, &ts, m, &out)
	}
}

func BenchmarkAck(b *testing.B) {
	p, data := newAckParser("EV"), []byte(`{"stream":"EV","seq":123456}`)
	b.ReportAllocs()
	for b.Loop() {
		if a := p.parse(nil, data); a.seq != 123456 {
			b.Fatal(a)
		}
	}
}
