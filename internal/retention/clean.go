package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/router"
)

const (
	// portion keeps transactions and locks short.
	portion = 1000
	// listed is how many rows are looked up at a time: the search costs as
	// much for many as for few.
	listed = 50 * portion
	// shortestPause is between two portions; a longer portion is followed by a
	// pause of restFactor times its length, which leaves the server to others.
	shortestPause = 5 * time.Millisecond
	restFactor    = 4
)

// A Cleaner deletes what is old and proven from the outbox tables of one source.
type Cleaner struct {
	// Conn is the cleaner's own: a run may take long.
	Conn           *pgx.Conn
	Schema, Source string
	Tables         []router.Table
	// Retention is the age from which on a row is deleted.
	Retention time.Duration
	// Fence is set first in each transaction; nil for none.
	Fence func(context.Context, pgx.Tx) error
	// DropWait is how long those who write may be made to wait for the next try
	// to drop a partition. Run raises it where a try was in vain and lowers it
	// again; who runs a Cleaner from time to time passes it on. Zero means a
	// tenth of a second.
	DropWait time.Duration
	// Patience is how long a portion waits for another cleaner of this source,
	// which holds the lock for a portion at a time. Zero leaves the rest to
	// that one at once.
	Patience time.Duration
	// Progress, if set, is called after each portion with the number of rows
	// deleted so far.
	Progress func(deleted int64)

	places []string // the tables that rows are deleted from, as explain names them
}

// A Result is what a run has done.
type Result struct {
	// Deleted is the number of rows that were deleted, or that would be, those
	// of dropped partitions among them.
	Deleted int64
	// Partitions are those that were dropped, or that would be.
	Partitions []string
	// Busy says that another cleaner of this source was at it: the rest is
	// left to that one.
	Busy bool
	// Kept says, in words, why rows stay that are old enough.
	Kept []string
}

// errBusy ends a transaction that did not get the cleaner's lock.
var errBusy = errors.New("another cleaner is at it")

// Run deletes until nothing is left that may go, or ctx ends. What was deleted
// until then stays deleted; a run that was cut off is simply run again.
func (c *Cleaner) Run(ctx context.Context) (Result, error) {
	var done Result
	plans, kept, err := c.plans(ctx)
	done.Kept = kept
	var parts []partition
	if err == nil {
		parts, err = c.old(ctx)
	}
	for i := range parts {
		if err != nil {
			break
		}
		if err = c.drop(ctx, &parts[i], &done); err != nil && !errors.Is(err, errBusy) {
			err = c.explainParts(parts[i].root, err)
		}
	}
	for i := range plans {
		if err != nil {
			break
		}
		err = c.table(ctx, &plans[i], &done)
	}
	if err == nil {
		err = c.records(ctx)
	}
	if errors.Is(err, errBusy) {
		done.Busy, err = true, nil
	}
	if err != nil {
		return done, c.explain(err)
	}
	return done, nil
}

// Count finds what [Cleaner.Run] would delete.
func (c *Cleaner) Count(ctx context.Context) (Result, error) {
	var found Result
	plans, kept, err := c.plans(ctx)
	found.Kept = kept
	for i := range plans {
		if err != nil {
			break
		}
		var n int64
		err = c.Conn.QueryRow(ctx, plans[i].text(`SELECT count(*) FROM ONLY $TABLE t, $PROOF WHERE $OLD`), plans[i].args...).Scan(&n)
		found.Deleted += n
	}
	var parts []partition
	if err == nil {
		parts, err = c.old(ctx)
	}
	for i := range parts {
		if err != nil {
			break
		}
		err = c.count(ctx, &parts[i], &found)
	}
	if err != nil {
		return found, c.explain(err)
	}
	return found, nil
}

// count adds a partition that would be dropped.
func (c *Cleaner) count(ctx context.Context, p *partition, found *Result) error {
	may, why, err := c.judge(ctx, c.Conn, p)
	if err != nil || !may {
		found.keep(why)
		return err
	}
	n, err := c.rows(ctx, p)
	if err != nil {
		return err
	}
	found.Deleted += n
	found.Partitions = append(found.Partitions, p.name.Sanitize())
	return nil
}

