package reconcile_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/reconcile"
)

// Memory does not grow with the number of events.
func TestVerifyOfManyEventsStaysSmall(t *testing.T) {
	const events, most = 300_000, 96 << 20
	w := newWorld(t)
	w.fill(t, events)
	w.exec(t, `DELETE FROM walrelay.outbox WHERE seq % 100000 = 0`)
	runtime.GC()
	var peak atomic.Uint64
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak.Store(max(peak.Load(), m.HeapInuse))
			}
		}
	}()
	report, err := reconcile.Verify(t.Context(), w.cfg)
	stop()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	if report.Unknown.Count != 3 || report.Missing.Count != 0 || report.Different.Count != 0 || report.Streams[0].Ours != events {
		t.Errorf("report = %+v, want 3 unknown messages among %d", report, events)
	}
	if got := peak.Load(); got > most || got == 0 {
		t.Errorf("the heap grew to %d MiB, want at most %d", got>>20, most>>20)
	}
	t.Logf("the heap grew to %d MiB for %d events", peak.Load()>>20, events)
}

// BenchmarkVerify compares a whole verification with a bare consumer that reads
// the headers of the same stream in the same run.
func BenchmarkVerify(b *testing.B) {
	const events = 300_000
	w := newWorld(b)
	w.fill(b, events)
	b.ResetTimer()
	var bare, whole time.Duration
	for b.Loop() {
		began := time.Now()
		if err := readBare(b.Context(), w.js, events); err != nil {
			b.Fatal(err)
		}
		bare += time.Since(began)
		began = time.Now()
		report, err := reconcile.Verify(b.Context(), w.cfg)
		if err != nil || report.Found() {
			b.Fatalf("Verify() = %+v, %v", report, err)
		}
		whole += time.Since(began)
	}
	rate := func(d time.Duration) float64 { return float64(events) * float64(b.N) / d.Seconds() }
	b.ReportMetric(rate(bare), "bare/s")
	b.ReportMetric(rate(whole), "verify/s")
	b.ReportMetric(bare.Seconds()/whole.Seconds(), "ratio")
}

func readBare(ctx context.Context, js jetstream.JetStream, events uint64) error {
	consumer, err := js.OrderedConsumer(ctx, "SHOP", jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(5000))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next()
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		meta, err := m.Metadata()
		if err != nil || meta.Sequence.Stream == events {
			return err
		}
	}
}
