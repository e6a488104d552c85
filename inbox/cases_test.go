package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I9.
func TestA64OneEventDeliveredTwentyTimesAtOnceIsOneEffect(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			t.Run(level.String(), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.exec(`CREATE TABLE account (id int PRIMARY KEY, owed int)`)
				w.exec(`INSERT INTO account VALUES (1, 0)`)
				var consumers []runner
				for range 3 {
					cfg := w.config("billing")
					cfg.Isolation, cfg.DB = level, newPool(t, w.url)
					consumers = append(consumers, w.consumer(driver, cfg, func(ctx context.Context, tx exec, _ inbox.Event[payload]) error {
						return tx(ctx, `UPDATE account SET owed = owed + 1 WHERE id = 1`)
					}))
				}
				var applied, duplicates atomic.Int64
				var wg sync.WaitGroup
				for i := range 20 {
					wg.Go(func() {
						out, err := consumers[i%3].Apply(t.Context(), inbox.Message{ID: "1", Type: "placed", Raw: []byte(`{}`)})
						switch {
						case err != nil:
							t.Errorf("Apply() = %v, want no error", err)
						case out == inbox.Applied:
							applied.Add(1)
						case out == inbox.Duplicate:
							duplicates.Add(1)
						default:
							t.Errorf("Apply() = %v, want applied or duplicate", out)
						}
					})
				}
				wg.Wait()
				if applied.Load() != 1 || duplicates.Load() != 19 {
					t.Errorf("applied, duplicates = %d, %d, want 1, 19", applied.Load(), duplicates.Load())
				}
				if got := w.count(`SELECT owed FROM account`); got != 1 {
					t.Errorf("owed = %d, want 1", got)
				}
			})
		}
	})
}

// I9.
func TestA65AHandlerThatTakesLongerThanTheAckWaitRunsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var calls atomic.Int64
	for range 2 {
		cfg := w.config("billing")
		cfg.AckWait = time.Second
		w.start(w.consumer("pgx", cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			calls.Add(1)
			if err := tx(ctx, `SELECT pg_sleep(3)`); err != nil {
				return err
			}
			return apply(ctx, tx, e)
		}))
	}
	w.publish("a", 1)
	w.settled("billing")
	if calls.Load() != 1 || w.count(`SELECT count(*) FROM effect`) != 1 {
		t.Errorf("calls, effects = %d, %d, want 1, 1", calls.Load(), w.count(`SELECT count(*) FROM effect`))
	}
}

// I9.
func TestA67ADatabaseThatIsAwayBurnsNoAttempts(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		for _, order := range []inbox.Order{inbox.Unordered, inbox.PerAggregate} {
			t.Run(fmt.Sprint("order ", order), func(t *testing.T) {
				t.Parallel()
				pg := envtest.Postgres(t, testenv.PGConfig{})
				w := newWorldOn(t, pg.URL("postgres"))
				cfg := w.config("billing")
				cfg.MaxAttempts, cfg.Order = 2, order
				c := w.consumer(driver, cfg, apply)
				w.start(c)
				for n := range 20 {
					w.publish(fmt.Sprint(n%3), n)
				}
				w.settled("billing")
				if err := pg.Stop(t.Context(), testenv.Fast); err != nil {
					t.Fatal(err)
				}
				for n := range 20 {
					w.publish(fmt.Sprint(n%3), 20+n)
				}
				// Longer than two ack waits.
				deadline := time.Now().Add(4 * time.Second)
				envtest.Eventually(t, 10*time.Second, func() error {
					if c.Status().Trouble == "" || time.Now().Before(deadline) {
						return errors.New("no trouble seen yet")
					}
					return nil
				})
				if err := pg.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.settled("billing")
				if got := w.count(`SELECT count(*) FROM effect`); got != 40 {
					t.Errorf("effects = %d, want 40", got)
				}
				if got := w.count(`SELECT (SELECT count(*) FROM walrelay.consumer_dead_letter) + (SELECT count(*) FROM walrelay.attempt)`); got != 0 {
					t.Errorf("dead letters and attempts = %d, want 0", got)
				}
				if got := c.Status(); got.Failed != 0 {
					t.Errorf("Status().Failed = %d, want 0", got.Failed)
				}
			})
		}
	})
}