// Backlog is by how much the oldest row of all has passed the retention; zero
// when none has. Of a partition that goes as a whole its end counts.
func (c *Cleaner) Backlog(ctx context.Context) (time.Duration, error) {
	plans, _, err := c.plans(ctx)
	var most float64
	for i := range plans {
		if err != nil {
			break
		}
		var age float64
		err = c.Conn.QueryRow(ctx, strings.ReplaceAll(plans[i].text(`SELECT coalesce(extract(epoch FROM $HORIZON - min(t.$CREATED)), 0)::float8 FROM ONLY $TABLE t WHERE $AGED`),
			"$2", "$1"), plans[i].retention).Scan(&age)
		most = max(most, age)
	}
	var parts []partition
	if err == nil {
		parts, err = c.old(ctx)
	}
	for i := range parts {
		if err != nil {
			break
		}
		var age float64
		err = c.Conn.QueryRow(ctx, c.fill(&parts[i], `SELECT CASE WHEN EXISTS (SELECT FROM $TABLE t WHERE `+withinSQL+`)
			THEN extract(epoch FROM now() - $3::bigint * interval '1 millisecond' - $2) ELSE 0 END::float8`), unprepared,
			parts[i].lower, parts[i].upper, c.Retention.Milliseconds()).Scan(&age)
		most = max(most, age)
	}
	if err != nil {
		return 0, c.explain(err)
	}
	return time.Duration(most * float64(time.Second)), nil
}

// alone runs do in a transaction that holds the cleaner's lock. Its commit is
// not waited for: a delete that a crash undoes is done again.
func (c *Cleaner) alone(ctx context.Context, do func(pgx.Tx) error) error {
	return c.aloneWith(ctx, func(pgx.Tx) error { return nil }, do)
}

// aloneWith does something first that may wait: what fences us is locked after
// it, since the session writes there all the time.
func (c *Cleaner) aloneWith(ctx context.Context, first, do func(pgx.Tx) error) error {
	for began := time.Now(); ; {
		err := c.once(ctx, first, do)
		if !errors.Is(err, errBusy) || time.Since(began) >= c.Patience {
			return err
		}
		if err := pause(ctx, shortestPause); err != nil {
			return err
		}
	}
}

func (c *Cleaner) once(ctx context.Context, first, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, c.Conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '2s'; SET LOCAL synchronous_commit = off;
			SET LOCAL synchronize_seqscans = off; SET LOCAL max_parallel_workers_per_gather = 0`); err != nil {
			return err
		}
		var mine bool
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1::text || ' outbox of ' || $2::text, 0))`,
			c.Schema, c.Source).Scan(&mine); err != nil {
			return err
		}
		if !mine {
			return errBusy
		}
		if err := first(tx); err != nil {
			return err
		}
		if c.Fence != nil {
			if err := c.Fence(ctx, tx); err != nil {
				return err
			}
		}
		return do(tx)
	})
}

// table deletes what may go of one table or partition.
func (c *Cleaner) table(ctx context.Context, p *plan, done *Result) error {
	for after := "(0,0)"; ; {
		rows, err := c.list(ctx, p, after)
		if err != nil || len(rows) == 0 {
			return err
		}
		after = rows[len(rows)-1]
		if err := c.remove(ctx, p, rows, done); err != nil {
			return err
		}
	}
}

// list gives the places of rows that may go behind a place, in the order of the
// table: every scan is in that order with the settings of alone. Sorting would
// mean to look at all of them for each list.
func (c *Cleaner) list(ctx context.Context, p *plan, after string) (rows []string, err error) {
	err = c.alone(ctx, func(tx pgx.Tx) error {
		// An index that has an order of its own is left out.
		if _, err := tx.Exec(ctx, `SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off`); err != nil {
			return err
		}
		found, err := tx.Query(ctx, p.text(fmt.Sprintf(`SELECT t.ctid::text FROM ONLY $TABLE t, $PROOF WHERE $OLD AND t.ctid > $%d::text::tid LIMIT %d`, len(p.args)+1, listed)),
			append(slices.Clip(p.args), after)...)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(found, pgx.RowTo[string])
		return err
	})
	return rows, err
}

