package e2e_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/outbox"
)

// A receiver takes spans by OTLP over HTTP.
type receiver struct {
	url   string
	token string

	mu       sync.Mutex
	spans    map[string][]*otlp.Span // by service
	refused  int
	requests int
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{token: fixture.NewSecret(), spans: map[string][]*otlp.Span{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		var in collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &in)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.requests++
		if err != nil || request.URL.Path != "/v1/traces" || request.Header.Get("Authorization") != r.token {
			r.refused++
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		for _, resource := range in.GetResourceSpans() {
			service := ""
			for _, a := range resource.GetResource().GetAttributes() {
				if a.GetKey() == "service.name" {
					service = a.GetValue().GetStringValue()
				}
			}
			for _, scope := range resource.GetScopeSpans() {
				r.spans[service] = append(r.spans[service], scope.GetSpans()...)
			}
		}
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *receiver) of(service string) []*otlp.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*otlp.Span{}, r.spans[service]...)
}

// await waits until a service has exported n spans, and gives them by their
// parent's id.
func (r *receiver) await(t *testing.T, service string, n int) map[string][]*otlp.Span {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		if got := len(r.of(service)); got < n {
			return fmt.Errorf("%d spans of %s, want %d", got, service, n)
		}
		return nil
	})
	byParent := map[string][]*otlp.Span{}
	for _, s := range r.of(service) {
		byParent[hex.EncodeToString(s.GetParentSpanId())] = append(byParent[hex.EncodeToString(s.GetParentSpanId())], s)
	}
	return byParent
}

func attribute(s *otlp.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// One trace leads from the service that wrote an event over the relay to the
// consumer that applied it, also where the event was healed or became a dead
// letter; an event without a trace has no span, and no message is another for
// being traced. I10: the exporter's own secret is nowhere.
func TestATraceLeadsFromTheInsertToTheEffect(t *testing.T) {
	t.Parallel()
	sink := newReceiver(t)
	w := fixture.New(t, fixture.Config{Env: []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + sink.url, "OTEL_EXPORTER_OTLP_HEADERS=Authorization=" + sink.token, "OTEL_SERVICE_NAME=the-relay", "OTEL_BSP_SCHEDULE_DELAY=50",
	}})
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(sink.url+"/v1/traces"), otlptracehttp.WithHeaders(map[string]string{"Authorization": sink.token}))
	if err != nil {
		t.Fatal(err)
	}
	spans := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() { _ = spans.Shutdown(context.WithoutCancel(t.Context())) })
	tracer := spans.Tracer("the shop")
	// write writes one event within a span, and gives the ids of trace and span.
	write := func(aggregate string) (traceID, spanID string) {
		t.Helper()
		ctx, span := tracer.Start(t.Context(), "place order")
		defer span.End()
		if err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
			return outbox.Append(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: aggregate, Type: "placed", Payload: map[string]int{"n": 1}})
		}); err != nil {
			t.Fatal(err)
		}
		return span.SpanContext().TraceID().String(), span.SpanContext().SpanID().String()
	}
	check := func(name string, byParent map[string][]*otlp.Span, traceID, spanID, origin string) {
		t.Helper()
		list := byParent[spanID]
		if len(list) != 1 {
			t.Fatalf("%s: %d spans below the insert's, want 1: %v", name, len(list), byParent)
		}
		s := list[0]
		if hex.EncodeToString(s.GetTraceId()) != traceID {
			t.Errorf("%s: the span is of trace %x, want %s", name, s.GetTraceId(), traceID)
		}
		if s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
			t.Errorf("%s: the span ends before it begins", name)
		}
		if got, _, _ := strings.Cut(attribute(s, "walrelay.origin"), "/"); got != origin {
			t.Errorf("%s: origin %q, want %q", name, got, origin)
		}
		if s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR {
			t.Errorf("%s: the span is an error: %s", name, s.GetStatus().GetMessage())
		}
	}

	relay := w.Start()
	firstTrace, firstSpan := write("live")
	w.Place(3) // without a trace
	w.Stored(4)
	proven(t, w)
	relay.Stop(fixture.Patience) // and with it the last spans go out
	secondTrace, secondSpan := write("healed")
	w.Exec("SELECT pg_drop_replication_slot($1)", w.Source)
	relay = w.Start()
	w.Stored(5)
	relay.Stop(fixture.Patience)
	byParent := sink.await(t, "the-relay", 2)
	check("live", byParent, firstTrace, firstSpan, "")
	check("healed", byParent, secondTrace, secondSpan, "heal")
	if n := len(sink.of("the-relay")); n != 2 {
		t.Errorf("the relay exported %d spans, want one for each event with a trace", n)
	}
	for _, s := range sink.of("the-relay") {
		if s.GetName() != "publish placed" || attribute(s, "messaging.destination.name") != w.StreamName || attribute(s, "messaging.message.id") == "" {
			t.Errorf("the relay's span is %v", s)
		}
	}

	// The consumer.
	if code, out := verb(t, nil, "migrate", "--consumer", "--database-url", w.DatabaseURL); code != 0 {
		t.Fatalf("walrelay migrate --consumer = %d: %s", code, out)
	}
	handlers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	c, err := inbox.New(inbox.Config{Name: "billing", DB: w.Pool, JetStream: w.JetStream, Stream: w.StreamName, Tracer: handlers, Concurrency: 1})
	if err != nil {
		t.Fatal(err)
	}
	applied := make(chan string, 10)
	inbox.On(c, "placed", func(_ context.Context, _ pgx.Tx, e inbox.Event[map[string]any]) error {
		applied <- e.ID
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for range 5 {
		<-applied
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	below := map[string][]*otlp.Span{}
	for service, list := range sink.spans {
		if service == "the-relay" {
			continue
		}
		for _, s := range list {
			if s.GetName() == "apply placed" {
				below[hex.EncodeToString(s.GetParentSpanId())] = append(below[hex.EncodeToString(s.GetParentSpanId())], s)
			}
		}
	}
	check("apply", below, firstTrace, firstSpan, "")
	check("apply what was healed", below, secondTrace, secondSpan, "")
	w.Start()
	w.Check()
}

// I6, I8: a collector that refuses or is not there is said, and nothing waits
// for it.
func TestACollectorThatRefusesIsSaidAndDeliveryGoesOn(t *testing.T) {
	t.Parallel()
	sink := newReceiver(t)
	w := fixture.New(t, fixture.Config{Env: []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + sink.url, "OTEL_EXPORTER_OTLP_HEADERS=Authorization=" + fixture.NewSecret(), "OTEL_BSP_SCHEDULE_DELAY=10",
	}})
	relay := w.Start()
	for range 20 {
		w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
			VALUES ('order', 'a1', 'placed', '{}', '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}')`)
	}
	w.Stored(20)
	envtest.Eventually(t, fixture.Patience, func() error {
		if !strings.Contains(relay.Text(), "spans are not exported") {
			return fmt.Errorf("the log does not say that spans are refused")
		}
		return nil
	})
	w.Check()
	relay.Stop(fixture.Patience)
	if code, out := verb(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + sink.url, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, append([]string{"run"}, flat(w.RelayFlags())...)...); code != 2 || !strings.Contains(out, "http/protobuf") {
		t.Errorf("walrelay run with OTLP over gRPC = %d: %s, want 2 and what to use", code, out)
	}
}

func flat(a, b []string) []string { return append(append([]string{}, a...), b...) }
