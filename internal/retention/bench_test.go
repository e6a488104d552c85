package retention_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// A million expired rows are cleaned while one writer inserts: the share of the
// writer's speed that is left is reported, as is the time that the cleanup took.
func BenchmarkInsertsBesideCleanup(b *testing.B) {
	for b.Loop() {
		cfg := settings(b)
		conn := connect(b, cfg)
		write(b, conn, "old", 1_000_000, old)
		exec(b, conn, "VACUUM ANALYZE walrelay.outbox")
		exec(b, conn, "CHECKPOINT")
		prove(b, conn, 1)
		writer := connect(b, cfg)
		var written atomic.Int64
		ctx, stop := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				if _, err := writer.Exec(context.WithoutCancel(ctx), `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'w', 'new', '{}')`); err != nil {
					b.Error(err)
					return
				}
				written.Add(1)
			}
		}()
		rate := func(during func()) float64 {
			from, at := written.Load(), time.Now()
			during()
			return float64(written.Load()-from) / time.Since(at).Seconds()
		}
		alone := func() { time.Sleep(5 * time.Second) }
		before := rate(alone)
		var took time.Duration
		beside := rate(func() {
			at := time.Now()
			if found, err := cleaner(connect(b, cfg)).Run(b.Context()); err != nil || found.Deleted != 1_000_000 {
				b.Errorf("Run() = %+v, %v, want a million rows deleted", found, err)
			}
			took = time.Since(at)
		})
		after := rate(alone)
		stop()
		<-done
		b.ReportMetric(beside/((before+after)/2), "of-speed")
		b.ReportMetric((before+after)/2, "inserts/s-alone")
		b.ReportMetric(took.Seconds(), "s-cleanup")
	}
}
