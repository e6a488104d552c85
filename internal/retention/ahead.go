package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walrelay/walrelay/internal/router"
)

// Ahead makes the partitions that are lacking before they are needed, each in a
// short transaction, and gives their names. Where a lock is in the way, the
// rest is left for the next time: a row that no partition takes goes into the
// default one.
func (c *Cleaner) Ahead(ctx context.Context) (made []string, err error) {
	for _, t := range c.Tables {
		ours, err := managed(ctx, c.Conn, t)
		if err != nil {
			return made, fmt.Errorf("look for the partitions of table %s: %w", shown(t), err)
		}
		for ours {
			name, err := c.make(ctx, t)
			if err != nil && !locked(err) {
				return made, c.explainParts(t, fmt.Errorf("make partitions of table %s ahead: %w", shown(t), err))
			}
			if name == "" {
				break
			}
			made = append(made, name)
		}
	}
	return made, nil
}

func (c *Cleaner) make(ctx context.Context, t router.Table) (name string, err error) {
	err = pgx.BeginFunc(ctx, c.Conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = '10s'`); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT coalesce(`+function(t, "make_partition")+`(), '')`).Scan(&name); err != nil || c.Fence == nil {
			return err
		}
		// Last, since the session writes to what this locks all the time.
		return c.Fence(ctx, tx)
	})
	if err != nil {
		return "", err
	}
	return name, nil
}

// explainParts names what helps where a right is missing.
func (c *Cleaner) explainParts(t router.Table, err error) error {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && refused.Code == "42501":
		return fmt.Errorf("%w; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %s TO %s; -- as the owner of table %s, to whom all its partitions have to belong",
			err, pgx.Identifier{t.Schema}.Sanitize(), pgx.Identifier{c.Conn.Config().User}.Sanitize(), shown(t))
	case ok && refused.Hint != "":
		return fmt.Errorf("%w; %s", err, refused.Hint)
	}
	return err
}

func shown(t router.Table) string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// Parts is what is to be said of the partitions of one outbox.
type Parts struct {
	Table router.Table
	// Until is up to when partitions are there without a hole, counted from
	// now; zero where the present one is missing.
	Until time.Time
	// Default is the default partition, empty without one, and DefaultBytes
	// its size.
	Default      string
	DefaultBytes int64
	// May says that the role can make and drop partitions, and Foreign which of
	// them do not belong to the one whose rights that takes, Owner.
	May     bool
	Owner   string
	Foreign []string
}

// Look gives the partitions of those tables whose partitions are ours.
func Look(ctx context.Context, conn *pgx.Conn, tables []router.Table) ([]Parts, error) {
	var list []Parts
	for _, t := range tables {
		if ours, err := managed(ctx, conn, t); err != nil || !ours {
			if err != nil {
				return nil, fmt.Errorf("look for the partitions of table %s: %w", shown(t), err)
			}
			continue
		}
		p := Parts{Table: t}
		var end pgtype.Timestamptz
		err := conn.QueryRow(ctx, `WITH RECURSIVE root AS (SELECT c.oid, c.relnamespace FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2),
			does AS (SELECT oid, proowner FROM pg_proc WHERE pronamespace = (SELECT relnamespace FROM root) AND proname IN ('make_partition', 'unproven_rows', 'hold_partition', 'drop_partition')),
			parts AS MATERIALIZED (SELECT * FROM `+function(t, "partitions")+`()),
			covers AS (SELECT upper FROM parts WHERE lower <= now() AND upper > now()
				UNION SELECT p.upper FROM parts p JOIN covers c ON p.lower = c.upper)
			SELECT coalesce((SELECT max(upper) FROM covers WHERE isfinite(upper)), '-infinity'),
				coalesce((SELECT format('%I.%I', n.nspname, c.relname) FROM pg_partitioned_table d JOIN pg_class c ON c.oid = d.partdefid JOIN pg_namespace n ON n.oid = c.relnamespace
					WHERE d.partrelid = (SELECT oid FROM root)), ''),
				coalesce((SELECT pg_relation_size(partdefid) FROM pg_partitioned_table WHERE partrelid = (SELECT oid FROM root) AND partdefid <> 0), 0),
				(SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM does),
				(SELECT min(proowner::regrole::text) FROM does),
				coalesce((SELECT array_agg(format('%I.%I', n.nspname, c.relname) ORDER BY c.relname) FROM pg_partition_tree((SELECT oid FROM root)) l JOIN pg_class c ON c.oid = l.relid
					JOIN pg_namespace n ON n.oid = c.relnamespace WHERE EXISTS (SELECT FROM does WHERE NOT pg_has_role(proowner, c.relowner, 'USAGE'))), '{}')`,
			t.Schema, t.Name).Scan(&end, &p.Default, &p.DefaultBytes, &p.May, &p.Owner, &p.Foreign)
		if err != nil {
			return nil, fmt.Errorf("look at the partitions of table %s: %w", shown(t), err)
		}
		if end.InfinityModifier == pgtype.Finite {
			p.Until = end.Time
		}
		list = append(list, p)
	}
	return list, nil
}
