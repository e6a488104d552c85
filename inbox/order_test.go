package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// ordered fails the test where an aggregate's effects are not in the order of
// their numbers, or not all there.
func (w *world) ordered(aggregates, each int) {
	w.t.Helper()
	if got := w.count(`SELECT count(*) FROM effect`); got != aggregates*each {
		w.t.Errorf("effects = %d, want %d", got, aggregates*each)
	}
	if got := w.count(`SELECT count(*) FROM (SELECT n < lag(n) OVER (PARTITION BY aggregate ORDER BY id) AS back FROM effect) AS e WHERE back`); got != 0 {
		w.t.Errorf("effects out of order = %d, want 0", got)
	}
}

// orderedConfig is one whose effects take part in the order by their id.
func (w *world) orderedConfig(batch int) inbox.Config {
	cfg := w.config("billing")
	cfg.Order, cfg.Batch = inbox.PerAggregate, batch
	return cfg
}

func batches(t *testing.T, test func(t *testing.T, driver string, batch int)) {
	t.Helper()
	bothDrivers(t, func(t *testing.T, driver string) {
		for _, batch := range []int{1, 10} {
			t.Run(fmt.Sprint("batch of ", batch), func(t *testing.T) { test(t, driver, batch) })
		}
	})
}

func TestAFailingEventHoldsBackItsAggregateAlone(t *testing.T) {
	batches(t, func(t *testing.T, driver string, batch int) {
		w := newWorld(t)
		cfg := w.orderedConfig(batch)
		cfg.MaxAttempts = 1000
		var open atomic.Bool
		c := w.consumer(driver, cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			if err := apply(ctx, tx, e); err != nil {
				return err
			}
			if e.AggregateID == "0" && e.Data.N == 0 && !open.Load() {
				return errors.New("not yet")
			}
			return nil
		})
		w.start(c)
		const aggregates, each = 5, 20
		for n := range each {
			for a := range aggregates {
				w.publish(fmt.Sprint(a), n)
			}
		}
		envtest.Eventually(t, 20*time.Second, func() error {
			if n := w.count(`SELECT count(*) FROM effect`); n != (aggregates-1)*each {
				return fmt.Errorf("effects = %d, want all but those of one aggregate", n)
			}
			return nil
		})
		envtest.Eventually(t, 20*time.Second, func() error { // it is noted on its own, after the failed try
			if w.count(`SELECT count(*) FROM walrelay.attempt`) == 0 {
				return errors.New("no attempt is noted")
			}
			return nil
		})
		if got := w.count(`SELECT count(*) FROM walrelay.attempt`); got != 1 {
			t.Errorf("events with attempts = %d, want 1: those held back burn none", got)
		}
		open.Store(true)
		w.settled("billing")
		w.ordered(aggregates, each)
	})
}

func TestTheOrderOutlivesTheProcess(t *testing.T) {
	batches(t, func(t *testing.T, driver string, batch int) {
		w := newWorld(t)
		cfg := w.orderedConfig(batch)
		cfg.MaxAttempts = 1000
		cfg.AckWait = 20 * time.Second // JetStream gives nothing back in time
		fail := w.consumer(driver, cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			if e.AggregateID == "0" && e.Data.N >= 3 {
				return errors.New("not in this process")
			}
			return apply(ctx, tx, e)
		})
		stop := w.start(fail)
		const aggregates, each = 3, 10
		for n := range each {
			for a := range aggregates {
				w.publish(fmt.Sprint(a), n)
			}
		}
		envtest.Eventually(t, 20*time.Second, func() error {
			if n := w.count(`SELECT count(*) FROM effect`); n != (aggregates-1)*each+3 {
				return fmt.Errorf("effects = %d, want %d", n, (aggregates-1)*each+3)
			}
			return nil
		})
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		for n := range each {
			for a := range aggregates {
				w.publish(fmt.Sprint(a), each+n)
			}
		}
		w.start(w.consumer(driver, cfg, apply))
		envtest.Eventually(t, 20*time.Second, func() error {
			if n := w.count(`SELECT count(*) FROM effect`); n != aggregates*each*2 {
				return fmt.Errorf("effects = %d, want %d", n, aggregates*each*2)
			}
			return nil
		})
		w.ordered(aggregates, each*2)
		w.settled("billing")
	})
}

func TestEventsBehindAFailedOneAreParkedBeforeTheyFillMaxAckPending(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		w := newWorld(t)
		cfg := w.orderedConfig(1)
		cfg.MaxAttempts, cfg.MaxAckPending, cfg.Concurrency = 1000, 20, 2
		var open atomic.Bool
		handle := func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			if e.AggregateID == "0" && e.Data.N == 0 && !open.Load() {
				return errors.New("not yet")
			}
			return apply(ctx, tx, e)
		}
		stop := w.start(w.consumer(driver, cfg, handle))
		const each = 100
		for n := range each {
			w.publish("0", n)
			w.publish("1", n)
		}
		envtest.Eventually(t, 20*time.Second, func() error {
			if n := w.count(`SELECT count(*) FROM effect`); n != each {
				return fmt.Errorf("effects = %d, want those of the other aggregate", n)
			}
			return nil
		})
		if got := w.count(`SELECT count(*) FROM walrelay.held`); got < each/2 {
			t.Errorf("parked = %d, want at least %d", got, each/2)
		}
		// Also a new process knows what is parked.
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		for n := range each {
			w.publish("0", each+n)
			w.publish("1", each+n)
		}
		w.start(w.consumer(driver, cfg, handle))
		envtest.Eventually(t, 20*time.Second, func() error {
			if n := w.count(`SELECT count(*) FROM effect`); n != 2*each {
				return fmt.Errorf("effects = %d, want those of the other aggregate", n)
			}
			return nil
		})
		open.Store(true)
		w.settled("billing")
		envtest.Eventually(t, 20*time.Second, func() error {
			if n := w.count(`SELECT count(*) FROM walrelay.held`); n != 0 {
				return fmt.Errorf("parked = %d, want 0", n)
			}
			return nil
		})
		w.ordered(2, 2*each)
	})
}

func TestASecondProcessWaitsAndTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.consumer("pgx", w.orderedConfig(1), apply)
	stop := w.start(first)
	w.publish("a", 0)
	w.settled("billing")
	cfg := w.orderedConfig(1)
	cfg.DB = newPool(t, w.url)
	second := w.consumer("pgx", cfg, apply)
	w.start(second)
	envtest.Eventually(t, 10*time.Second, func() error {
		if !second.Status().Standby {
			return errors.New("the second consumer is not on standby")
		}
		return nil
	})
	w.publish("a", 1)
	w.settled("billing")
	if got := second.Status().Applied; got != 0 {
		t.Errorf("applied by the second = %d, want 0", got)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.publish("a", 2)
	w.settled("billing")
	if got := second.Status().Applied; got != 1 {
		t.Errorf("applied by the second = %d, want 1", got)
	}
	w.ordered(1, 3)
}

// I9.
func TestAConsumerWhoseSessionWasTakenCommitsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var once atomic.Bool
	c := w.consumer("pgx", w.orderedConfig(1), func(ctx context.Context, tx exec, e inbox.Event[payload]) error { return apply(ctx, tx, e) })
	w.start(c)
	w.publish("a", 0)
	w.settled("billing")
	w.exec(`WITH taken AS (UPDATE walrelay.fence SET session = 'another') UPDATE walrelay.consumer SET session = 'another', lease_until = clock_timestamp() + interval '2 s'`)
	w.publish("a", 1)
	envtest.Eventually(t, 10*time.Second, func() error {
		if !c.Status().Standby {
			return errors.New("the consumer is not on standby")
		}
		return nil
	})
	once.Store(w.count(`SELECT count(*) FROM effect`) == 1)
	if !once.Load() {
		t.Error("an event was applied without the session")
	}
	w.settled("billing") // after the lease
	w.ordered(1, 2)
}

func TestOneEventOfABatchFailsAlone(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		w := newWorld(t)
		cfg := w.config("billing")
		cfg.Batch, cfg.Concurrency, cfg.MaxAttempts = 50, 1, 2
		c := w.consumer(driver, cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			if e.Data.N == 13 {
				return tx(ctx, `SELECT 1/0`)
			}
			return apply(ctx, tx, e)
		})
		for n := range 200 {
			m := event(fmt.Sprint("id-", n), "a", n)
			w.publishMsg(m)
			if n%10 == 0 {
				w.publishMsg(again(m))
			}
		}
		w.start(c)
		w.settled("billing")
		if got := w.count(`SELECT count(*) FROM effect`); got != 199 {
			t.Errorf("effects = %d, want 199", got)
		}
		if got := w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter WHERE attempts = 2`); got != 1 {
			t.Errorf("dead letters after two attempts = %d, want 1", got)
		}
		if got := c.Status(); got.Failed != 2 {
			t.Errorf("Status().Failed = %d, want 2", got.Failed)
		}
	})
}

// I9.
func TestCommitsThatTheDatabaseHasForgottenAreMadeAgain(t *testing.T) {
	t.Parallel()
	for _, order := range []inbox.Order{inbox.Unordered, inbox.PerAggregate} {
		t.Run(fmt.Sprint("order ", order), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.config("billing")
			cfg.Order, cfg.CheckInterval = order, time.Hour
			stop := w.start(w.consumer("pgx", cfg, apply))
			for n := range 30 {
				w.publish("a", n)
			}
			w.settled("billing")
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			// A standby that was promoted without the last commits looks so.
			w.exec(`DELETE FROM effect WHERE n >= 20`)
			w.exec(`DELETE FROM walrelay.receipt WHERE sequence > 20`)
			for n := range 10 {
				w.publish("a", 30+n)
			}
			cfg.CheckInterval = 50 * time.Millisecond
			c := w.consumer("pgx", cfg, apply)
			w.start(c)
			envtest.Eventually(t, 20*time.Second, func() error {
				if n := w.count(`SELECT count(*) FROM effect`); n != 40 {
					return fmt.Errorf("effects = %d, want 40", n)
				}
				if s := c.Status(); s.Recovered != 10 {
					return fmt.Errorf("Status().Recovered = %d, want 10", s.Recovered)
				}
				return nil
			})
			if order == inbox.PerAggregate {
				w.ordered(1, 40)
			}
		})
	}
}

func TestADeletedJetStreamConsumerIsMadeAgainWhereAllWasDecided(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.consumer("pgx", w.config("billing"), apply)
	w.start(c)
	for n := range 30 {
		w.publish("a", n)
	}
	w.settled("billing")
	envtest.Eventually(t, 10*time.Second, func() error {
		if got := w.count(`SELECT verified FROM walrelay.consumer`); got != 30 {
			return fmt.Errorf("verified = %d, want 30", got)
		}
		return nil
	})
	if err := w.stream.DeleteConsumer(t.Context(), "billing"); err != nil {
		t.Fatal(err)
	}
	w.publish("a", 30)
	envtest.Eventually(t, 20*time.Second, func() error {
		_, err := w.stream.Consumer(t.Context(), "billing")
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return err
		}
		return nil
	})
	w.settled("billing")
	if s := c.Status(); s.Applied != 31 || s.Duplicates != 0 {
		t.Errorf("Status() = %+v, want 31 applied and no duplicate", s)
	}
}
