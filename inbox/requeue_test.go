package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// buried publishes events that fail for good, and waits until they are dead
// letters; it gives their ids there, in the order of the stream.
func (w *world) buried(aggregate string, n ...int) []int64 {
	w.t.Helper()
	ids := make([]int64, len(n))
	for i := range n {
		event := w.publish(aggregate, n[i])
		envtest.Eventually(w.t, 10*time.Second, func() error {
			return w.pool.QueryRow(w.t.Context(), `SELECT id FROM walrelay.consumer_dead_letter WHERE event_id = $1`, event).Scan(&ids[i])
		})
	}
	return ids
}

func (w *world) requeue(ids ...int64) {
	w.t.Helper()
	done, err := deadletter.RequeueConsumer(w.t.Context(), w.pool, "walrelay", "billing", ids, deadletter.Request{By: "ann", Why: "fixed"})
	if err != nil || len(done) != len(ids) {
		w.t.Fatalf("RequeueConsumer() = %v, %v, want %v", done, err, ids)
	}
}

// resolution waits until nobody is to try a dead letter, and gives what became
// of it.
func (w *world) resolution(id int64) (resolution, failure string) {
	w.t.Helper()
	envtest.Eventually(w.t, 10*time.Second, func() error {
		var asked bool
		err := w.pool.QueryRow(w.t.Context(), `SELECT resolved_at IS NULL AND requeue_at IS NOT NULL, coalesce(resolution, ''), error
			FROM walrelay.consumer_dead_letter WHERE id = $1`, id).Scan(&asked, &resolution, &failure)
		if err == nil && asked {
			err = fmt.Errorf("dead letter %d was not tried", id)
		}
		return err
	})
	return resolution, failure
}

// steps gives what was done about a dead letter.
func (w *world) steps(id int64) string {
	w.t.Helper()
	l, err := deadletter.GetConsumer(w.t.Context(), w.pool, "walrelay", "billing", id)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for _, s := range l.History {
		if s.At.IsZero() {
			w.t.Errorf("step %+v has no time", s)
		}
		all = append(all, strings.Join(strings.Fields(strings.Join([]string{s.Did, s.By, s.Why, s.Error}, " ")), " "))
	}
	return strings.Join(all, "; ")
}

// A switch fails events permanently while it is off.
type breaker struct{ fixed atomic.Bool }

func (b *breaker) handle(ctx context.Context, tx exec, e inbox.Event[payload]) error {
	if err := apply(ctx, tx, e); err != nil {
		return err
	}
	if !b.fixed.Load() && e.Data.N < 100 {
		return inbox.Permanent(errors.New("not yet"))
	}
	return nil
}

// I9.
func TestARequeuedDeadLetterIsAppliedByTheRunningService(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		for _, order := range []inbox.Order{inbox.Unordered, inbox.PerAggregate} {
			t.Run(fmt.Sprint("order ", order), func(t *testing.T) {
				w := newWorld(t)
				cfg := w.config("billing")
				cfg.Order = order
				var b breaker
				var late atomic.Bool
				c := w.consumer(driver, cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
					late.Store(e.Late)
					return b.handle(ctx, tx, e)
				})
				w.start(c)
				id := w.buried("a", 1)[0]
				w.requeue(id)
				if got, failure := w.resolution(id); got != "" || failure != "not yet" {
					t.Errorf("resolution, error = %q, %q, want an open one that failed again", got, failure)
				}
				if got := w.count(`SELECT count(*) FROM effect`) + w.count(`SELECT count(*) FROM walrelay.receipt`); got != 0 {
					t.Errorf("effects and receipts of an event that failed = %d, want 0", got)
				}
				b.fixed.Store(true)
				w.requeue(id)
				if got, _ := w.resolution(id); got != "requeued" {
					t.Errorf("resolution = %q, want requeued", got)
				}
				if got := w.count(`SELECT count(*) FROM effect e JOIN walrelay.receipt r USING (event_id)`); got != 1 {
					t.Errorf("effects with receipts = %d, want 1", got)
				}
				envtest.Eventually(t, 10*time.Second, func() error { // it is counted once the commit is known
					if got := c.Status().Requeued; got != 1 {
						return fmt.Errorf("Status().Requeued = %d, want 1", got)
					}
					return nil
				})
				if got, want := w.steps(id), "requeue ann fixed; failed not yet; requeue ann fixed; applied"; got != want {
					t.Errorf("history = %q, want %q", got, want)
				}
				if !late.Load() {
					t.Error("a requeued event does not say that it is late")
				}
			})
		}
	})
}

