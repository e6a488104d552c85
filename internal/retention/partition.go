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

// A partition is one of an outbox whose partitions are ours to make and to drop.
type partition struct {
	root         router.Table
	oid          uint32
	name         pgx.Identifier
	lower, upper time.Time
	old          bool // all of it has passed the retention
}

const (
	// dropTries is how often the lock of an outbox is asked for in one run to
	// take a partition off. Those who write wait behind each try, for dropLeast
	// at first, and for twice as long after each one that was in vain, dropMost
	// at the most: where transactions of some length always overlap, a short
	// wait never finds the way free.
	dropTries = 3
	dropLeast = 100 * time.Millisecond
	dropMost  = time.Second
	// dropPause lets them through in between.
	dropPause = time.Second
)

// managed says whether the partitions of a table are ours: migrate has left the
// functions that make and drop them beside it.
func managed(ctx context.Context, q querier, t router.Table) (ours bool, err error) {
	columns := t.Columns.Effective()
	if t.Name != "outbox" || columns.ID != "id" || columns.CreatedAt != "created_at" || columns.Xid != "xid" {
		return false, nil
	}
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
		AND c.relkind = 'p' AND EXISTS (SELECT FROM pg_proc WHERE pronamespace = n.oid AND proname = 'drop_partition'))`, t.Schema, t.Name).Scan(&ours)
	return ours, err
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// partitions gives those that go as a whole: not the default one, and none
// without an end or whose beginning is no age.
func (c *Cleaner) partitions(ctx context.Context, t router.Table) ([]partition, error) {
	if ours, err := managed(ctx, c.Conn, t); err != nil || !ours {
		return nil, err
	}
	rows, err := c.Conn.Query(ctx, `SELECT c.oid, n.nspname::text, c.relname::text, p.lower, p.upper, p.upper <= now() - $1::bigint * interval '1 millisecond'
		FROM `+function(t, "partitions")+`() p JOIN pg_class c ON c.oid = p.part JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND p.lower >= timestamptz '1970-01-01 00:00:00+00' AND isfinite(p.upper) ORDER BY p.lower`, c.Retention.Milliseconds())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (partition, error) {
		p := partition{root: t, name: make(pgx.Identifier, 2)}
		return p, row.Scan(&p.oid, &p.name[0], &p.name[1], &p.lower, &p.upper, &p.old)
	})
}

// old gives the partitions of all tables that have passed the retention.
func (c *Cleaner) old(ctx context.Context) (list []partition, err error) {
	for _, t := range c.Tables {
		all, err := c.partitions(ctx, t)
		if err != nil {
			return nil, err
		}
		list = append(list, slices.DeleteFunc(all, func(p partition) bool { return !p.old })...)
	}
	return list, nil
}

func function(t router.Table, name string) string { return pgx.Identifier{t.Schema, name}.Sanitize() }

// withinSQL bounds the rows of one partition. They are reached through the root,
// for which alone a relay has rights; the bounds lead to that partition.
const withinSQL = `t.created_at >= $1 AND t.created_at < $2`

// openSQL counts the open dead letters of a partition's rows. A text that is no
// uuid is no id of the table.
const openSQL = `SELECT count(*) FROM $SCHEMA.dead_letter d WHERE d."table" = $3 AND d.resolved_at IS NULL AND EXISTS (SELECT FROM $TABLE t WHERE ` + withinSQL + `
	AND t.id = CASE WHEN d.event_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN d.event_id::uuid END)`

func (c *Cleaner) fill(p *partition, sql string) string {
	return strings.NewReplacer("$TABLE", shown(p.root), "$SCHEMA", pgx.Identifier{c.Schema}.Sanitize()).Replace(strings.ReplaceAll(sql, "$PROOF", proofSQL))
}

// errStays ends a transaction in which a partition is found that has to stay.
var errStays = errors.New("the partition has to stay")

// judge says whether a partition may go; why is empty where it may not for want
// of a proof, which plans says once for all.
func (c *Cleaner) judge(ctx context.Context, q querier, p *partition) (may bool, why string, err error) {
	var snapshot string
	var at, epoch time.Time
	err = q.QueryRow(ctx, c.fill(p, `SELECT snapshot::text, at, epoch_at FROM $PROOF`), c.Source).Scan(&snapshot, &at, &epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, "", nil
	}
	if err != nil {
		return false, "", err
	}
	// Where all of a partition is older than the epoch, rows that came with a
	// dump are judged by their age, as exactSQL does.
	byAge := !p.upper.After(epoch) && !p.upper.After(at.Add(-clockMargin))
	var unseen bool
	if err := q.QueryRow(ctx, `SELECT `+function(p.root, "unproven_rows")+`($1::oid::regclass, $2::text::pg_snapshot, $3)`, p.oid, snapshot, byAge).Scan(&unseen); err != nil {
		return false, "", err
	}
	if unseen {
		return false, "partition " + p.name.Sanitize() + " stays: it holds rows that no proof sees, which a relay has yet to deliver", nil
	}
	var open int64
	if err := q.QueryRow(ctx, c.fill(p, openSQL), unprepared, p.lower, p.upper, p.root.Schema+"."+p.root.Name).Scan(&open); err != nil {
		return false, "", err
	}
	if open > 0 {
		return false, fmt.Sprintf("partition %s stays: %d dead letters of its rows are open", p.name.Sanitize(), open), nil
	}
	return true, "", nil
}

// unprepared has a query planned each time anew, so that the plan holds one
// partition alone.
const unprepared = pgx.QueryExecModeExec

// clockMargin lies between a row and a proof that are compared by the clock.
const clockMargin = time.Hour

func (c *Cleaner) rows(ctx context.Context, p *partition) (n int64, err error) {
	err = c.Conn.QueryRow(ctx, c.fill(p, `SELECT count(*) FROM $TABLE t WHERE `+withinSQL), unprepared, p.lower, p.upper).Scan(&n)
	return n, err
}

// drop drops a partition that may go. It is judged before anybody is made to
// wait, and again when nobody can write to it any more.
func (c *Cleaner) drop(ctx context.Context, p *partition, done *Result) error {
	may, why, err := c.judge(ctx, c.Conn, p)
	if err != nil || !may {
		done.keep(why)
		return err
	}
	n, err := c.rows(ctx, p)
	if err != nil {
		return err
	}
	held := false
	c.DropWait = max(c.DropWait, dropLeast)
	for try := 1; ; try++ {
		held = false
		err = c.aloneWith(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = '10s'`); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `SELECT `+function(p.root, "hold_partition")+`($1::oid::regclass)`, p.oid)
			held = err == nil
			return err
		}, func(tx pgx.Tx) error {
			may, why, err = c.judge(ctx, tx, p)
			if err != nil {
				return err
			}
			if !may {
				return errStays
			}
			_, err := tx.Exec(ctx, `SELECT `+function(p.root, "drop_partition")+`($1::oid::regclass, $2)`, p.oid, c.DropWait.Milliseconds())
			return err
		})
		if !held || !locked(err) {
			break
		}
		c.DropWait = min(2*c.DropWait, dropMost)
		if try == dropTries {
			break
		}
		if err := pause(ctx, dropPause); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(err, errStays):
		done.keep(why)
		return nil
	case locked(err):
		done.keep("partition " + p.name.Sanitize() + " stays for now: an open transaction has locked it, or the outbox itself for longer than those who write may wait; it is tried again")
		return nil
	case err != nil:
		return err
	}
	c.DropWait = dropLeast
	done.Deleted += n
	done.Partitions = append(done.Partitions, p.name.Sanitize())
	if c.Progress != nil {
		c.Progress(done.Deleted)
	}
	return nil
}

func (r *Result) keep(why string) {
	if why != "" {
		r.Kept = append(r.Kept, why)
	}
}

// locked says that somebody else's lock was in the way.
func locked(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (refused.Code == "55P03" || refused.Code == "40P01")
}
