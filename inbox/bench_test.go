package inbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

const benchWorkers = 4

// newBenchWorld is a world whose database waits for its disk, as a service's
// does.
func newBenchWorld(b *testing.B) *world {
	b.Helper()
	return newWorldOn(b, envtest.Postgres(b, testenv.PGConfig{Settings: map[string]string{"fsync": "on"}}).URL("postgres"))
}

// fill stores b.N events of a thousand aggregates.
func (w *world) fill(n int) {
	w.t.Helper()
	const window = 500
	futures := make([]jetstream.PubAckFuture, 0, window)
	for i := range n {
		f, err := w.js.PublishMsgAsync(event(uuid.NewString(), fmt.Sprint("aggregate-", i%1000), i))
		if err != nil {
			w.t.Fatal(err)
		}
		if futures = append(futures, f); len(futures) == window || i == n-1 {
			for _, f := range futures {
				select {
				case <-f.Ok():
				case err := <-f.Err():
					w.t.Fatal(err)
				}
			}
			futures = futures[:0]
		}
	}
}

// BenchmarkPlainLoop is what a service would write without inbox: receipt and
// effect in one transaction, ack after the commit.
func BenchmarkPlainLoop(b *testing.B) {
	w := newBenchWorld(b)
	w.fill(b.N)
	c, err := w.stream.CreateConsumer(b.Context(), jetstream.ConsumerConfig{Durable: "plain", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	msgs := make(chan jetstream.Msg)
	var wg sync.WaitGroup
	for range benchWorkers {
		wg.Go(func() {
			for m := range msgs {
				if err := w.plain(b.Context(), m); err != nil {
					b.Error(err)
				}
			}
		})
	}
	it, err := c.Messages(jetstream.PullMaxMessages(500))
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		m, err := it.Next()
		if err != nil {
			b.Fatal(err)
		}
		msgs <- m
	}
	close(msgs)
	wg.Wait()
	b.StopTimer()
	it.Stop()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func (w *world) plain(ctx context.Context, m jetstream.Msg) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit there is nothing to roll back
	id := m.Headers().Get(envelope.HeaderMsgID)
	tag, err := tx.Exec(ctx, `INSERT INTO walrelay.receipt (consumer, event_id) VALUES ('plain', $1) ON CONFLICT DO NOTHING`, id)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 1 {
		if _, err := tx.Exec(ctx, `INSERT INTO effect (event_id, aggregate, n) VALUES ($1, $2, $3)`, id, m.Headers().Get(envelope.HeaderAggregateID), 1); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return m.Ack()
}

func BenchmarkInbox(b *testing.B) {
	for name, change := range map[string]func(*inbox.Config){
		"single":       func(*inbox.Config) {},
		"batch100":     func(c *inbox.Config) { c.Batch = 100 },
		"PerAggregate": func(c *inbox.Config) { c.Order = inbox.PerAggregate },
	} {
		b.Run(name, func(b *testing.B) {
			w := newBenchWorld(b)
			w.fill(b.N)
			cfg := w.config("bench")
			cfg.Concurrency, cfg.Logger = benchWorkers, nil
			change(&cfg)
			c := w.consumer("pgx", cfg, apply)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			b.ResetTimer()
			go func() { done <- c.Run(ctx) }()
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for c.Status().Applied < uint64(b.N) {
				<-tick.C
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
