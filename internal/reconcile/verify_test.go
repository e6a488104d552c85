package reconcile_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/reconcile"
)

// Memory does not grow with the number of events.
func TestVerifyOfManyEventsStaysSmall(t *testing.T) {
	const events, most = 200_000, 96 << 20
	w := newWorld(t)
	w.fill(t, events)
	w.exec(t, `DELETE FROM walrelay.outbox WHERE seq % 80000 = 0`)
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
	if report.Unknown.Count != 2 || report.Missing.Count != 0 || report.Different.Count != 0 || report.Streams[0].Ours != events {
		t.Errorf("report = %+v, want 2 unknown messages among %d", report, events)
	}
	if got := peak.Load(); got > most || got == 0 {
		t.Errorf("the heap grew to %d MiB, want at most %d", got>>20, most>>20)
	}
	t.Logf("the heap grew to %d MiB for %d events", peak.Load()>>20, events)
}

// A row's created_at is what its writer says, and may be far from when its
// message was stored: what --since left out of the stream is read before a row
// is called missing.
func TestVerifySinceReadsTheRestBeforeItCallsARowMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(t, `ALTER TABLE walrelay.outbox ALTER created_at SET DEFAULT now() + interval '3 hours'`)
	w.fill(t, 50)
	w.cfg.Since = time.Now().Add(2 * time.Hour)
	report, err := reconcile.Verify(t.Context(), w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if report.Found() || report.Tables[0].Rows != 50 || report.Streams[0].Read != 50 || report.Proof != reconcile.ProofSnapshot {
		t.Errorf("report = %+v, want 50 rows and messages and no finding", report)
	}
	w.exec(t, `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'placed', '1')`)
	w.exec(t, `UPDATE walrelay.proven SET snapshot = pg_current_snapshot()`)
	if report, err = reconcile.Verify(t.Context(), w.cfg); err != nil || report.Missing.Count != 1 || report.Streams[0].Read != 50 {
		t.Errorf("Verify() = %+v, %v, want one row missing", report, err)
	}
}

// A41: rows that were there before the slot are missing, and it is said why that
// may be.
func TestVerifySaysWhichRowsAreFromBeforeTheFirstStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(t, `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
		SELECT 'order', '1', 'placed', '1', now() - i * interval '1 day' FROM generate_series(1, 4) i`)
	w.exec(t, `INSERT INTO walrelay.epoch (source, number, system_id, timeline, first_lsn, reason, at) VALUES ('shop', 1, '1', 1, '0/0', 'test', now() - interval '60 hours')`)
	w.exec(t, `INSERT INTO walrelay.proven (source, epoch, snapshot, lsn) SELECT 'shop', 1, pg_current_snapshot(), pg_current_wal_insert_lsn()`)
	report, err := reconcile.Verify(t.Context(), w.cfg)
	if err != nil || report.Missing.Count != 4 {
		t.Fatalf("Verify() = %+v, %v, want four rows missing", report, err)
	}
	if notes := strings.Join(report.Notes, "\n"); !strings.Contains(notes, "2 of the missing rows were written before source shop first ran") {
		t.Errorf("notes = %q, want that two rows are from before the first start", notes)
	}
}

// Without an xid created_at tells, with an hour's margin, which rows a proven
// snapshot saw.
func TestVerifyKnowsRowsWithoutXid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(t, `ALTER TABLE walrelay.outbox DROP xid`)
	w.fill(t, 5)
	report, err := reconcile.Verify(t.Context(), w.cfg)
	if err != nil || report.Found() {
		t.Fatalf("Verify() = %+v, %v, want no finding", report, err)
	}
	// Nothing but the time tells that a row was seen by the proven snapshot.
	w.exec(t, `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES
		('order', '1', 'placed', '1', now()), ('order', '1', 'placed', '2', now() - interval '2 hours')`)
	w.exec(t, `DELETE FROM walrelay.outbox WHERE seq = 3`)
	report, err = reconcile.Verify(t.Context(), w.cfg)
	if err != nil || report.Missing.Count != 1 || report.OnTheirWay != 1 || report.Unknown.Count != 1 {
		t.Errorf("Verify() = %+v, %v, want one row missing, one on its way, one message unknown", report, err)
	}
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
