package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I9.
func TestAnEventIsAppliedOnceHoweverOftenItIsStored(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		w := newWorld(t)
		c := w.consumer(driver, w.config("billing"), apply)
		w.start(c)
		for n := range 50 {
			m := event(fmt.Sprintf("id-%d", n), "a", n)
			w.publishMsg(m)
			w.publishMsg(again(m))
		}
		w.settled("billing")
		if got := w.count(`SELECT count(*) FROM effect`); got != 50 {
			t.Errorf("effects = %d, want 50", got)
		}
		envtest.Eventually(t, 5*time.Second, func() error {
			if s := c.Status(); s.Applied != 50 || s.Duplicates != 50 {
				return fmt.Errorf("Status() = %+v, want 50 applied and 50 duplicates", s)
			}
			return nil
		})
		if got := w.count(`SELECT count(*) FROM walrelay.receipt WHERE consumer = 'billing'`); got != 50 {
			t.Errorf("receipts = %d, want 50", got)
		}
	})
}

func TestAFailedEventIsTriedAgainAndThenADeadLetter(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		w := newWorld(t)
		cfg := w.config("billing")
		cfg.MaxAttempts = 4
		var tries atomic.Int64
		c := w.consumer(driver, cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			if err := apply(ctx, tx, e); err != nil {
				return err
			}
			if e.Data.N == 7 {
				tries.Add(1)
				return errors.New("seven is refused")
			}
			return nil
		})
		w.start(c)
		for n := range 10 {
			w.publish("a", n)
		}
		w.settled("billing")
		if got := tries.Load(); got != 4 {
			t.Errorf("tries = %d, want 4", got)
		}
		if got := w.count(`SELECT count(*) FROM effect`); got != 9 {
			t.Errorf("effects = %d, want 9", got)
		}
		var attempts int
		var reason, message, header string
		err := w.pool.QueryRow(t.Context(), `SELECT attempts, reason, error, headers->>'Walrelay-Aggregate-Id' FROM walrelay.consumer_dead_letter WHERE payload = '{"n": 7}'`).
			Scan(&attempts, &reason, &message, &header)
		if err != nil {
			t.Fatal(err)
		}
		if attempts != 4 || reason != "attempts" || message != "seven is refused" || header != "a" {
			t.Errorf("dead letter = %d, %q, %q, %q, want 4, attempts, seven is refused, a", attempts, reason, message, header)
		}
		if got := w.count(`SELECT count(*) FROM walrelay.attempt`); got != 0 {
			t.Errorf("attempts kept = %d, want 0", got)
		}
	})
}

func TestPermanentAndPanicAndRetryAfter(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		w := newWorld(t)
		var retried atomic.Int64
		c := w.consumer(driver, w.config("billing"), func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			switch e.Data.N {
			case 0:
				return inbox.Permanent(errors.New("never"))
			case 1:
				if retried.Add(1) == 1 {
					panic("once")
				}
			case 2:
				if retried.Add(1) < 3 {
					return inbox.RetryAfter(time.Millisecond, errors.New("soon"))
				}
			}
			return apply(ctx, tx, e)
		})
		w.start(c)
		for n := range 3 {
			w.publish("a", n)
		}
		w.settled("billing")
		if got := w.count(`SELECT count(*) FROM effect`); got != 2 {
			t.Errorf("effects = %d, want 2", got)
		}
		if got := w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter WHERE reason = 'permanent' AND attempts = 1`); got != 1 {
			t.Errorf("permanent dead letters = %d, want 1", got)
		}
	})
}

func TestWhatIsNotAnEventIsADeadLetterAndNoHotLoop(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		w := newWorld(t)
		c := w.consumer(driver, w.config("billing"), apply)
		w.start(c)
		w.publishMsg(&nats.Msg{Subject: "outbox.foreign", Data: []byte("hello")})
		w.publishMsg(&nats.Msg{Subject: "outbox.foreign", Data: []byte("hello"), Header: nats.Header{"Nats-Msg-Id": {"x\x01"}}})
		bad := event("bad-json", "a", 1)
		bad.Data = []byte(`{"n": "seven"`)
		w.publishMsg(bad)
		wrong := event("wrong-type", "a", 1)
		wrong.Data = []byte(`{"n": "seven"}`)
		w.publishMsg(wrong)
		other := event("other", "a", 1)
		other.Header[envelope.HeaderEventType] = []string{"cancelled"}
		w.publishMsg(other)
		w.publish("a", 1)
		w.settled("billing")
		if got := w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter WHERE reason = 'unreadable'`); got != 4 {
			t.Errorf("unreadable dead letters = %d, want 4", got)
		}
		if s := c.Status(); s.Skipped != 1 || s.DeadLettered != 4 || s.Applied != 1 {
			t.Errorf("Status() = %+v, want 1 skipped, 4 dead letters, 1 applied", s)
		}
	})
}

func TestAHandlerCannotEndItsTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.raw(w.config("billing"))
	inbox.On(c, "placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[payload]) error {
		if _, err := tx.Exec(ctx, `INSERT INTO effect (event_id) VALUES ($1)`, e.ID); err != nil {
			return err
		}
		_ = tx.Commit(ctx)
		return nil
	})
	_, err := c.Apply(t.Context(), inbox.Message{ID: "1", Type: "placed", Raw: []byte(`{"n":1}`)})
	if !errors.Is(err, inbox.ErrHandlerEnds) {
		t.Errorf("Apply() = %v, want ErrHandlerEnds", err)
	}
	if got := w.count(`SELECT (SELECT count(*) FROM effect) + (SELECT count(*) FROM walrelay.receipt)`); got != 0 {
		t.Errorf("effects and receipts = %d, want 0", got)
	}
}

func TestMissingTablesAreAnErrorThatNamesTheCommand(t *testing.T) {
	t.Parallel()
	pool := newPool(t, envtest.SharedPostgres(t))
	_, err := inbox.New(inbox.Config{Name: "billing", DB: pool})
	if !errors.Is(err, inbox.ErrNoReceipts) || !strings.Contains(err.Error(), "walrelay migrate --consumer") {
		t.Errorf("New() = %v, want ErrNoReceipts and the command", err)
	}
}

func TestSettingsOfAConsumerThatBreakThePromiseAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, test := range map[string]struct {
		cfg  jetstream.ConsumerConfig
		want string
	}{
		"finite deliveries": {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 5}, "--max-deliver=-1"},
		"A65-short-backoff": {jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxDeliver: 4,
			BackOff: []time.Duration{time.Second, 5 * time.Second, 30 * time.Second},
		}, "backoff list"},
		"no acks":       {jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy}, "ack policy"},
		"other subject": {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "outbox.other.>"}, "outbox.other.>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := test.cfg
			cfg.Durable = strings.ReplaceAll(name, " ", "-")
			if _, err := w.stream.CreateConsumer(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			in := w.config(cfg.Durable)
			in.AckWait = 30 * time.Second
			c := w.raw(in)
			inbox.On(c, "placed", func(context.Context, pgx.Tx, inbox.Event[payload]) error { return nil })
			err := c.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Run() = %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestMistakesOfRegistrationAreReportedByRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.raw(w.config("billing"))
	none := func(context.Context, pgx.Tx, inbox.Event[payload]) error { return nil }
	inbox.On(c, "placed", none)
	inbox.On(c, "placed", none)
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), `"placed"`) {
		t.Errorf("Run() = %v, want an error that names the type", err)
	}
}
