package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/migrations"
)

// handled is the relay with a consumer behind it, whose effect is one row of
// effectTable.
const (
	handled     = "handled"
	effectTable = schema + ".bench_effect"
)

// A handling is a consumer at work.
type handling struct {
	pool *pgxpool.Pool
	stop context.CancelFunc
	done chan error
}

// handle starts a consumer of a stream in the same database. Where it would be
// too slow one by one it takes a hundred events into a transaction.
func (g *ground) handle(ctx context.Context, stream string, rate int) (*handling, error) {
	var kept string
	if err := g.db.QueryRow(ctx, `SHOW track_commit_timestamp`).Scan(&kept); err != nil {
		return nil, fmt.Errorf("ask whether the server keeps the times of commits: %w", err)
	}
	if kept != "on" {
		return nil, errors.New("the time of an effect's commit is not known: set track_commit_timestamp = on and restart PostgreSQL, or leave -database and -nats out")
	}
	cfg, err := pgxpool.ParseConfig(g.url)
	if err != nil {
		return nil, errors.New("the database's URL cannot be read")
	}
	if err := migrations.Consumer(ctx, cfg.ConnConfig.Copy(), migrations.Config{Schema: schema}, func(migrations.Step) {}); err != nil {
		return nil, err
	}
	if _, err := g.db.Exec(ctx, `CREATE TABLE `+effectTable+` (n int NOT NULL)`); err != nil {
		return nil, fmt.Errorf("make the table of effects: %w", err)
	}
	cfg.MaxConns = 10
	h := &handling{done: make(chan error, 1)}
	if h.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	settings := inbox.Config{Name: "bench", DB: h.pool, JetStream: g.js, Stream: stream, Schema: schema}
	if rate > 1000 {
		settings.Batch = 100
	}
	consumer, err := inbox.New(settings) //nolint:contextcheck // New takes none
	if err != nil {
		h.pool.Close()
		return nil, err
	}
	inbox.On(consumer, "placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[struct {
		N int `json:"n"`
	}],
	) error {
		_, err := tx.Exec(ctx, `INSERT INTO `+effectTable+` VALUES ($1)`, e.Data.N)
		return err
	})
	var work context.Context
	work, h.stop = context.WithCancel(ctx)
	go func() { h.done <- consumer.Run(work) }()
	return h, nil
}

// end stops the consumer and removes its effects.
func (h *handling) end(ctx context.Context) error {
	h.stop()
	err := <-h.done
	_, dropped := h.pool.Exec(ctx, `DROP TABLE `+effectTable)
	h.pool.Close()
	return errors.Join(err, dropped)
}

// await waits until there are n effects.
func (h *handling) await(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for got := 0; got < n; {
		select {
		case err := <-h.done:
			h.done <- err
			return fmt.Errorf("the consumer ended too early: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("wait for the effects: %w", ctx.Err())
		case <-tick.C:
		}
		if err := h.pool.QueryRow(ctx, `SELECT count(*) FROM `+effectTable).Scan(&got); err != nil {
			return fmt.Errorf("count the effects: %w", err)
		}
	}
	return nil
}

// times gives for each row from first on how long its effect's commit came after
// the begin of its own. It waits for them.
func (h *handling) times(ctx context.Context, first int, wrote writing) (took []float64, err error) {
	if err := h.await(ctx, first+len(wrote.at)); err != nil {
		return nil, err
	}
	rows, err := h.pool.Query(ctx, `SELECT n, pg_xact_commit_timestamp(xmin) FROM `+effectTable+` WHERE n >= $1`, first)
	if err != nil {
		return nil, fmt.Errorf("read the effects: %w", err)
	}
	seen := make([]bool, len(wrote.at))
	var n int
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&n, &at}, func() error {
		seen[n-first] = true
		took = append(took, at.Sub(wrote.at[n-first]).Seconds()*1e3)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the effects: %w", err)
	}
	if len(took) != len(seen) || slices.Contains(seen, false) {
		return nil, fmt.Errorf("%d effects of %d events: not each once", len(took), len(seen))
	}
	return took, nil
}
