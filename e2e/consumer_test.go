package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

const consumerStream = "CONSUMED"

// A consumerWorld is a consumer's database and a stream of events.
type consumerWorld struct {
	t        *testing.T
	database string
	nats     string
	js       jetstream.JetStream
	stream   jetstream.Stream

	mu        sync.Mutex
	published map[string]int // next number of each aggregate
	total     int
}

func newConsumerWorld(t *testing.T, database string) *consumerWorld {
	t.Helper()
	w := &consumerWorld{t: t, database: database, published: map[string]int{}}
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Consumer(t.Context(), cfg, migrations.Config{}, nil); err != nil {
		t.Fatal(err)
	}
	w.exec(`CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY, event_id text, aggregate text, n int)`)
	w.nats = envtest.EmbeddedNATS(t).URL()
	nc, err := nats.Connect(w.nats, nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if w.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	w.stream, err = w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: consumerStream, Subjects: []string{"shop.>"}, AllowDirect: true})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *consumerWorld) connect() *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.database)
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

func (w *consumerWorld) exec(statement string) {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.Background()) //nolint:errcheck // a test's connection
	if _, err := conn.Exec(w.t.Context(), statement); err != nil {
		w.t.Fatal(err)
	}
}

func (w *consumerWorld) count(query string) (n int) {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.Background()) //nolint:errcheck // a test's connection
	if err := conn.QueryRow(w.t.Context(), query).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// partitions is how many subjects the aggregates are spread over.
const partitions = 3

// publish stores the next event of an aggregate.
func (w *consumerWorld) publish(aggregate int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := strconv.Itoa(aggregate)
	n := w.published[key] + 1
	m := nats.NewMsg(fmt.Sprintf("shop.p%d.placed", aggregate%partitions))
	m.Header[envelope.HeaderMsgID] = []string{uuid.NewString()}
	m.Header[envelope.HeaderAggregateType] = []string{"order"}
	m.Header[envelope.HeaderAggregateID] = []string{key}
	m.Header[envelope.HeaderEventType] = []string{"placed"}
	m.Data = []byte(`{"n": ` + strconv.Itoa(n) + `}`)
	if _, err := w.js.PublishMsg(context.Background(), m); err != nil {
		return err
	}
	w.published[key] = n
	w.total++
	return nil
}