// I9: receipt, effect and the dead letter's end commit together, or none does.
func TestARequeueWhoseCommitFailsLeavesTheDeadLetterOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b breaker
	w.start(w.consumer("pgx", w.config("billing"), b.handle))
	id := w.buried("a", 1)[0]
	b.fixed.Store(true)
	w.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not at commit'; END $$`)
	w.exec(`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	w.requeue(id)
	if got, failure := w.resolution(id); got != "" || !strings.Contains(failure, "not at commit") {
		t.Errorf("resolution, error = %q, %q, want an open one and the commit's error", got, failure)
	}
	if got := w.count(`SELECT count(*) FROM effect`) + w.count(`SELECT count(*) FROM walrelay.receipt`); got != 0 {
		t.Errorf("effects and receipts = %d, want 0", got)
	}
	w.exec(`DROP TRIGGER refuse ON effect`)
	w.requeue(id)
	if got, _ := w.resolution(id); got != "requeued" || w.count(`SELECT count(*) FROM effect`) != 1 {
		t.Errorf("resolution = %q with %d effects, want requeued and 1", got, w.count(`SELECT count(*) FROM effect`))
	}
}

func TestARequeuedEventNeverRunsBesideAnotherOfItsAggregate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b breaker
	var mu sync.Mutex
	running, most := map[string]int{}, 0
	cfg := w.orderedConfig(1)
	w.start(w.consumer("pgx", cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
		mu.Lock()
		running[e.AggregateID]++
		most = max(most, running[e.AggregateID])
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			running[e.AggregateID]--
		}()
		if b.fixed.Load() {
			if err := tx(ctx, `SELECT pg_sleep(0.02)`); err != nil {
				return err
			}
		}
		return b.handle(ctx, tx, e)
	}))
	ids := w.buried("a", 1, 2, 3, 4, 5)
	b.fixed.Store(true)
	for n := range 60 {
		w.publish("a", 100+n)
		if n%10 == 0 && n < 50 {
			w.requeue(ids[n/10])
		}
	}
	for _, id := range ids {
		if got, _ := w.resolution(id); got != "requeued" {
			t.Errorf("dead letter %d: resolution = %q, want requeued", id, got)
		}
	}
	w.settled("billing")
	if most != 1 {
		t.Errorf("events of one aggregate side by side = %d, want 1", most)
	}
	if got := w.count(`SELECT count(*) FROM effect`); got != 65 {
		t.Errorf("effects = %d, want 65", got)
	}
	if got := w.count(`SELECT count(*) FROM (SELECT n < lag(n) OVER (ORDER BY id) AS back FROM effect WHERE n >= 100) AS e WHERE back`); got != 0 {
		t.Errorf("effects out of order = %d, want 0", got)
	}
}

func TestDeadLettersOfAnAggregateAreRequeuedInItsOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b breaker
	var stuck atomic.Int64
	stuck.Store(-1)
	w.start(w.consumer("pgx", w.orderedConfig(1), func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
		if int64(e.Data.N) == stuck.Load() {
			return errors.New("stuck")
		}
		return b.handle(ctx, tx, e)
	}))
	ids := w.buried("a", 1, 2, 3, 4)
	other := w.buried("b", 5)[0]
	b.fixed.Store(true)
	stuck.Store(2)
	w.requeue(ids[3], ids[1], ids[0], ids[2], other)
	want := map[int64]string{ids[0]: "requeued", ids[1]: "", ids[2]: "", ids[3]: "", other: "requeued"}
	for id, want := range want {
		if got, _ := w.resolution(id); got != want {
			t.Errorf("dead letter %d: resolution = %q, want %q", id, got, want)
		}
	}
	if got := w.steps(ids[2]); !strings.Contains(got, fmt.Sprintf("put back dead letter %d, which is before it", ids[1])) {
		t.Errorf("history of one behind a failed one = %q, want that it was put back", got)
	}
	stuck.Store(-1)
	w.requeue(ids[3], ids[2], ids[1])
	for _, id := range ids {
		if got, _ := w.resolution(id); got != "requeued" {
			t.Errorf("dead letter %d: resolution = %q, want requeued", id, got)
		}
	}
	if got := w.count(`SELECT count(*) FROM (SELECT n < lag(n) OVER (ORDER BY id) AS back FROM effect WHERE aggregate = 'a') AS e WHERE back`); got != 0 {
		t.Errorf("effects out of order = %d, want 0", got)
	}
}

func TestADeadLetterOfAnotherPartitionIsLeftToIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b breaker
	config := func(partition, subject string) inbox.Config {
		cfg := w.orderedConfig(1)
		cfg.Partition, cfg.Subjects = partition, []string{subject}
		return cfg
	}
	first := w.consumer("pgx", config("p0", "outbox.shop.order.placed"), b.handle)
	stop := w.start(first)
	id := w.buried("a", 1)[0]
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.fixed.Store(true)
	second := w.consumer("pgx", config("p1", "outbox.mail.>"), b.handle)
	w.start(second)
	w.requeue(id)
	m := event("of p1", "b", 101)
	m.Subject = "outbox.mail.order.placed"
	w.publishMsg(m)
	w.settled("billing-p1")
	if got := second.Status(); got.Requeued != 0 || w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter WHERE requeue_at IS NOT NULL`) != 1 {
		t.Errorf("Status() of the other partition = %+v, want nothing requeued", got)
	}
	w.start(w.consumer("pgx", config("p0", "outbox.shop.order.placed"), b.handle))
	if got, _ := w.resolution(id); got != "requeued" {
		t.Errorf("resolution = %q, want requeued", got)
	}
	if got := second.Status().Requeued; got != 0 {
		t.Errorf("requeued by the other partition = %d, want 0", got)
	}
}

