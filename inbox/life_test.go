package inbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/causation"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A journal keeps what was logged.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) has(s string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Contains(j.text.String(), s)
}

func TestAStopLetsHandlersFinishAndGivesTheRestBackAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config("billing")
	cfg.AckWait, cfg.Concurrency = 30*time.Second, 2
	started := make(chan struct{}, 10)
	proceed := make(chan struct{})
	stop := w.start(w.consumer("pgx", cfg, func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
		started <- struct{}{}
		<-proceed
		return apply(ctx, tx, e)
	}))
	for n := range 20 {
		w.publish("a", n)
	}
	<-started
	<-started
	done := make(chan error)
	go func() { done <- stop() }()
	close(proceed)
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if got := w.count(`SELECT count(*) FROM effect`); got < 2 {
		t.Errorf("effects = %d, want those of the handlers that ran", got)
	}
	// Long before the ack wait is over.
	w.start(w.consumer("pgx", cfg, apply))
	envtest.Eventually(t, 10*time.Second, func() error {
		if n := w.count(`SELECT count(*) FROM effect`); n != 20 {
			return fmt.Errorf("effects = %d, want 20", n)
		}
		return nil
	})
	w.settled("billing")
}

func TestAHandlerThatDoesNotEndIsCutOffAfterTheDrainTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config("billing")
	cfg.DrainTimeout = 200 * time.Millisecond
	started := make(chan struct{})
	stop := w.start(w.consumer("pgx", cfg, func(ctx context.Context, _ exec, _ inbox.Event[payload]) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	}))
	w.publish("a", 1)
	<-started
	if err := stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if got := w.count(`SELECT count(*) FROM walrelay.attempt`); got != 0 {
		t.Errorf("attempts = %d, want 0: it was our stop", got)
	}
}

func TestABrokerThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, order := range []inbox.Order{inbox.Unordered, inbox.PerAggregate} {
		t.Run(fmt.Sprint("order ", order), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			broker := envtest.NATS(t, testenv.NATSConfig{})
			nc, err := nats.Connect(broker.URL(), nats.ReconnectWait(20*time.Millisecond), nats.MaxReconnects(-1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			if w.js, err = jetstream.New(nc); err != nil {
				t.Fatal(err)
			}
			w.stream, err = w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: streamName, Subjects: []string{"outbox.>"}})
			if err != nil {
				t.Fatal(err)
			}
			cfg := w.config("billing")
			cfg.Order = order
			w.start(w.consumer("pgx", cfg, apply))
			for n := range 20 {
				w.publish("a", n)
			}
			w.settled("billing")
			if err := broker.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := broker.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			envtest.Eventually(t, 20*time.Second, func() error {
				if !nc.IsConnected() {
					return errors.New("not connected again")
				}
				return nil
			})
			for n := range 20 {
				w.publish("a", 20+n)
			}
			w.settled("billing")
			if order == inbox.PerAggregate {
				w.ordered(1, 40)
			}
			if got := w.count(`SELECT count(*) FROM effect`); got != 40 {
				t.Errorf("effects = %d, want 40", got)
			}
		})
	}
}

func TestWhatIsForgottenAndGoneFromTheStreamIsAGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config("billing")
	cfg.CheckInterval = time.Hour
	stop := w.start(w.consumer("pgx", cfg, apply))
	for n := range 10 {
		w.publish("a", n)
	}
	w.settled("billing")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.exec(`DELETE FROM walrelay.receipt WHERE sequence > 4`)
	if err := w.stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	logged := &journal{}
	cfg.CheckInterval, cfg.Logger = 50*time.Millisecond, slog.New(slog.NewTextHandler(logged, nil))
	c := w.consumer("pgx", cfg, apply)
	w.start(c)
	envtest.Eventually(t, 10*time.Second, func() error {
		if s := c.Status(); s.Gaps != 6 {
			return fmt.Errorf("Status().Gaps = %d, want 6", s.Gaps)
		}
		return nil
	})
	if !logged.has("walrelay replay") {
		t.Error("the log does not name the command that helps")
	}
}

func TestA68RetentionIsComparedWithTheStreamAtTheStart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		maxAge, replay time.Duration
		want           string
	}{
		"stream without an age":  {0, 0, "before the stream's messages"},
		"stream that is older":   {60 * 24 * time.Hour, 0, "before the stream's messages"},
		"replay that is longer":  {24 * time.Hour, 90 * 24 * time.Hour, "before a replay"},
		"receipts that are kept": {24 * time.Hour, 0, "receipts outlive"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			_, err := w.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: streamName, Subjects: []string{"outbox.>"}, AllowDirect: true, MaxAge: test.maxAge})
			if err != nil {
				t.Fatal(err)
			}
			logged := &journal{}
			cfg := w.config("billing")
			cfg.ReplayWindow, cfg.Logger = test.replay, slog.New(slog.NewTextHandler(logged, nil))
			w.start(w.consumer("pgx", cfg, apply))
			envtest.Eventually(t, 10*time.Second, func() error {
				if !logged.has(test.want) {
					return fmt.Errorf("the log does not say %q", test.want)
				}
				return nil
			})
		})
	}
}