func TestA68ReceiptsAreDeletedOnlyWhenTheyAreOld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO walrelay.receipt (consumer, event_id, at) SELECT 'billing', 'old-' || n, clock_timestamp() - interval '31 days' FROM generate_series(1, 5000) n`)
	w.exec(`INSERT INTO walrelay.receipt (consumer, event_id, at) VALUES ('billing', 'young', clock_timestamp() - interval '29 days'), ('mail', 'old', clock_timestamp() - interval '90 days')`)
	w.start(w.consumer("pgx", w.config("billing"), apply))
	envtest.Eventually(t, 20*time.Second, func() error {
		if n := w.count(`SELECT count(*) FROM walrelay.receipt WHERE consumer = 'billing'`); n != 1 {
			return fmt.Errorf("receipts = %d, want 1", n)
		}
		return nil
	})
	if got := w.count(`SELECT count(*) FROM walrelay.receipt WHERE consumer = 'mail'`); got != 1 {
		t.Errorf("receipts of another consumer = %d, want 1", got)
	}
}

// A process that is stopped in the middle of an event gets its redeliveries,
// which are no sign that the event kills; and it holds back no other event.
func TestA66AnEventInTheHandsOfAStoppedProcessHoldsBackNoOther(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		w := newWorld(t)
		c := w.consumer(driver, w.config("billing"), apply)
		stop := w.start(c)
		w.publish("a", 0)
		w.settled("billing")
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		id := w.publish("a", 1)
		holder, err := w.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // a test's transaction
		if _, err := holder.Exec(t.Context(), `INSERT INTO walrelay.receipt (consumer, event_id) VALUES ('billing', $1)`, id); err != nil {
			t.Fatal(err)
		}
		source, err := w.stream.Consumer(t.Context(), "billing")
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			m, err := source.Next()
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Nak(); err != nil {
				t.Fatal(err)
			}
		}
		w.start(w.consumer(driver, w.config("billing"), apply))
		for n := range 20 { // one after the other, so that the first cannot be ahead of the one in other hands
			w.publish("b", 2+n)
			envtest.Eventually(t, 10*time.Second, func() error {
				if got := w.count(`SELECT count(*) FROM effect`); got != 2+n {
					return fmt.Errorf("effects = %d, want %d: all but the one in other hands", got, 2+n)
				}
				return nil
			})
		}
		if got := w.count(`SELECT count(*) FROM walrelay.attempt`); got != 0 {
			t.Errorf("attempts = %d, want 0", got)
		}
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.settled("billing")
		if got := w.count(`SELECT count(*) FROM effect`); got != 22 {
			t.Errorf("effects = %d, want 22", got)
		}
	})
}

// I9.
func TestA71TwoConsumersOfOneDatabaseEachApplyAnEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var got atomic.Int64
	for _, name := range []string{"billing", "mail", "mail2"} {
		w.start(w.consumer("pgx", w.config(name), func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			got.Add(1)
			return apply(ctx, tx, e)
		}))
	}
	w.publish("a", 1)
	for _, name := range []string{"billing", "mail", "mail2"} {
		w.settled(name)
	}
	if got.Load() != 3 || w.count(`SELECT count(*) FROM effect`) != 3 {
		t.Errorf("calls, effects = %d, %d, want 3, 3", got.Load(), w.count(`SELECT count(*) FROM effect`))
	}
}

// I9.
func TestA70ACommitWhoseAnswerIsLostIsSettledByTheReceipt(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		url := envtest.SharedPostgres(t)
		w := newWorldOn(t, url)
		addr, through := proxied(t, url)
		proxy := envtest.Proxy(t, addr)
		cfg := w.config("billing")
		cfg.DB = newPool(t, through(proxy.Addr()))
		var calls atomic.Int64
		c := w.consumer(driver, cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			if err := apply(ctx, tx, e); err != nil {
				return err
			}
			if calls.Add(1) == 1 {
				// From here the server's answers are lost, the COMMIT is not.
				if err := proxy.Hold(testenv.Downstream); err != nil {
					return err
				}
			}
			return nil
		})
		w.start(c)
		w.publish("a", 1)
		envtest.Eventually(t, 10*time.Second, func() error {
			if n := w.count(`SELECT count(*) FROM effect`); n != 1 {
				return fmt.Errorf("effects = %d, want 1", n)
			}
			return nil
		})
		if err := proxy.Cut(); err != nil {
			t.Fatal(err)
		}
		if err := proxy.Release(testenv.Downstream); err != nil {
			t.Fatal(err)
		}
		if err := proxy.Restore(); err != nil {
			t.Fatal(err)
		}
		w.settled("billing")
		if calls.Load() != 1 || w.count(`SELECT count(*) FROM effect`) != 1 {
			t.Errorf("calls, effects = %d, %d, want 1, 1", calls.Load(), w.count(`SELECT count(*) FROM effect`))
		}
	})
}