func TestADeadLetterThatEndsItsProcessIsNotTriedForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b breaker
	stop := w.start(w.consumer("pgx", w.config("billing"), b.handle))
	id := w.buried("a", 1)[0]
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.fixed.Store(true)
	w.requeue(id)
	// So it looks when the process ended in the middle of it three times.
	w.exec(`UPDATE walrelay.consumer_dead_letter SET requeue_tries = 3`)
	w.start(w.consumer("pgx", w.config("billing"), b.handle))
	if got, failure := w.resolution(id); got != "" || !strings.Contains(failure, "the process ended each time") {
		t.Errorf("resolution, error = %q, %q, want an open one and why", got, failure)
	}
	w.requeue(id) // asked for once more it gets new tries
	if got, _ := w.resolution(id); got != "requeued" {
		t.Errorf("resolution = %q, want requeued", got)
	}
}

// A database that is away in the middle of a try costs it nothing.
func TestARequeueThatIsCutOffByAStopStaysAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b breaker
	entered := make(chan struct{})
	cfg := w.config("billing")
	cfg.DrainTimeout = 200 * time.Millisecond
	stop := w.start(w.consumer("pgx", cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
		if b.fixed.Load() {
			close(entered)
			<-ctx.Done()
			return ctx.Err()
		}
		return b.handle(ctx, tx, e)
	}))
	id := w.buried("a", 1)[0]
	b.fixed.Store(true)
	w.requeue(id)
	<-entered
	if err := stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if got := w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter WHERE requeue_at IS NOT NULL AND resolved_at IS NULL AND requeue_tries = 0`); got != 1 {
		t.Errorf("dead letters asked for without a try that counts = %d, want 1", got)
	}
	w.start(w.consumer("pgx", w.config("billing"), (&b).handle))
	if got, _ := w.resolution(id); got != "requeued" {
		t.Errorf("resolution = %q, want requeued", got)
	}
}

func TestALargePayloadIsRequeuedFromTheStreamWhileItIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b breaker
	w.start(w.consumer("pgx", w.config("billing"), b.handle))
	var ids []int64
	for n := range 3 {
		m := event(fmt.Sprint("large-", n), "a", n)
		m.Data = fmt.Appendf(nil, `{"n": %d, "x": %q}`, n, strings.Repeat("x", 1<<20))
		w.publishMsg(m)
		var id int64
		envtest.Eventually(t, 10*time.Second, func() error {
			return w.pool.QueryRow(t.Context(), `SELECT id FROM walrelay.consumer_dead_letter WHERE event_id = $1 AND payload IS NULL`, fmt.Sprint("large-", n)).Scan(&id)
		})
		ids = append(ids, id)
	}
	b.fixed.Store(true)
	if err := w.stream.DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	// A stream that was made anew has another message at that sequence.
	w.exec(`UPDATE walrelay.consumer_dead_letter SET payload_sha256 = sha256('another') WHERE id = $1`, ids[2])
	w.requeue(ids...)
	if got, failure := w.resolution(ids[2]); got != "" || !strings.Contains(failure, "does not have it at sequence 3 any more") {
		t.Errorf("resolution, error = %q, %q, want an open one and why", got, failure)
	}
	if got, failure := w.resolution(ids[0]); got != "" || !strings.Contains(failure, "does not have it at sequence 1 any more") {
		t.Errorf("resolution, error = %q, %q, want an open one and why", got, failure)
	}
	if got, _ := w.resolution(ids[1]); got != "requeued" || w.count(`SELECT count(*) FROM effect WHERE n = 1`) != 1 {
		t.Errorf("resolution = %q, want requeued with its effect", got)
	}
}

// I9.
func TestADiscardedEventIsNotAppliedWhenItComesAgain(t *testing.T) {
	t.Parallel()
	for _, order := range []inbox.Order{inbox.Unordered, inbox.PerAggregate} {
		t.Run(fmt.Sprint("order ", order), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var b breaker
			cfg := w.config("billing")
			cfg.Order, cfg.CheckInterval = order, time.Hour
			stop := w.start(w.consumer("pgx", cfg, b.handle))
			id := w.buried("a", 1)[0]
			done, err := deadletter.DiscardConsumer(t.Context(), w.pool, "walrelay", "billing", []int64{id}, deadletter.Request{By: "ann", Why: "a test order"})
			if err != nil || len(done) != 1 {
				t.Fatalf("DiscardConsumer() = %v, %v, want one", done, err)
			}
			b.fixed.Store(true)
			// Once as a replay, once as what a database might have
			// forgotten, once as the same message again.
			raw, err := w.stream.GetMsg(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			m := event("", "a", 1)
			m.Header["Nats-Msg-Id"] = raw.Header["Nats-Msg-Id"]
			w.publishMsg(again(m))
			w.settled("billing")
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			if err := w.stream.DeleteConsumer(t.Context(), "billing"); err != nil {
				t.Fatal(err)
			}
			w.exec(`UPDATE walrelay.consumer SET verified = 0`)
			c := w.consumer("pgx", cfg, b.handle)
			w.start(c)
			w.publish("a", 100)
			envtest.Eventually(t, 10*time.Second, func() error {
				if s := c.Status(); s.Applied != 1 || s.Duplicates != 2 {
					return fmt.Errorf("Status() = %+v, want 1 applied and 2 duplicates", s)
				}
				return nil
			})
			if got := w.count(`SELECT count(*) FROM effect WHERE n = 1`); got != 0 {
				t.Errorf("effects of a discarded event = %d, want 0", got)
			}
			if got := w.steps(id); got != "discard ann a test order" {
				t.Errorf("history = %q, want who discarded it and why", got)
			}
		})
	}
}
