package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/walrelay/walrelay/migrations"
)

// A cost is what a transaction of a service takes: the service's own row, and
// with it an event that is told in one of several ways.
type cost struct {
	Way     string  `json:"way"`
	Relayed bool    `json:"relayed"` // a relay follows
	Rate    float64 `json:"transactions_per_second"`
	WAL     float64 `json:"wal_bytes_per_transaction"`
	// Plain is the rate of the transaction without an event divided by this
	// one's: the median over the rounds, each of which has both.
	Plain float64 `json:"plain_ratio"`
}

const (
	// partsSchema holds the outbox in partitions.
	partsSchema = schema + "_parts"
	orderTable  = schema + ".bench_order"

	costWriters      = 4
	costRounds       = 5
	costTransactions = 1500 // of each writer, each time
)

// noEvent is the service's transaction alone.
const noEvent = "no event"

// A way is a statement that tells an event within a transaction.
type way struct{ name, sql string }

func ways(relayed bool) []way {
	insert := func(schema string) string {
		return `INSERT INTO ` + schema + `.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', $1::text, 'placed', jsonb_build_object('n', 0, 'x', repeat('x', 236)))`
	}
	list := []way{{name: noEvent}, {"outbox", insert(schema)}}
	if relayed {
		return list
	}
	return append(list, way{"outbox in partitions", insert(partsSchema)},
		way{"logical message", `SELECT pg_logical_emit_message(true, 'bench', jsonb_build_object('id', gen_random_uuid(), 'of', $1::text, 'x', repeat('x', 236))::text)`})
}

// measureCosts lets services write, so many transactions each way in turn, without a relay and with
// one behind them. Commits are flushed to disk.
func measureCosts(ctx context.Context, at given, transactions int) ([]cost, error) {
	w := base("costs")
	w.Rows, w.PerTx, w.Flushed = 1, 1, true
	g, err := newGround(ctx, w, at)
	if err != nil {
		return nil, err
	}
	defer g.close()
	cfg, err := pgx.ParseConfig(g.url)
	if err != nil {
		return nil, errors.New("the database's URL cannot be read")
	}
	if err := migrations.Apply(ctx, cfg, migrations.Config{Schema: partsSchema, Partitioned: true, SchemaOnly: true}, func(migrations.Step) {}); err != nil {
		return nil, err
	}
	if _, err := g.db.Exec(ctx, `CREATE TABLE `+orderTable+` (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, total int)`); err != nil {
		return nil, fmt.Errorf("make the service's table: %w", err)
	}
	alone, err := g.costs(ctx, false, transactions)
	if err != nil {
		return nil, err
	}
	_, stop, err := g.follow(ctx, job{Candidate: relay, Source: prefix + "costs"})
	if err != nil {
		return nil, err
	}
	beside, err := g.costs(ctx, true, transactions)
	return append(alone, beside...), errors.Join(err, stop())
}

func (g *ground) costs(ctx context.Context, relayed bool, transactions int) (all []cost, err error) {
	list := ways(relayed)
	rates, bytes, ratios := make([][]float64, len(list)), make([][]float64, len(list)), make([][]float64, len(list))
	for round := range costRounds {
		for i, w := range list {
			rate, wal, err := g.transact(ctx, w.sql, transactions)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			rates[i], bytes[i] = append(rates[i], rate), append(bytes[i], wal)
			ratios[i] = append(ratios[i], rates[0][round]/rate)
			say("  round %d  %-22s %8.0f transactions/s  %6.0f B of WAL", round+1, w.name, rate, wal)
		}
	}
	middle := func(list []float64) float64 {
		slices.Sort(list)
		return median(list)
	}
	for i, w := range list {
		plain := middle(ratios[i])
		all = append(all, cost{Way: w.name, Relayed: relayed, Rate: middle(rates[i]), WAL: middle(bytes[i]), Plain: plain})
	}
	return all, nil
}

// transact has several writers do their transactions, each with the statement.
func (g *ground) transact(ctx context.Context, statement string, transactions int) (rate, wal float64, err error) {
	place := func() (n int64, err error) {
		err = g.db.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&n)
		return n, err
	}
	conns := make([]*pgx.Conn, costWriters)
	for k := range conns {
		if conns[k], err = pgx.Connect(ctx, g.url); err != nil {
			return 0, 0, fmt.Errorf("connect to PostgreSQL: %w", err)
		}
		defer conns[k].Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has done its work
	}
	from, err := place()
	if err != nil {
		return 0, 0, fmt.Errorf("ask for the end of WAL: %w", err)
	}
	began := time.Now()
	each, within := errgroup.WithContext(ctx)
	for _, conn := range conns {
		each.Go(func() error {
			for i := range transactions {
				err := pgx.BeginFunc(within, conn, func(tx pgx.Tx) error {
					if _, err := tx.Exec(within, `INSERT INTO `+orderTable+` (customer, total) VALUES ($1, $2)`, "ann", i); err != nil {
						return err
					}
					if statement == "" {
						return nil
					}
					_, err := tx.Exec(within, statement, fmt.Sprint(i%1000))
					return err
				})
				if err != nil {
					return fmt.Errorf("a service's transaction: %w", err)
				}
			}
			return nil
		})
	}
	if err := each.Wait(); err != nil {
		return 0, 0, err
	}
	took := time.Since(began)
	to, err := place()
	if err != nil {
		return 0, 0, fmt.Errorf("ask for the end of WAL: %w", err)
	}
	n := float64(costWriters * transactions)
	return n / took.Seconds(), float64(to-from) / n, nil
}

func printCosts(w io.Writer, all []cost) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "\nwhat a transaction of a service costs, %d writers\n%-24s %-8s %14s %12s %12s\n", costWriters, "event", "relayed", "transactions/s", "WAL bytes", "plain/this")
	for _, c := range all {
		fmt.Fprintf(w, "%-24s %-8t %14.0f %12.0f %12.2f\n", c.Way, c.Relayed, c.Rate, c.WAL, c.Plain)
	}
}
