package walrelay

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
)

// tracerScope names our spans' origin.
const tracerScope = "github.com/walrelay/walrelay"

// traced begins the span of a message, in the trace that its row names with
// traceparent; a row that names none has none. The message itself is not
// changed: what a row says is its own. The span lasts from the commit, where its
// time is known, until the message is stored. origin is empty for what is live.
// Nothing is done where nobody wants spans.
func (s *session) traced(ctx context.Context, m *publish.Message, stream, origin string, position envelope.Position, committed time.Time) {
	if s.r.tracer == nil {
		return
	}
	headers := traceHeaders(m.Headers)
	if headers.Get("traceparent") == "" {
		return
	}
	ctx = propagation.TraceContext{}.Extract(ctx, headers)
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsValid() {
		return
	}
	// Clocks differ, and no span ends before it begins.
	began := time.Now()
	if !committed.IsZero() && committed.Before(began) {
		began = committed
	}
	// What a span keeps is copied: the message's bytes are soon another's.
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", "nats"),
		attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.destination.name", stream),
		attribute.String("messaging.message.id", strings.Clone(m.MsgID)),
		attribute.Int("messaging.message.body.size", len(m.Body)),
		attribute.String("walrelay.source", s.cfg.Source),
	}
	if !position.IsZero() {
		attributes = append(attributes, attribute.String("walrelay.position", position.String()))
	}
	if origin != "" {
		attributes = append(attributes, attribute.String("walrelay.origin", origin))
	}
	_, span := s.r.tracer.Start(ctx, "publish "+strings.Clone(headers.of(envelope.HeaderEventType)), trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithTimestamp(began), trace.WithAttributes(attributes...))
	if !span.IsRecording() {
		return
	}
	m.Done = func(stored bool) {
		if !stored {
			span.SetStatus(codes.Error, "became a dead letter")
		}
		span.End()
	}
}

// traceHeaders lets a propagator read a message's headers. Rows may write the
// names in any case.
type traceHeaders []envelope.Header

// Get gives a copy.
func (h traceHeaders) Get(name string) string { return strings.Clone(h.of(name)) }

func (h traceHeaders) of(name string) string {
	for i := range h {
		if strings.EqualFold(h[i].Name, name) {
			return h[i].Value
		}
	}
	return ""
}

// Set does nothing: what a row says is not changed.
func (traceHeaders) Set(string, string) {}

// Keys are the names.
func (h traceHeaders) Keys() []string {
	names := make([]string, 0, len(h))
	for i := range h {
		names = append(names, h[i].Name)
	}
	return names
}
