package inbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
)

const (
	// lagEvery is how often JetStream is asked how much is left, and lagStale
	// how old its answer may be and still be told.
	lagEvery = 10 * time.Second
	lagStale = time.Minute
)

// A backlog is what JetStream said is left to do.
type backlog struct {
	pending     uint64 // messages of the stream that were not delivered yet
	outstanding int    // delivered, and not acknowledged
	at          time.Time
}

// lag asks how much is left until ctx ends, for the gauges that the consumer's
// meter reads meanwhile. Without a meter nobody is asked. What is not known is
// not told: a gauge does not stand where it stood.
func (s *session) lag(ctx context.Context) error {
	t := s.c.tele
	if !t.metered {
		return nil
	}
	var left atomic.Pointer[backlog]
	registered, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		which := metric.WithAttributes(t.consumer, t.stream)
		o.ObserveInt64(t.waiting, s.c.count.waiting.Load(), which)
		if b := left.Load(); b != nil && time.Since(b.at) < lagStale {
			o.ObserveInt64(t.pending, int64(b.pending), which) //nolint:gosec // a count of messages
			o.ObserveInt64(t.outstanding, int64(b.outstanding), which)
		}
		return nil
	}, t.waiting, t.pending, t.outstanding)
	if err != nil {
		return fmt.Errorf("let the meter read how much is left: %w", err)
	}
	defer registered.Unregister() //nolint:errcheck // it was registered
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	for {
		if info, err := s.source.Info(ctx); err == nil {
			left.Store(&backlog{pending: info.NumPending, outstanding: info.NumAckPending, at: time.Now()})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
