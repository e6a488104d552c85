package receipt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Tx is an open transaction, of whichever driver.
type Tx interface {
	Exec(ctx context.Context, statement string, args ...any) (int64, error)
	// Query calls each for every row.
	Query(ctx context.Context, statement string, args []any, each func(scan func(...any) error) error) error
}

// A Cleaner deletes the receipts of one consumer that are older than the
// retention, and the counts of failed attempts of that age.
type Cleaner struct {
	Schema   string
	Consumer string
	// Retention is the age from which on a receipt is deleted.
	Retention time.Duration
	// Within runs do in a transaction of its own.
	Within func(ctx context.Context, do func(Tx) error) error
	// Patience is how long a portion waits for another cleaner of this consumer,
	// which holds the lock for a portion at a time. Zero leaves the rest to
	// that one at once.
	Patience time.Duration
	// Progress, if set, is called after each portion with the number of
	// receipts deleted so far.
	Progress func(deleted int64)
}

// A Result is what a run has done.
type Result struct {
	// Receipts and Attempts are the rows deleted, or found by [Cleaner.Count].
	Receipts, Attempts int64
	// Busy says that another cleaner of this consumer was at it: the rest
	// is left to that one.
	Busy bool
}

const (
	// portion keeps transactions and locks short.
	portion = 2000
	// listed is how many rows are looked up at a time: the search costs as
	// much for many as for few.
	listed = 25 * portion
	// shortestPause is between two portions; a longer portion is followed
	// by a pause as long as itself.
	shortestPause = 5 * time.Millisecond
)

// errBusy ends a transaction that did not get the cleaner's lock.
var errBusy = errors.New("another cleaner is at it")

// Run deletes until nothing old is left or ctx ends. What was deleted until
// then stays deleted; a run that was cut off is simply run again.
func (c Cleaner) Run(ctx context.Context) (Result, error) {
	var done Result
	err := c.attempts(ctx, &done)
	for after := "(0,0)"; err == nil; {
		var rows []string
		if rows, err = c.list(ctx, after); len(rows) == 0 {
			break
		}
		after = rows[len(rows)-1]
		err = c.remove(ctx, rows, &done)
	}
	if errors.Is(err, errBusy) {
		done.Busy, err = true, nil
	}
	if err != nil {
		return done, fmt.Errorf("delete old receipts of consumer %q: %w", c.Consumer, err)
	}
	return done, nil
}

// Count finds what [Cleaner.Run] would delete.
func (c Cleaner) Count(ctx context.Context) (found Result, err error) {
	err = c.Within(ctx, func(tx Tx) error {
		return tx.Query(ctx, c.text(`SELECT (SELECT count(*) FROM $SCHEMA.receipt WHERE $OLD), (SELECT count(*) FROM $SCHEMA.attempt WHERE $OLD_ATTEMPT)`),
			c.args(), func(scan func(...any) error) error { return scan(&found.Receipts, &found.Attempts) })
	})
	if err != nil {
		return found, fmt.Errorf("count old receipts of consumer %q: %w", c.Consumer, err)
	}
	return found, nil
}

// text fills in the schema and what is old. The time of the transaction's
// start, unlike the clock's, lets the index on at be used.
func (c Cleaner) text(s string) string {
	return strings.NewReplacer(
		"$SCHEMA", pgx.Identifier{c.Schema}.Sanitize(),
		"$OLD_ATTEMPT", `consumer = $1 AND last_at < now() - $2::bigint * interval '1 millisecond'`,
		"$OLD", `consumer = $1 AND at < now() - $2::bigint * interval '1 millisecond'`,
	).Replace(s)
}

func (c Cleaner) args(more ...any) []any {
	return append([]any{c.Consumer, c.Retention.Milliseconds()}, more...)
}

// alone runs do in a transaction that holds the cleaner's lock. Its commit is
// not waited for: a delete that a crash undoes is done again.
func (c Cleaner) alone(ctx context.Context, do func(Tx) error) error {
	for began := time.Now(); ; {
		err := c.once(ctx, do)
		if !errors.Is(err, errBusy) || time.Since(began) >= c.Patience {
			return err
		}
		if err := pause(ctx, shortestPause); err != nil {
			return err
		}
	}
}

func (c Cleaner) once(ctx context.Context, do func(Tx) error) error {
	return c.Within(ctx, func(tx Tx) error {
		var mine bool
		var settings string
		err := tx.Query(ctx, c.text(`SELECT pg_try_advisory_xact_lock(hashtextextended($1::text || ' receipts of ' || $2::text, 0)),
			concat(set_config('lock_timeout', '2s', true), set_config('synchronous_commit', 'off', true),
				set_config('synchronize_seqscans', 'off', true), set_config('max_parallel_workers_per_gather', '0', true))`),
			[]any{c.Schema, c.Consumer}, func(scan func(...any) error) error { return scan(&mine, &settings) })
		switch {
		case err != nil:
			return err
		case !mine:
			return errBusy
		}
		return do(tx)
	})
}

// list gives the places of old receipts behind a place, in the order of the
// table: every scan is in that order with the settings of alone. Sorting would
// mean to look at all of them for each list.
func (c Cleaner) list(ctx context.Context, after string) (rows []string, err error) {
	err = c.alone(ctx, func(tx Tx) error {
		return tx.Query(ctx, c.text(`SELECT ctid::text FROM $SCHEMA.receipt WHERE $OLD AND ctid > $3::text::tid LIMIT $4`),
			c.args(after, listed), func(scan func(...any) error) error {
				var place string
				defer func() { rows = append(rows, place) }()
				return scan(&place)
			})
	})
	return rows, err
}

// remove deletes the receipts in these places. A place may hold another row by
// now, so each is looked at once more.
func (c Cleaner) remove(ctx context.Context, rows []string, done *Result) error {
	for len(rows) > 0 {
		some := rows[:min(portion, len(rows))]
		rows = rows[len(some):]
		began := time.Now()
		var n int64
		err := c.alone(ctx, func(tx Tx) (err error) {
			n, err = tx.Exec(ctx, c.text(`DELETE FROM $SCHEMA.receipt WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM $SCHEMA.receipt WHERE ctid = ANY ($3::text::tid[]) AND $OLD FOR UPDATE SKIP LOCKED))`),
				c.args(`{"`+strings.Join(some, `","`)+`"}`)...)
			return err
		})
		if err != nil {
			return err
		}
		done.Receipts += n
		if c.Progress != nil {
			c.Progress(done.Receipts)
		}
		if err := pause(ctx, max(shortestPause, time.Since(began))); err != nil {
			return err
		}
	}
	return nil
}

// attempts deletes counts of attempts, of which there are few.
func (c Cleaner) attempts(ctx context.Context, done *Result) error {
	for {
		var n int64
		err := c.alone(ctx, func(tx Tx) (err error) {
			n, err = tx.Exec(ctx, c.text(`DELETE FROM $SCHEMA.attempt WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM $SCHEMA.attempt WHERE $OLD_ATTEMPT LIMIT $3 FOR UPDATE SKIP LOCKED))`), c.args(portion)...)
			return err
		})
		if err != nil {
			return err
		}
		if done.Attempts += n; n < portion {
			return nil
		}
		if err := pause(ctx, shortestPause); err != nil {
			return err
		}
	}
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