func TestAnUnknownTypeThatFailsIsTriedUntilItIsADeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config("billing")
	cfg.Unknown, cfg.MaxAttempts = inbox.Fail, 3
	c := w.consumer("pgx", cfg, apply)
	w.start(c)
	m := event("id", "a", 1)
	m.Header["Walrelay-Event-Type"] = []string{"cancelled"}
	w.publishMsg(m)
	w.settled("billing")
	if got := w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter WHERE attempts = 3 AND event_type = 'cancelled'`); got != 1 {
		t.Errorf("dead letters = %d, want 1", got)
	}
}

func TestAHandlerOfDatabaseSQLThatCommitsIsAFailureAndNoSecondEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := stdlib.OpenDBFromPool(w.pool)
	t.Cleanup(func() { _ = db.Close() })
	cfg := w.config("billing")
	cfg.DB = nil
	c, err := inbox.NewSQL(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	inbox.OnSQL(c, "placed", func(ctx context.Context, tx *sql.Tx, e inbox.Event[payload]) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO effect (event_id) VALUES ($1)`, e.ID); err != nil {
			return err
		}
		return tx.Commit()
	})
	w.start(c)
	w.publish("a", 1)
	w.settled("billing")
	if got := w.count(`SELECT count(*) FROM effect`); got != 1 {
		t.Errorf("effects = %d, want 1", got)
	}
	if got := c.Status().Failed; got != 1 {
		t.Errorf("Status().Failed = %d, want 1", got)
	}
}

func TestTheHandledEventIsTheCauseOfWhatItsHandlerAppends(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.raw(w.config("billing"))
	var causes []causation.Cause
	inbox.On(c, "placed", func(ctx context.Context, _ pgx.Tx, _ inbox.Event[payload]) error {
		cause, _ := causation.From(ctx)
		causes = append(causes, cause)
		return nil
	})
	for _, h := range []nats.Header{nil, {"correlation-id": {"request-7"}}} {
		if _, err := c.Apply(t.Context(), inbox.Message{ID: fmt.Sprint(len(causes)), Type: "placed", Raw: []byte(`{}`), Headers: h}); err != nil {
			t.Fatal(err)
		}
	}
	if causes[0].EventID != "0" || causes[0].Correlation() != "0" || causes[1].Correlation() != "request-7" {
		t.Errorf("causes = %+v, want the events, and the correlation where there is one", causes)
	}
}

// A26, A27: what comes in is what was written.
func TestPayloadsKeepTheirDigitsAndNullIsNotEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.raw(w.config("billing"))
	var got []inbox.Event[any]
	var raw inbox.Event[[]byte]
	inbox.On(c, "any", func(_ context.Context, _ pgx.Tx, e inbox.Event[any]) error { got = append(got, e); return nil })
	inbox.On(c, "raw", func(_ context.Context, _ pgx.Tx, e inbox.Event[[]byte]) error { raw = e; return nil })
	apply := func(m inbox.Message) error {
		_, err := c.Apply(t.Context(), m)
		return err
	}
	digits := `{"n":12345678901234567890123,"d":1.10,"e":1e400}`
	if err := apply(inbox.Message{ID: "1", Type: "any", Raw: []byte(digits)}); err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(got[0].Data); s != "map[d:1.10 e:1e400 n:12345678901234567890123]" || string(got[0].Raw) != digits {
		t.Errorf("data = %s, want all digits", s)
	}
	if err := apply(inbox.Message{ID: "2", Type: "any", Null: true}); err != nil || !got[1].Null {
		t.Errorf("null payload: %v, %+v, want Null", err, got[1])
	}
	if err := apply(inbox.Message{ID: "3", Type: "any"}); err == nil {
		t.Error("an empty payload was decoded as JSON")
	}
	if err := apply(inbox.Message{ID: "4", Type: "raw", Raw: []byte("\x00\xff")}); err != nil || string(raw.Data) != "\x00\xff" {
		t.Errorf("raw payload = %q, %v, want its bytes", raw.Data, err)
	}
}

// I9.
func TestASerializationFailureIsTriedAgainAtOnce(t *testing.T) {
	bothDrivers(t, func(t *testing.T, driver string) {
		w := newWorld(t)
		var calls atomic.Int64
		c := w.consumer(driver, w.config("billing"), func(ctx context.Context, tx exec, e inbox.Event[payload]) error {
			if calls.Add(1) < 4 {
				return tx(ctx, `DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$`)
			}
			return apply(ctx, tx, e)
		})
		w.start(c)
		w.publish("a", 1)
		w.settled("billing")
		if s := c.Status(); s.Applied != 1 || s.Failed != 0 || calls.Load() != 4 {
			t.Errorf("Status() = %+v after %d calls, want 1 applied, none failed, 4 calls", s, calls.Load())
		}
	})
}
