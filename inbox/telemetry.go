package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

const scope = "github.com/walrelay/walrelay/inbox"

// telemetry is the consumer's spans and instruments, made with OpenTelemetry's
// API alone: which SDK gets them is the service's choice.
type telemetry struct {
	consumer attribute.KeyValue
	stream   attribute.KeyValue
	tracer   trace.Tracer
	events   metric.Int64Counter
	attempts metric.Int64Counter
	seconds  metric.Float64Histogram
	cleaned  metric.Int64Counter
	cleaning metric.Float64Histogram
	latency  metric.Float64Histogram

	// What is read while a session lasts, see session.lag.
	metered                       bool
	meter                         metric.Meter
	pending, outstanding, waiting metric.Int64ObservableGauge
}

func newTelemetry(cfg Config) (*telemetry, error) {
	tracer, meter := cfg.Tracer, cfg.Meter
	if tracer == nil {
		tracer = nooptrace.NewTracerProvider()
	}
	if meter == nil {
		meter = noopmetric.NewMeterProvider()
	}
	t := &telemetry{
		consumer: attribute.String("messaging.consumer.group.name", cfg.Name),
		stream:   attribute.String("messaging.destination.name", cfg.Stream),
		tracer:   tracer.Tracer(scope),
	}
	m := meter.Meter(scope)
	t.metered, t.meter = cfg.Meter != nil, m
	var errs [9]error
	t.events, errs[0] = m.Int64Counter("walrelay.inbox.events", metric.WithUnit("{event}"),
		metric.WithDescription("Events that a consumer is done with, by outcome."))
	t.attempts, errs[1] = m.Int64Counter("walrelay.inbox.failures", metric.WithUnit("{attempt}"),
		metric.WithDescription("Attempts that failed."))
	t.seconds, errs[2] = m.Float64Histogram("walrelay.inbox.handler.duration", metric.WithUnit("s"),
		metric.WithDescription("Time in handlers."))
	t.cleaned, errs[3] = m.Int64Counter("walrelay.inbox.receipts.deleted", metric.WithUnit("{receipt}"),
		metric.WithDescription("Receipts deleted because of their age."))
	t.cleaning, errs[4] = m.Float64Histogram("walrelay.inbox.receipts.deletion.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of one round of deleting old receipts, its pauses included."))
	t.latency, errs[5] = m.Float64Histogram("walrelay.inbox.latency", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(
		0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200,
	),
		metric.WithDescription("Time from the commit of an event to the commit of its effect: the database's clock against this one."))
	t.pending, errs[6] = m.Int64ObservableGauge("walrelay.inbox.pending", metric.WithUnit("{message}"),
		metric.WithDescription("Messages of the stream that the consumer was not given yet: its lag. Absent when not known."))
	t.outstanding, errs[7] = m.Int64ObservableGauge("walrelay.inbox.outstanding", metric.WithUnit("{message}"),
		metric.WithDescription("Messages that the consumer was given and has not acknowledged. Absent when not known."))
	t.waiting, errs[8] = m.Int64ObservableGauge("walrelay.inbox.waiting", metric.WithUnit("{message}"),
		metric.WithDescription("Messages in this process that wait behind an event that failed."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	return t, nil
}

// start begins the span of a handler's call, as a child of the trace that the
// event came with.
func (t *telemetry) start(ctx context.Context, m *Message) (context.Context, func(error)) {
	began := time.Now()
	ctx = propagation.TraceContext{}.Extract(ctx, headerCarrier(m.Headers))
	ctx, span := t.tracer.Start(ctx, "apply "+m.Type, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		t.consumer, t.stream,
		attribute.String("messaging.system", "nats"),
		attribute.String("messaging.message.id", m.ID),
	))
	return ctx, func(err error) {
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, "handler failed")
		}
		span.End()
		t.seconds.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(t.consumer, attribute.String("event_type", m.Type)))
	}
}

func (t *telemetry) done(ctx context.Context, o Outcome) {
	t.events.Add(ctx, 1, metric.WithAttributes(t.consumer, attribute.String("outcome", o.String())))
}

// applied notes how late an effect is.
func (t *telemetry) applied(ctx context.Context, m *Message) {
	if !m.CommittedAt.IsZero() {
		t.latency.Record(ctx, max(0, time.Since(m.CommittedAt).Seconds()), metric.WithAttributes(t.consumer))
	}
}

func (t *telemetry) failed(ctx context.Context) {
	t.attempts.Add(ctx, 1, metric.WithAttributes(t.consumer))
}

// headerCarrier lets a propagator read headers of NATS, whose names keep the
// case they were written in.
type headerCarrier nats.Header

func (h headerCarrier) Get(key string) string { return first(nats.Header(h), key) }

func (headerCarrier) Set(string, string) {}

func (h headerCarrier) Keys() []string {
	keys := make([]string, 0, len(h))
	for k := range h {
		keys = append(keys, k)
	}
	return keys
}
