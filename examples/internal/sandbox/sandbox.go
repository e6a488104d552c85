// Package sandbox gives the examples throw-away servers: PostgreSQL with
// walrelay's tables, and on demand JetStream with a relay between the two. In a
// service these are there already; nothing of this package is worth a copy.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/migrations"
)

const (
	// Source names the relay.
	Source = "shop"
	// Stream is the relay's stream.
	Stream = "SHOP"
)

// A Sandbox is a set of throw-away servers.
type Sandbox struct {
	// DatabaseURL is the database, as superuser.
	DatabaseURL string
	// Pool is a pool on it.
	Pool *pgxpool.Pool
	// JetStream is a connection to the broker, once StartRelay was called.
	JetStream jetstream.JetStream

	env    *testenv.Env
	broker *testenv.EmbeddedNATS
	nats   *nats.Conn
	stop   context.CancelFunc
	work   *errgroup.Group
}

// Open starts PostgreSQL, makes walrelay's tables of both sides and runs the
// example's own statements. The caller closes the Sandbox.
func Open(ctx context.Context, statements ...string) (_ *Sandbox, err error) {
	s := &Sandbox{}
	if s.env, err = testenv.New(); err != nil {
		return nil, fmt.Errorf("open a sandbox: %w", err)
	}
	if err := s.open(ctx, statements); err != nil {
		return nil, errors.Join(fmt.Errorf("open a sandbox: %w", err), s.Close())
	}
	return s, nil
}

func (s *Sandbox) open(ctx context.Context, statements []string) error {
	server, err := s.env.StartPostgres(ctx, testenv.PGConfig{})
	if err != nil {
		return err
	}
	s.DatabaseURL = server.URL("postgres")
	connect, err := pgx.ParseConfig(s.DatabaseURL)
	if err != nil {
		return err
	}
	if err := migrations.Apply(ctx, connect, migrations.Config{Publication: Source, Slot: Source}, nil); err != nil {
		return err
	}
	if err := migrations.Consumer(ctx, connect, migrations.Config{}, nil); err != nil {
		return err
	}
	if s.Pool, err = pgxpool.New(ctx, s.DatabaseURL+"&pool_max_conns=16"); err != nil {
		return err
	}
	for _, statement := range statements {
		if _, err := s.Pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// StartRelay starts JetStream, makes the stream and runs a relay until Close.
func (s *Sandbox) StartRelay(ctx context.Context) error {
	var err error
	if s.broker, err = s.env.StartEmbeddedNATS(testenv.NATSConfig{}); err != nil { //nolint:contextcheck // it bounds its start by itself
		return fmt.Errorf("start the broker: %w", err)
	}
	if s.nats, err = nats.Connect(s.broker.URL()); err != nil {
		return fmt.Errorf("connect to the broker: %w", err)
	}
	if s.JetStream, err = jetstream.New(s.nats); err != nil {
		return fmt.Errorf("connect to the broker: %w", err)
	}
	// What `walrelay migrate --stream` does.
	if _, err := s.JetStream.CreateStream(ctx, jetstream.StreamConfig{
		Name: Stream, Subjects: []string{"outbox." + Source + ".>"}, AllowDirect: true,
	}); err != nil {
		return fmt.Errorf("make the stream: %w", err)
	}
	relay, err := walrelay.New(walrelay.Config{DatabaseURL: s.DatabaseURL, NATS: s.broker.URL(), Source: Source, Stream: Stream})
	if err != nil {
		return fmt.Errorf("make the relay: %w", err)
	}
	ctx, s.stop = context.WithCancel(ctx)
	s.work = &errgroup.Group{}
	s.work.Go(func() error { return relay.Run(ctx) })
	return nil
}

// Close stops what was started and leaves nothing behind.
func (s *Sandbox) Close() error {
	var errs []error
	if s.stop != nil {
		s.stop()
		if err := s.work.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, fmt.Errorf("relay: %w", err))
		}
	}
	if s.nats != nil {
		s.nats.Close()
	}
	if s.broker != nil {
		s.broker.Close()
	}
	if s.Pool != nil {
		s.Pool.Close()
	}
	return errors.Join(append(errs, s.env.Close())...)
}

// Background runs f, such as a consumer's Run, until the returned function is
// called; that waits for its end and gives its error.
func Background(ctx context.Context, f func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var work errgroup.Group
	work.Go(func() error { return f(ctx) })
	return func() error {
		cancel()
		if err := work.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// Number runs a query that gives one number.
func (s *Sandbox) Number(ctx context.Context, query string, args ...any) (n int64, err error) {
	if err := s.Pool.QueryRow(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("%s: %w", query, err)
	}
	return n, nil
}

// patience bounds how long an example waits for something that must happen.
const patience = 30 * time.Second

// Await waits until a query gives the number.
func (s *Sandbox) Await(ctx context.Context, want int64, query string, args ...any) error {
	return Until(ctx, func() error {
		got, err := s.Number(ctx, query, args...)
		if err == nil && got != want {
			err = fmt.Errorf("%s = %d, want %d", query, got, want)
		}
		return err
	})
}

// Until waits until check finds nothing wrong.
func Until(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain: %w", err)
		case <-tick.C:
		}
	}
}