// remove deletes the rows in these places. A place may hold another row by now,
// a gap may have been found or a letter written, so each is judged once more.
func (c *Cleaner) remove(ctx context.Context, p *plan, rows []string, done *Result) error {
	statement := p.text(fmt.Sprintf(`DELETE FROM ONLY $TABLE WHERE ctid = ANY (ARRAY(
		SELECT t.ctid FROM ONLY $TABLE t, $PROOF WHERE t.ctid = ANY ($%d::text::tid[]) AND $OLD FOR UPDATE OF t SKIP LOCKED))`, len(p.args)+1))
	for len(rows) > 0 {
		some := rows[:min(portion, len(rows))]
		rows = rows[len(some):]
		began := time.Now()
		var n int64
		err := c.alone(ctx, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, statement, append(slices.Clip(p.args), `{"`+strings.Join(some, `","`)+`"}`)...)
			n = tag.RowsAffected()
			return err
		})
		if err != nil {
			return err
		}
		done.Deleted += n
		if c.Progress != nil {
			c.Progress(done.Deleted)
		}
		if err := pause(ctx, max(shortestPause, restFactor*time.Since(began))); err != nil {
			return err
		}
	}
	return nil
}

// keptRecords is how long ended gaps and jobs are kept.
const keptRecords = 90 * 24 * time.Hour

// records deletes old records of ours: proofs that no row needs any more, and
// ended gaps and jobs. The newest proof stays, and the newest declared one,
// which no loss of a stream takes away.
func (c *Cleaner) records(ctx context.Context) error {
	name := func(table string) string { return pgx.Identifier{c.Schema, table}.Sanitize() }
	return c.alone(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM `+name("proven")+` p WHERE source = $1 AND at < now() - $2::bigint * interval '1 millisecond' - interval '1 day'
			AND EXISTS (SELECT FROM `+name("proven")+` n WHERE n.source = $1 AND n.id > p.id AND (n.streams = '{}') = (p.streams = '{}'))`,
			c.Source, c.Retention.Milliseconds()); err != nil {
			return err
		}
		kept := keptRecords.Milliseconds()
		if _, err := tx.Exec(ctx, `DELETE FROM `+name("gap")+` WHERE source = $1 AND ended_at < now() - $2::bigint * interval '1 millisecond'`, c.Source, kept); err != nil {
			return err
		}
		// One backfill of a source is remembered: it is not to be done twice.
		_, err := tx.Exec(ctx, `DELETE FROM `+name("job")+` j WHERE source = $1 AND ended_at < now() - $2::bigint * interval '1 millisecond'
			AND kind <> 'backfill' AND NOT EXISTS (SELECT FROM `+name("gap")+` g WHERE g.job = j.id)`, c.Source, kept)
		return err
	})
}

// explain names the statement that helps where a right is missing.
func (c *Cleaner) explain(err error) error {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "42501" {
		tables := []string{pgx.Identifier{c.Schema, "proven"}.Sanitize(), pgx.Identifier{c.Schema, "gap"}.Sanitize(), pgx.Identifier{c.Schema, "job"}.Sanitize()}
		for _, t := range c.Tables {
			tables = append(tables, shown(t))
		}
		for _, place := range c.places {
			if !slices.Contains(tables, place) {
				tables = append(tables, place)
			}
		}
		user := pgx.Identifier{c.Conn.Config().User}.Sanitize()
		return fmt.Errorf("delete old rows of source %q: %w; GRANT SELECT, UPDATE, DELETE ON %s TO %s; -- as their owner; UPDATE is what locking a row takes",
			c.Source, err, strings.Join(tables, ", "), user)
	}
	return fmt.Errorf("delete old rows of source %q: %w", c.Source, err)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
