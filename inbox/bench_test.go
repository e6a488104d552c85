package inbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

const benchWorkers = 4

// newBenchWorld is a world whose database waits for its disk, as a service's
// does.
func newBenchWorld(b *testing.B) *world {
	b.Helper()
	return newWorldOn(b, envtest.Postgres(b, testenv.PGConfig{Settings: map[string]string{"fsync": "on"}}).URL("postgres"))
}

// fill stores b.N events of a thousand aggregates.
func (w *world) fill(n int, id func() string) {
	w.t.Helper()
	const window = 500
	futures := make([]jetstream.PubAckFuture, 0, window)
	for i := range n {
		f, err := w.js.PublishMsgAsync(event(id(), fmt.Sprint("aggregate-", i%1000), i), jetstream.WithStallWait(time.Minute))
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

// plainLoop is what a service would write without inbox: receipt and effect in
// one transaction, ack after the commit.
func (w *world) plainLoop(b *testing.B, name string, n int) time.Duration {
	b.Helper()
	c, err := w.stream.CreateConsumer(b.Context(), jetstream.ConsumerConfig{Durable: name, AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
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
	for range n {
		m, err := it.Next()
		if err != nil {
			b.Fatal(err)
		}
		msgs <- m
	}
	close(msgs)
	wg.Wait()
	took := time.Since(began)
	it.Stop()
	return took
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
		var p payload
		if err := json.Unmarshal(m.Data(), &p); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO effect (event_id, aggregate, n) VALUES ($1, $2, $3)`, id, m.Headers().Get(envelope.HeaderAggregateID), p.N); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return m.Ack()
}

// viaInbox has a consumer apply n events.
func (w *world) viaInbox(b *testing.B, name string, n int, change func(*inbox.Config)) time.Duration {
	b.Helper()
	// A service's own settings: the tests' are in a hurry.
	cfg := inbox.Config{Name: name, DB: w.pool, JetStream: w.js, Stream: streamName, Concurrency: benchWorkers}
	change(&cfg)
	c := w.consumer("pgx", cfg, apply)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- c.Run(ctx) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for c.Status().Applied < uint64(n) {
		<-tick.C
	}
	took := time.Since(began)
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	return took
}

// BenchmarkInbox compares with the plain loop. All take turns in each round, on
// the same servers, so that a machine that does other work as well is slow for
// all; what is reported are medians of the rounds' ratios. -benchtime 10x makes
// ten rounds.
func BenchmarkInbox(b *testing.B) {
	w := newBenchWorld(b)
	rates := map[string][]float64{}
	ratios := map[string][]float64{}
	measure := func(name string, round, n int, run func(name string, n int) time.Duration) float64 {
		if err := w.stream.Purge(b.Context()); err != nil {
			b.Fatal(err)
		}
		w.fill(n, uuid.NewString)
		rate := float64(n) / run(fmt.Sprint(name, "-", round), n).Seconds()
		rates[name] = append(rates[name], rate)
		return rate
	}
	inboxed := func(change func(*inbox.Config)) func(string, int) time.Duration {
		return func(name string, n int) time.Duration { return w.viaInbox(b, name, n, change) }
	}
	const few, many = 4000, 30_000
	for round := range b.N {
		plain := measure("plain", round, few, func(name string, n int) time.Duration { return w.plainLoop(b, name, n) })
		single := measure("single", round, few, inboxed(func(*inbox.Config) {}))
		ordered := measure("ordered", round, few, inboxed(func(c *inbox.Config) { c.Order = inbox.PerAggregate }))
		batch := measure("batch", round, many, inboxed(func(c *inbox.Config) { c.Batch = 100 }))
		for name, ratio := range map[string]float64{"single/plain": single / plain, "batch/plain": batch / plain, "ordered/single": ordered / single} {
			ratios[name] = append(ratios[name], ratio)
		}
	}
	for name, all := range rates {
		b.ReportMetric(median(all), name+"-events/s")
	}
	for name, all := range ratios {
		b.ReportMetric(median(all), name)
	}
}

// BenchmarkReceipts compares consumers that have kept few receipts and many, in
// turn, on the same server: with ids in the order of time, as outbox.Append makes
// them, and with random ones, whose receipts are each looked for somewhere else in
// the index. RECEIPTS names another largest number.
func BenchmarkReceipts(b *testing.B) {
	most := 10_000_000
	if text := os.Getenv("RECEIPTS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		most = n
	}
	// Both kinds are those of the last 29 days, in their order.
	const random, ordered = `gen_random_uuid()`, `left(h, 8) || '-' || right(h, 4) || '-7' || substr(gen_random_uuid()::text, 16)`
	v7 := func() string { return uuid.Must(uuid.NewV7()).String() }
	b.Run("v7", func(b *testing.B) { benchReceipts(b, most, ordered, v7) })
	b.Run("random", func(b *testing.B) { benchReceipts(b, most, random, uuid.NewString) })
}

func benchReceipts(b *testing.B, most int, kept string, id func() string) {
	b.Helper()
	w := newBenchWorld(b)
	sizes := []int{100_000, most / 10, most}
	schemas := make([]string, len(sizes))
	for i, n := range sizes {
		schemas[i] = fmt.Sprint("receipts_", n)
		if err := migrations.Consumer(b.Context(), w.pool.Config().ConnConfig.Copy(), migrations.Config{Schema: schemas[i]}, func(migrations.Step) {}); err != nil {
			b.Fatal(err)
		}
		for _, statement := range []string{ // the index is built at once
			`ALTER TABLE %[1]s.receipt DROP CONSTRAINT receipt_pkey`,
			`INSERT INTO %[1]s.receipt (consumer, event_id, stream, sequence, at) SELECT '%[1]s', ` + kept + `, 'OLDER', i, at
				FROM generate_series(1, %[2]d) AS i, CAST(now() - interval '29 days' * ((%[2]d - i)::float / %[2]d) AS timestamptz) AS at,
				lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') AS h`,
			`ALTER TABLE %[1]s.receipt ADD CONSTRAINT receipt_pkey PRIMARY KEY (consumer, event_id)`,
			`VACUUM (ANALYZE) %[1]s.receipt`, // which makes the index by time useful
		} {
			if _, err := w.pool.Exec(b.Context(), fmt.Sprintf(statement, schemas[i], n)); err != nil {
				b.Fatal(err)
			}
		}
	}
	if _, err := w.pool.Exec(b.Context(), `CHECKPOINT`); err != nil {
		b.Fatal(err)
	}
	const events = 4000
	b.ResetTimer()
	rates, ratios := make([][]float64, len(sizes)), make([][]float64, len(sizes))
	for round := range b.N {
		for i := range sizes {
			if err := w.stream.Purge(b.Context()); err != nil {
				b.Fatal(err)
			}
			w.fill(events, id)
			took := w.viaInbox(b, schemas[i], events, func(c *inbox.Config) { c.Schema = schemas[i] })
			rates[i] = append(rates[i], events/took.Seconds())
			ratios[i] = append(ratios[i], rates[0][round]/rates[i][round])
		}
	}
	for i, n := range sizes {
		b.ReportMetric(median(rates[i]), fmt.Sprint(n, "-events/s"))
		b.ReportMetric(median(ratios[i]), fmt.Sprint(n, "-cost"))
	}
}

func median(all []float64) float64 {
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