// load publishes events of many aggregates until the returned function is
// called.
func (w *consumerWorld) load(every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := w.publish(rand.IntN(30)); err != nil {
				w.t.Errorf("publish: %v", err)
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	w.t.Cleanup(stop)
	return stop
}

// settings are those of a consumer with 20 goroutines that gets lost messages
// back soon.
func (w *consumerWorld) settings(name string) consumerSettings {
	s := consumerSettings{Database: w.database, NATS: w.nats}
	s.Config.Name, s.Config.Concurrency, s.Config.Batch, s.Config.MaxAttempts = name, 20, 1, 1000
	s.Config.AckWait, s.Config.Lease = time.Second, 300*time.Millisecond
	return s
}

// settled waits until nothing is left for the durable consumers.
func (w *consumerWorld) settled(durables ...string) {
	w.t.Helper()
	envtest.Eventually(w.t, 2*time.Minute, func() error {
		for _, durable := range durables {
			c, err := w.stream.Consumer(w.t.Context(), durable)
			if err != nil {
				return err
			}
			info, err := c.Info(w.t.Context())
			if err != nil {
				return err
			}
			subject := ">"
			if len(info.Config.FilterSubjects) == 1 {
				subject = info.Config.FilterSubjects[0]
			}
			last, err := w.stream.GetLastMsgForSubject(w.t.Context(), subject)
			if err != nil {
				return err
			}
			if info.NumAckPending != 0 || info.Delivered.Stream < last.Sequence {
				return fmt.Errorf("consumer %s: %d pending, %d without an ack, delivered up to %d of %d, acknowledged up to %d", durable,
					info.NumPending, info.NumAckPending, info.Delivered.Stream, last.Sequence, info.AckFloor.Stream)
			}
		}
		return nil
	})
}

// check compares effects with events. It knows nothing of what happened.
func (w *consumerWorld) check(ordered bool) {
	w.t.Helper()
	if got := w.count(`SELECT count(DISTINCT event_id) FROM effect`); got != w.total {
		w.t.Errorf("events with an effect = %d, want %d", got, w.total)
	}
	if got := w.count(`SELECT count(*) FROM effect`); got != w.total {
		w.t.Errorf("effects = %d, want %d", got, w.total)
	}
	if got := w.count(`SELECT count(*) FROM walrelay.receipt r FULL JOIN effect e USING (event_id) WHERE r.event_id IS NULL OR e.event_id IS NULL`); got != 0 {
		w.t.Errorf("receipts without effect or effects without receipt = %d, want 0", got)
	}
	if got := w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter`); got != 0 {
		w.t.Errorf("dead letters = %d, want 0", got)
	}
	if !ordered {
		return
	}
	if got := w.count(`SELECT count(*) FROM (SELECT n < lag(n) OVER (PARTITION BY aggregate ORDER BY id) AS back FROM effect) AS e WHERE back`); got != 0 {
		w.t.Errorf("effects out of order = %d, want 0", got)
	}
}

// redeliver makes JetStream deliver the whole stream once more.
func (w *consumerWorld) redeliver(durables ...string) {
	w.t.Helper()
	for _, durable := range durables {
		if err := w.stream.DeleteConsumer(w.t.Context(), durable); err != nil {
			w.t.Fatal(err)
		}
	}
	w.exec(`UPDATE walrelay.consumer SET verified = 0, session = ''`)
}

// killsAStep is how often a consumer is killed at each of its steps.
const killsAStep = 20

// killsAtEachStep keeps one process for each of the settings alive, kills them
// at each step that many times, and returns when that is done.
func (w *consumerWorld) killsAtEachStep(all []consumerSettings, kills int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Minute)
	defer cancel()
	for _, step := range consumerSteps {
		var left atomic.Int64
		left.Store(int64(kills))
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					s.DieAt, s.DieAfter = step, 1+rand.Int64N(25)
					if _, err := startConsumer(w.t, s).died(ctx); err != nil {
						w.t.Errorf("%s: %v", step, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}

// I9.
func TestA70ConsumerKilledAtEachStepAppliesEachEventOnce(t *testing.T) {
	for _, batch := range []int{1, 10} {
		t.Run(fmt.Sprint("batch of ", batch), func(t *testing.T) {
			w := newConsumerWorld(t, envtest.SharedPostgres(t))
			s := w.settings("billing")
			s.Config.Batch = batch
			stop := w.load(2 * time.Millisecond)
			w.killsAtEachStep([]consumerSettings{s, s, s}, killsAStep)
			stop()
			procs := []*consumerProcess{startConsumer(t, s), startConsumer(t, s), startConsumer(t, s)}
			w.settled("billing")
			w.check(false)
			for _, p := range procs {
				p.stop(t)
			}
			w.redeliver("billing")
			last := startConsumer(t, s)
			envtest.Eventually(t, 20*time.Second, func() error {
				_, err := w.stream.Consumer(t.Context(), "billing")
				return err
			})
			w.settled("billing")
			w.check(false)
			last.stop(t)
		})
	}
}

// I9.
func TestConsumerKilledAtEachStepKeepsTheOrderOfEachAggregate(t *testing.T) {
	w := newConsumerWorld(t, envtest.SharedPostgres(t))
	var all []consumerSettings
	var durables []string
	for p := range partitions {
		s := w.settings("billing")
		s.Config.Order, s.Config.Partition = inbox.PerAggregate, fmt.Sprint("p", p)
		s.Config.Subjects = []string{fmt.Sprintf("shop.p%d.>", p)}
		all, durables = append(all, s), append(durables, fmt.Sprint("billing-p", p))
	}
	stop := w.load(2 * time.Millisecond)
	w.killsAtEachStep(all, killsAStep)
	stop()
	run := func() (procs []*consumerProcess) {
		for _, s := range all {
			procs = append(procs, startConsumer(t, s))
		}
		return procs
	}
	procs := run()
	w.settled(durables...)
	w.check(true)
	for _, p := range procs {
		p.stop(t)
	}
	w.redeliver(durables...)
	procs = run()
	envtest.Eventually(t, 20*time.Second, func() error {
		for _, d := range durables {
			if _, err := w.stream.Consumer(t.Context(), d); err != nil {
				return err
			}
		}
		return nil
	})
	w.settled(durables...)
	w.check(true)
	for _, p := range procs {
		p.stop(t)
	}
}

// I9.
func TestA66ConsumerThatWasStoppedDoesNotApplyAnEventAnotherHasApplied(t *testing.T) {
	for _, fate := range []string{"goes on", "is killed"} {
		t.Run("and "+fate, func(t *testing.T) {
			w := newConsumerWorld(t, envtest.SharedPostgres(t))
			s := w.settings("billing")
			s.Config.AckWait, s.SleepSeconds, s.Verbose = 2*time.Second, 3, true
			first := startConsumer(t, s)
			if err := w.publish(1); err != nil {
				t.Fatal(err)
			}
			sleeping := `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()`
			waiting := `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
			reach := func(query, what string) {
				// JetStream serves waiting requests in turn, that of the
				// stopped process among them, for the ten seconds that a
				// request lasts. So the second process gets the message at
				// the second redelivery, 4 s after the stop, if it asks by
				// then, and else within ten seconds and an ack wait: later,
				// and not wrong. The rest is for a machine under load.
				envtest.Eventually(t, time.Minute, func() error {
					if w.count(query) == 0 {
						return errors.New(what)
					}
					return nil
				})
			}
			reach(sleeping, "the first consumer is not in its handler")
			first.signal(syscall.SIGSTOP)
			s.SleepSeconds = 0
			second := startConsumer(t, s)
			t.Cleanup(func() {
				if t.Failed() {
					first.kill()
					second.kill()
					t.Logf("first: %s\nsecond: %s", first.stderr.String(), second.stderr.String())
				}
			})
			reach(waiting, "the second consumer does not wait for the receipt")
			if fate == "goes on" {
				first.signal(syscall.SIGCONT)
			} else {
				first.kill()
			}
			w.settled("billing")
			w.check(false)
			second.stop(t)
		})
	}
}

