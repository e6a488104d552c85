package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

const (
	traceID  = "0af7651916cd43dd8448eb211c80319c"
	parentID = "b7ad6b7169203331"
)

func TestEachCallOfAHandlerIsASpanOfTheTraceThatItsEventCameWith(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 10} {
		t.Run(fmt.Sprint("batch of ", batch), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			spans := tracetest.NewInMemoryExporter()
			cfg := w.config("billing")
			cfg.Tracer, cfg.Batch, cfg.MaxAttempts = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), batch, 1
			w.start(w.consumer("pgx", cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
				if e.Data.N == 2 {
					return errors.New("not that one")
				}
				if !trace.SpanFromContext(ctx).SpanContext().IsValid() {
					return errors.New("the handler's context has no span")
				}
				return apply(ctx, tx, e)
			}))
			m := event("first", "a", 1)
			m.Header["traceparent"] = []string{"00-" + traceID + "-" + parentID + "-01"}
			w.publishMsg(m)
			w.settled("billing")
			w.publishMsg(event("second", "a", 2))
			w.settled("billing")

			got := spans.GetSpans()
			if len(got) != 2 {
				t.Fatalf("spans = %d, want one for each call of the handler", len(got))
			}
			first, second := got[0], got[1]
			if first.SpanContext.TraceID().String() != traceID || first.Parent.SpanID().String() != parentID || !first.Parent.IsRemote() {
				t.Errorf("span of trace %s below %s, want one of %s below %s", first.SpanContext.TraceID(), first.Parent.SpanID(), traceID, parentID)
			}
			if first.Name != "apply placed" || first.SpanKind != trace.SpanKindConsumer || first.Status.Code != codes.Unset {
				t.Errorf("span %q, kind %v, status %v, want \"apply placed\" of a consumer without an error", first.Name, first.SpanKind, first.Status)
			}
			want := attribute.NewSet(
				attribute.String("messaging.system", "nats"), attribute.String("messaging.message.id", "first"),
				attribute.String("messaging.consumer.group.name", "billing"), attribute.String("messaging.destination.name", streamName),
			)
			if set := attribute.NewSet(first.Attributes...); !set.Equals(&want) {
				t.Errorf("attributes = %v, want %v", set.ToSlice(), want.ToSlice())
			}
			if second.Parent.IsValid() || second.SpanContext.TraceID().String() == traceID {
				t.Errorf("an event without a trace became a part of %s", second.SpanContext.TraceID())
			}
			if second.Status.Code != codes.Error || len(second.Events) != 1 || second.Events[0].Name != "exception" {
				t.Errorf("status, events of a failed call = %v, %v, want an error and its exception", second.Status, second.Events)
			}
		})
	}
}

// sums gives the data points of a counter, or the counts of a histogram, by
// the values of their attributes but the consumer's name.
func sums(t *testing.T, reader *sdkmetric.ManualReader, name string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	add := func(set attribute.Set, n int64) {
		key := ""
		for _, a := range set.ToSlice() {
			switch {
			case a.Key != "messaging.consumer.group.name":
				key += string(a.Key) + "=" + a.Value.AsString()
			case a.Value.AsString() != "billing":
				t.Errorf("%s counts for consumer %q, want billing", name, a.Value.AsString())
			}
		}
		found[key] += n
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, int64(p.Count))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, p.Value)
				}
			default:
				t.Errorf("%s is %T, want a sum, a gauge or a histogram", name, data)
			}
		}
	}
	return found
}

func TestMetricsCountWhatBecameOfEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := sdkmetric.NewManualReader()
	cfg := w.config("billing")
	cfg.Meter, cfg.MaxAttempts = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), 3
	w.exec(`INSERT INTO walrelay.receipt (consumer, event_id, at) SELECT 'billing', 'old-' || n, now() - interval '31 days' FROM generate_series(1, 7) n`)
	w.start(w.consumer("pgx", cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
		if e.Data.N == 99 {
			return errors.New("never")
		}
		return apply(ctx, tx, e)
	}))
	for n := range 5 {
		w.publish("a", n)
	}
	m := event("twice", "a", 5)
	w.publishMsg(m)
	w.publishMsg(again(m))
	w.publish("a", 99)
	other := event("other", "a", 6)
	other.Header["Walrelay-Event-Type"] = []string{"cancelled"}
	w.publishMsg(other)
	w.settled("billing")
	for name, want := range map[string]map[string]int64{
		"walrelay.inbox.events":           {"outcome=applied": 6, "outcome=duplicate": 1, "outcome=dead_lettered": 1, "outcome=skipped": 1},
		"walrelay.inbox.failures":         {"": 3},
		"walrelay.inbox.handler.duration": {"event_type=placed": 9},
		"walrelay.inbox.receipts.deleted": {"": 7},
		"walrelay.inbox.latency":          {"": 6},
		"walrelay.inbox.pending":          {"messaging.destination.name=" + streamName: 0},
		"walrelay.inbox.outstanding":      {"messaging.destination.name=" + streamName: 0},
		"walrelay.inbox.waiting":          {"messaging.destination.name=" + streamName: 0},
	} {
		// An ack is sent a moment before it is counted.
		envtest.Eventually(t, 10*time.Second, func() error {
			if diff := cmp.Diff(want, sums(t, reader, name)); diff != "" {
				return fmt.Errorf("%s (-want +got):\n%s", name, diff)
			}
			return nil
		})
	}
	if got := sums(t, reader, "walrelay.inbox.receipts.deletion.duration"); got[""] == 0 {
		t.Error("no round of deleting receipts was timed")
	}
}

// I10: what is left to do is told while it is known, and only then.
func TestAConsumersLagIsToldWhileItConsumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := sdkmetric.NewManualReader()
	cfg := w.config("billing")
	cfg.Meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	for n := range 5 {
		w.publish("a", n)
	}
	if got := sums(t, reader, "walrelay.inbox.pending"); len(got) > 0 {
		t.Errorf("pending is %v before anybody was asked", got)
	}
	release := make(chan struct{})
	stop := w.start(w.consumer("pgx", cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return apply(ctx, tx, e)
	}))
	left := "messaging.destination.name=" + streamName
	envtest.Eventually(t, 10*time.Second, func() error {
		pending, outstanding := sums(t, reader, "walrelay.inbox.pending"), sums(t, reader, "walrelay.inbox.outstanding")
		if pending[left]+outstanding[left] != 5 {
			return fmt.Errorf("pending %v and outstanding %v, want 5 together", pending, outstanding)
		}
		return nil
	})
	close(release)
	w.settled("billing")
	if err := stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if got := sums(t, reader, "walrelay.inbox.pending"); len(got) > 0 {
		t.Errorf("pending is %v after the consumer has stopped, want nothing", got)
	}
}
