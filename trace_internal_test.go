package walrelay

import (
	"context"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
)

func tracedMessage() publish.Message {
	return publish.Message{Subject: "s", MsgID: "id", Headers: []envelope.Header{
		{Name: envelope.HeaderEventType, Value: "placed"},
		{Name: "Traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}}
}

// Without a tracer nothing is spent; BenchmarkTracing has the numbers.
func TestTracingThatIsOffAllocatesNothing(t *testing.T) {
	s := &session{r: &Relay{}, cfg: &Config{}}
	m := tracedMessage()
	if n := testing.AllocsPerRun(1000, func() { s.traced(t.Context(), &m, "SHOP", "", envelope.Position{}, time.Time{}) }); n != 0 || m.Done != nil {
		t.Errorf("tracing that is off makes %v allocations, Done is set: %v; want none", n, m.Done != nil)
	}
}

func TestASpanTellsOfCommitAndOutcome(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	s := &session{r: &Relay{tracer: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer(tracerScope)}, cfg: &Config{Source: "shop"}}
	committed := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		committed time.Time
		stored    bool
	}{{committed, true}, {time.Now().Add(time.Hour), false}} {
		m := tracedMessage()
		s.traced(t.Context(), &m, "SHOP", "", envelope.Position{Epoch: 1}, c.committed)
		if m.Done == nil {
			t.Fatal("no span was begun")
		}
		m.Done(c.stored)
	}
	none := publish.Message{Headers: []envelope.Header{{Name: "traceparent", Value: "rubbish"}}}
	if s.traced(t.Context(), &none, "SHOP", "", envelope.Position{}, committed); none.Done != nil {
		t.Error("a span was begun for what names no trace")
	}
	got := spans.GetSpans()
	if len(got) != 2 {
		t.Fatalf("%d spans, want 2", len(got))
	}
	if !got[0].StartTime.Equal(committed) || got[0].Status.Description != "" {
		t.Errorf("the first span begins at %v with status %v, want the commit's time and none", got[0].StartTime, got[0].Status)
	}
	if got[1].EndTime.Before(got[1].StartTime) || got[1].Status.Description != "became a dead letter" {
		t.Errorf("the second span lasts %v with status %v, want no negative time, and what became of it", got[1].EndTime.Sub(got[1].StartTime), got[1].Status)
	}
	for _, span := range got {
		if span.Parent.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || span.Name != "publish placed" {
			t.Errorf("span %q is of trace %s", span.Name, span.Parent.TraceID())
		}
	}
}

func BenchmarkTracing(b *testing.B) {
	off := &session{r: &Relay{}, cfg: &Config{}}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
	b.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(b.Context())) })
	on := &session{r: &Relay{tracer: provider.Tracer(tracerScope)}, cfg: &Config{Source: "shop"}}
	for name, s := range map[string]*session{"off": off, "on": on} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m := tracedMessage()
				s.traced(b.Context(), &m, "SHOP", "", envelope.Position{Epoch: 1}, time.Time{})
				if m.Done != nil {
					m.Done(true)
				}
			}
		})
	}
}