func TestConsumerKilledByAnEventGivesUpOnItAlone(t *testing.T) {
	for _, order := range []inbox.Order{inbox.Unordered, inbox.PerAggregate} {
		t.Run(fmt.Sprint("order ", order), func(t *testing.T) {
			w := newConsumerWorld(t, envtest.SharedPostgres(t))
			for range 300 {
				if err := w.publish(rand.IntN(20)); err != nil {
					t.Fatal(err)
				}
			}
			w.mu.Lock()
			w.published["poison"] = 999
			w.mu.Unlock()
			if err := w.publishNamed("poison"); err != nil {
				t.Fatal(err)
			}
			for range 100 {
				if err := w.publish(rand.IntN(20)); err != nil {
					t.Fatal(err)
				}
			}
			s := w.settings("billing")
			s.Config.MaxAttempts, s.PoisonN, s.Config.Order = 3, 1000, order
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			deaths := 0
			p := startConsumer(t, s)
			for w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter`) == 0 {
				select {
				case <-p.exited:
					deaths++
					p = startConsumer(t, s)
				case <-ctx.Done():
					t.Fatal("the event that kills is not a dead letter after two minutes")
				case <-time.After(20 * time.Millisecond):
				}
			}
			w.settled("billing")
			p.stop(t)
			if got := w.count(`SELECT count(DISTINCT event_id) FROM effect`); got != w.total-1 {
				t.Errorf("events with an effect = %d, want %d: all but one", got, w.total-1)
			}
			if got := w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter`); got != 1 {
				t.Errorf("dead letters = %d, want 1", got)
			}
			t.Logf("the process died %d times", deaths)
		})
	}
}

