package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// A world is a database with walrelay's tables and one for effects, and a
// stream.
type world struct {
	t      testing.TB
	url    string
	pool   *pgxpool.Pool
	js     jetstream.JetStream
	stream jetstream.Stream
}

const streamName = "SHOP"

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, envtest.SharedPostgres(t))
}

func newWorldOn(t testing.TB, url string) *world {
	t.Helper()
	w := &world{t: t, url: url, pool: newPool(t, url)}
	migrate(t, url)
	w.exec(`CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY, event_id text, aggregate text, n int, at timestamptz DEFAULT clock_timestamp())`)
	nc, err := nats.Connect(envtest.EmbeddedNATS(t, testenv.NATSConfig{MaxPayload: 4 << 20}).URL(), nats.ReconnectWait(10*time.Millisecond), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if w.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	w.stream, err = w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: streamName, Subjects: []string{"outbox.>"}, AllowDirect: true})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 24
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func migrate(t testing.TB, url string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Consumer(t.Context(), cfg, migrations.Config{}, nil); err != nil {
		t.Fatal(err)
	}
}

func (w *world) exec(statement string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), statement, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), query, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// payload is what the tests' events say.
type payload struct {
	N int `json:"n"`
}

// publish stores one event, as the relay would, and gives its id.
func (w *world) publish(aggregate string, n int) string {
	w.t.Helper()
	id := uuid.NewString()
	w.publishMsg(event(id, aggregate, n))
	return id
}

func (w *world) publishMsg(m *nats.Msg) {
	w.t.Helper()
	if _, err := w.js.PublishMsg(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
}

func event(id, aggregate string, n int) *nats.Msg {
	m := nats.NewMsg("outbox.shop.order.placed")
	m.Header[envelope.HeaderMsgID] = []string{id}
	m.Header[envelope.HeaderSource] = []string{"shop"}
	m.Header[envelope.HeaderPosition] = []string{"1/0/" + fmt.Sprintf("%X", 1000+n) + "/0"}
	m.Header[envelope.HeaderAggregateType] = []string{"order"}
	m.Header[envelope.HeaderAggregateID] = []string{aggregate}
	m.Header[envelope.HeaderEventType] = []string{"placed"}
	m.Header[envelope.HeaderCommittedAt] = []string{time.Now().UTC().Format(time.RFC3339Nano)}
	m.Data = []byte(`{"n": ` + strconv.Itoa(n) + `}`)
	return m
}

// again stores an event once more under another wire id, as a forced replay
// does.
func again(m *nats.Msg) *nats.Msg {
	c := nats.NewMsg(m.Subject)
	maps.Copy(c.Header, m.Header)
	c.Header[envelope.HeaderEventID] = m.Header[envelope.HeaderMsgID]
	c.Header[envelope.HeaderMsgID] = []string{uuid.NewString()}
	c.Data = m.Data
	return c
}

func (w *world) config(name string) inbox.Config {
	return inbox.Config{
		Name: name, DB: w.pool, JetStream: w.js, Stream: streamName,
		Logger:  slog.New(slog.NewTextHandler(w.t.Output(), nil)),
		AckWait: 2 * time.Second, MinBackoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		CheckInterval: 50 * time.Millisecond, Lease: time.Second, DrainTimeout: 5 * time.Second,
	}
}

// A runner is a consumer of either kind.
type runner interface {
	Run(ctx context.Context) error
	Status() inbox.Status
	Apply(ctx context.Context, m inbox.Message) (inbox.Outcome, error)
}

// exec runs a statement in the handler's transaction.
type exec func(ctx context.Context, statement string, args ...any) error

// bothDrivers runs a test with pgx and with database/sql.
func bothDrivers(t *testing.T, test func(t *testing.T, driver string)) {
	t.Helper()
	t.Parallel()
	for _, driver := range []string{"pgx", "sql"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			test(t, driver)
		})
	}
}

// consumer makes a consumer with one handler, for events of type placed.
func (w *world) consumer(driver string, cfg inbox.Config, handle func(ctx context.Context, tx exec, e inbox.Event[payload]) error) runner {
	w.t.Helper()
	if driver == "pgx" {
		c, err := inbox.New(cfg)
		if err != nil {
			w.t.Fatal(err)
		}
		inbox.On(c, "placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[payload]) error {
			return handle(ctx, func(ctx context.Context, statement string, args ...any) error {
				_, err := tx.Exec(ctx, statement, args...)
				return err
			}, e)
		})
		return c
	}
	db := stdlib.OpenDBFromPool(cfg.DB)
	w.t.Cleanup(func() { _ = db.Close() })
	cfg.DB = nil
	c, err := inbox.NewSQL(db, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	inbox.OnSQL(c, "placed", func(ctx context.Context, tx *sql.Tx, e inbox.Event[payload]) error {
		return handle(ctx, func(ctx context.Context, statement string, args ...any) error {
			_, err := tx.ExecContext(ctx, statement, args...)
			return err
		}, e)
	})
	return c
}

// raw makes a consumer without handlers.
func (w *world) raw(cfg inbox.Config) *inbox.Consumer {
	w.t.Helper()
	c, err := inbox.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// apply is the tests' effect.
func apply(ctx context.Context, tx exec, e inbox.Event[payload]) error {
	return tx(ctx, `INSERT INTO effect (event_id, aggregate, n) VALUES ($1, $2, $3)`, e.ID, e.AggregateID, e.Data.N)
}

// start runs a consumer until the test ends or the returned function is called,
// which gives what Run returned.
func (w *world) start(c interface{ Run(context.Context) error }) (stop func() error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var result error
	stopped := false
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-done
		}
		return result
	}
	w.t.Cleanup(func() {
		if err := stop(); err != nil {
			w.t.Errorf("Run() = %v, want nil", err)
		}
	})
	return stop
}

// settled waits until JetStream has nothing left for the durable consumer.
func (w *world) settled(durable string) {
	w.t.Helper()
	envtest.Eventually(w.t, 30*time.Second, func() error {
		c, err := w.stream.Consumer(w.t.Context(), durable)
		if err != nil {
			return err
		}
		info, err := c.Info(w.t.Context())
		if err != nil {
			return err
		}
		stream, err := w.stream.Info(w.t.Context())
		if err != nil {
			return err
		}
		if info.NumAckPending != 0 || info.Delivered.Stream < stream.State.LastSeq {
			return fmt.Errorf("consumer %s: %d pending, %d without an ack, delivered up to %d of %d", durable,
				info.NumPending, info.NumAckPending, info.Delivered.Stream, stream.State.LastSeq)
		}
		return nil
	})
}

// proxied gives the address of a database's server, and its URL through a
// proxy.
func proxied(t testing.TB, raw string) (addr string, through func(proxy string) string) {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host, func(proxy string) string {
		v := *u
		v.Host = proxy
		return v.String()
	}
}
