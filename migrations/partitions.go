package migrations

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	defaultInterval = 24 * time.Hour
	defaultAhead    = 30
	// anySize lets a default partition of any size be looked through: who
	// migrates has chosen the hour.
	anySize = "9223372036854775807"
)

// outbox makes our tables, and the partitions of an outbox that has some.
func (a *applier) outbox(ctx context.Context) error {
	inParts, err := a.inParts(ctx)
	if err != nil {
		return err
	}
	if !inParts {
		return a.schema(ctx, outboxSet)
	}
	if err := a.schema(ctx, outboxSet.partitioned()); err != nil {
		return err
	}
	if err := a.schema(ctx, partsSet); err != nil {
		return err
	}
	return a.partitions(ctx)
}

// inParts says whether the outbox is one whose partitions are ours to make.
func (a *applier) inParts(ctx context.Context) (bool, error) {
	var kind, key string
	var before bool
	err := a.conn.QueryRow(ctx, `SELECT coalesce((SELECT relkind::text FROM pg_class WHERE relnamespace = n.oid AND relname = 'outbox'), ''),
		coalesce((SELECT pg_get_partkeydef(oid) FROM pg_class WHERE relnamespace = n.oid AND relname = 'outbox'), ''),
		EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid AND relname = $2)
		FROM pg_namespace n WHERE nspname = $1`, a.cfg.Schema, partsSet.version).Scan(&kind, &key, &before)
	outbox := Table{a.cfg.Schema, "outbox"}
	switch {
	case errors.Is(err, pgx.ErrNoRows): // no schema yet
		return a.cfg.Partitioned, nil
	case err != nil:
		return false, fmt.Errorf("look for table %s: %w", outbox, err)
	case kind == "":
		return a.cfg.Partitioned || before, nil
	case !a.cfg.Partitioned:
		return kind == "p" && before, nil
	case kind != "p":
		return false, &PrereqError{
			Object: "table " + outbox.String(),
			Problem: "it is there and is not partitioned, and PostgreSQL cannot make it so; nothing was changed. " +
				"A second outbox beside it can be: let the relay read both (--tables), let the services write to the new one, and drop the old one when it is empty (docs/retention.md)",
			Fix: "walrelay migrate --partitioned --schema " + a.cfg.Schema + "_parts, with the other settings as now; or, where nothing was ever written, DROP TABLE " + outbox.String() + "; and migrate again",
		}
	case key != "RANGE (created_at)":
		return false, fmt.Errorf("table %s is partitioned by %s, and only partitions by RANGE (created_at) can be made and dropped; migrate without --partitioned leaves it as it is", outbox, key)
	}
	return true, nil
}

// setPartitioning is the statement that keeps the settings.
func (c Config) setPartitioning() string {
	interval, ahead := c.PartitionInterval, c.PartitionsAhead
	var changed []string
	if interval == 0 {
		interval = defaultInterval
	} else {
		changed = append(changed, "every = excluded.every")
	}
	if ahead == 0 {
		ahead = defaultAhead
	} else {
		changed = append(changed, "ahead = excluded.ahead")
	}
	s := "INSERT INTO " + quote(c.Schema) + ".partitioning (every, ahead) VALUES (interval '" +
		strconv.FormatInt(int64(interval/time.Second), 10) + " seconds', " + strconv.Itoa(ahead) + ") ON CONFLICT (one) DO "
	if len(changed) == 0 {
		return s + "NOTHING;"
	}
	return s + "UPDATE SET " + strings.Join(changed, ", ") + ";"
}

// partitions makes those that are lacking, each in a transaction of its own: no
// lock is held for longer than one takes.
func (a *applier) partitions(ctx context.Context) error {
	outbox := Table{a.cfg.Schema, "outbox"}
	object := "partitions of table " + outbox.String()
	fix := "-- walrelay migrate --partitioned as the owner of table " + outbox.String()
	if _, err := a.conn.Exec(ctx, a.cfg.setPartitioning()); err != nil {
		return refused(err, object, a.user, fix)
	}
	made := 0
	deadline := time.Now().Add(a.cfg.LockTimeout)
	for {
		var name *string
		err := a.conn.QueryRow(ctx, "SELECT "+quote(a.cfg.Schema)+".make_partition("+anySize+")").Scan(&name)
		switch {
		case sqlState(err) == lockNotAvailable && time.Now().Before(deadline):
			continue // each try waits for a moment only, so that nobody waits for long behind it
		case err != nil:
			return refused(err, object, a.user, fix)
		case name == nil:
			if made > 0 {
				a.report(Step{Object: object, Did: Created, Detail: strconv.Itoa(made)})
			} else {
				a.report(Step{Object: object, Did: Found})
			}
			return nil
		}
		made++
	}
}
