package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// A sample is what the outbox takes at one time of a steady load.
type sample struct {
	After   time.Duration `json:"after_ns"`
	Rows    int64         `json:"rows"`
	TableMB float64       `json:"table_mb"`
	IndexMB float64       `json:"indexes_mb"`
	Dead    int64         `json:"dead_rows"`
	Vacuums int64         `json:"autovacuums"`
}

const (
	// steadyRate is how many rows are committed a second, each by itself, and
	// steadyRetention how long they are kept: the table has as many as they
	// make together.
	steadyRate      = 300
	steadyRetention = time.Minute
	steadyEvery     = 20 * time.Second
)

// measureSteady writes at a steady rate while a relay publishes and deletes, and
// looks at the size of the table and its indexes. PostgreSQL vacuums by itself,
// with what migrate has set.
func measureSteady(ctx context.Context, at given, lasts time.Duration) (all []sample, err error) {
	w := base("steady")
	w.Rows, w.PerTx, w.Vacuum = 1, 1, true
	g, err := newGround(ctx, w, at)
	if err != nil {
		return nil, err
	}
	defer g.close()
	_, stop, err := g.follow(ctx, job{Candidate: relay, Source: prefix + "steady", Retention: steadyRetention})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wrote := make(chan error, 1)
	go func() {
		_, err := g.beside(ctx, lasts)
		wrote <- err
	}()
	began := time.Now()
	tick := time.NewTicker(min(steadyEvery, lasts/3))
	defer tick.Stop()
	for {
		select {
		case err := <-wrote:
			return all, err
		case <-tick.C:
		}
		s := sample{After: time.Since(began).Round(time.Second)}
		const mb = 1 << 20
		var table, indexes int64
		if err := g.db.QueryRow(ctx, `SELECT (SELECT count(*) FROM `+schema+`.outbox), pg_relation_size(relid), pg_indexes_size(relid), n_dead_tup, autovacuum_count
			FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'outbox'`, schema).Scan(&s.Rows, &table, &indexes, &s.Dead, &s.Vacuums); err != nil {
			return all, fmt.Errorf("look at the outbox: %w", err)
		}
		s.TableMB, s.IndexMB = float64(table)/mb, float64(indexes)/mb
		say("  %8v  %7d rows, table %6.1f MB, indexes %6.1f MB, %6d dead, %3d autovacuums", s.After, s.Rows, s.TableMB, s.IndexMB, s.Dead, s.Vacuums)
		all = append(all, s)
	}
}

// beside writes in portions, so that it can be told to end.
func (g *ground) beside(ctx context.Context, lasts time.Duration) (n int, err error) {
	const portion = 10 * steadyRate
	for began := time.Now(); time.Since(began) < lasts && err == nil; n += portion {
		_, err = g.write(ctx, warming+n, portion, steadyRate)
	}
	return n, err
}

func printSteady(w io.Writer, all []sample) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%d rows a second, kept for %v\n%10s %8s %10s %10s %8s %11s\n", steadyRate, steadyRetention, "after", "rows", "table MB", "indexes MB", "dead", "autovacuums")
	for _, s := range all {
		fmt.Fprintf(w, "%10v %8d %10.1f %10.1f %8d %11d\n", s.After, s.Rows, s.TableMB, s.IndexMB, s.Dead, s.Vacuums)
	}
}