// publishNamed is publish for an aggregate of any name.
func (w *consumerWorld) publishNamed(key string) error {
	w.mu.Lock()
	n := w.published[key] + 1
	w.total++
	w.mu.Unlock()
	m := nats.NewMsg("shop.p0.placed")
	m.Header[envelope.HeaderMsgID] = []string{uuid.NewString()}
	m.Header[envelope.HeaderAggregateType] = []string{"order"}
	m.Header[envelope.HeaderAggregateID] = []string{key}
	m.Header[envelope.HeaderEventType] = []string{"placed"}
	m.Data = []byte(`{"n": ` + strconv.Itoa(n) + `}`)
	_, err := w.js.PublishMsg(context.Background(), m)
	return err
}

// I9.
func TestConsumerWhoseDatabaseCrashesAppliesEachEventOnce(t *testing.T) {
	pg := envtest.Postgres(t, testenv.PGConfig{})
	w := newConsumerWorld(t, pg.URL("postgres"))
	procs := []*consumerProcess{startConsumer(t, w.settings("billing")), startConsumer(t, w.settings("billing"))}
	stop := w.load(2 * time.Millisecond)
	for range 3 {
		before := w.count(`SELECT count(*) FROM effect`)
		envtest.Eventually(t, time.Minute, func() error {
			if n := w.count(`SELECT count(*) FROM effect`); n < before+100 {
				return fmt.Errorf("effects = %d, want %d", n, before+100)
			}
			return nil
		})
		if err := pg.Stop(t.Context(), testenv.Immediate); err != nil {
			t.Fatal(err)
		}
		if err := pg.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	w.settled("billing")
	w.check(false)
	for _, p := range procs {
		p.stop(t)
	}
}

// I9.
func TestConsumerWhoseAsynchronousStandbyIsPromotedAppliesEachEventOnce(t *testing.T) {
	for _, order := range []inbox.Order{inbox.Unordered, inbox.PerAggregate} {
		t.Run(fmt.Sprint("order ", order), func(t *testing.T) {
			primary := envtest.Postgres(t, testenv.PGConfig{})
			w := newConsumerWorld(t, primary.URL("postgres"))
			proxy := envtest.Proxy(t, primary.Addr())
			standby := envtest.Standby(t, primary, testenv.StandbyConfig{Via: proxy.Addr()})
			s := w.settings("billing")
			s.Database = fmt.Sprintf("host=%s,%s port=%d,%d user=postgres dbname=postgres target_session_attrs=read-write connect_timeout=2",
				"127.0.0.1", "127.0.0.1", primary.Port(), standby.Port())
			s.Config.Order = order
			p := startConsumer(t, s)
			publish := func(n int) {
				for range n {
					if err := w.publish(rand.IntN(20)); err != nil {
						t.Fatal(err)
					}
				}
			}
			publish(200)
			w.settled("billing")
			if err := standby.Follows(t.Context(), primary); err != nil {
				t.Fatal(err)
			}
			// From here the standby hears nothing, and nobody waits for it.
			if err := proxy.Hold(testenv.Downstream); err != nil {
				t.Fatal(err)
			}
			publish(200)
			w.settled("billing")
			if err := primary.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := proxy.Cut(); err != nil {
				t.Fatal(err)
			}
			w.database = standby.URL("postgres")
			if got := w.count(`SELECT count(*) FROM effect`); got != 200 {
				t.Fatalf("effects on the standby = %d, want 200: it was to miss the rest", got)
			}
			if err := standby.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			publish(100)
			envtest.Eventually(t, time.Minute, func() error {
				if n := w.count(`SELECT count(*) FROM effect`); n != w.total {
					return fmt.Errorf("effects = %d, want %d", n, w.total)
				}
				return nil
			})
			w.settled("billing")
			w.check(order == inbox.PerAggregate)
			p.stop(t)
		})
	}
}
