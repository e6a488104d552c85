package retention

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/router"
)

// A plan is how rows of one table or partition are told that may go.
type plan struct {
	replace   *strings.Replacer
	args      []any
	retention int64 // in milliseconds
}

func (p *plan) text(s string) string {
	for range 3 { // what is filled in holds names to be filled in
		s = p.replace.Replace(s)
	}
	return s
}

// The newest proof of the epoch that the database is in now, while no gap is
// open. What a slot was declared not to send proves nothing of what it sends:
// only the relay that delivered proves.
const proofSQL = `(SELECT n.snapshot, n.at, e.at AS epoch_at FROM $SCHEMA.proven n
	JOIN $SCHEMA.epoch e ON e.source = n.source AND e.number = n.epoch
	WHERE n.id = (SELECT max(id) FROM $SCHEMA.proven WHERE source = $1 AND streams <> '{}')
		AND n.epoch = (SELECT max(number) FROM $SCHEMA.epoch WHERE source = $1)
		AND NOT EXISTS (SELECT FROM $SCHEMA.gap WHERE source = $1 AND ended_at IS NULL)) proof`

const (
	// The time of the transaction's start, unlike the clock's, lets the index
	// on created_at be used.
	horizonSQL = `(now() - $RETENTION::bigint * interval '1 millisecond')`
	agedSQL    = `t.$CREATED >= timestamptz '1970-01-01 00:00:00+00' AND t.$CREATED < $HORIZON`
	// As a count it is looked up row by row: joined, the order of the table could
	// be lost.
	lettersSQL = `(SELECT count(*) FROM $SCHEMA.dead_letter d WHERE d.event_id = t.$ID::text AND d."table" = $3 AND d.resolved_at IS NULL) = 0`
	// A row that came with a dump may carry another cluster's xid. One that
	// this cluster has not yet reached tells itself; it is judged by
	// created_at, where that is before the epoch.
	exactSQL = `(pg_visible_in_snapshot(t.$XID, proof.snapshot)
		OR t.$XID >= pg_snapshot_xmax(pg_current_snapshot()) AND t.$CREATED < proof.epoch_at AND t.$CREATED < proof.at - $MARGIN)`
	byClockSQL = `t.$CREATED < proof.at - $MARGIN`
)

// plans looks at the tables. Kept says of which of them no row may go, and why.
func (c *Cleaner) plans(ctx context.Context) (plans []plan, kept []string, err error) {
	schema := pgx.Identifier{c.Schema}.Sanitize()
	for _, t := range c.Tables {
		columns := t.Columns.Effective()
		have, err := c.columns(ctx, t)
		if err != nil {
			return nil, nil, err
		}
		if columns.CreatedAt == "" || !strings.HasPrefix(have[columns.CreatedAt], "timestamp") {
			kept = append(kept, "table "+shown(t)+" has no column that says when a row was written (created_at), so none of its rows is deleted")
			continue
		}
		seen := byClockSQL
		if columns.Xid != "" && have[columns.Xid] == "xid8" {
			seen = exactSQL
		}
		margin := "interval '1 hour'" // a transaction may have begun that long before it committed
		if have[columns.CreatedAt] != "timestamp with time zone" {
			margin = "interval '15 hours'" // nobody knows in which zone it was written
		}
		parts, err := c.parts(ctx, t)
		if err != nil {
			return nil, nil, err
		}
		whole, err := c.partitions(ctx, t)
		if err != nil {
			return nil, nil, err
		}
		for _, part := range parts {
			if slices.ContainsFunc(whole, func(p partition) bool { return slices.Equal(p.name, part) }) {
				continue // its rows go with it
			}
			c.places = append(c.places, part.Sanitize())
			plans = append(plans, plan{
				replace: strings.NewReplacer("$TABLE", part.Sanitize(), "$PROOF", proofSQL, "$OLD", agedSQL+" AND "+seen+" AND "+lettersSQL,
					"$AGED", agedSQL, "$HORIZON", horizonSQL, "$SCHEMA", schema,
					"$CREATED", quoted(columns.CreatedAt), "$XID", quoted(columns.Xid), "$ID", quoted(columns.ID), "$RETENTION", "$2", "$MARGIN", margin),
				args: []any{c.Source, c.Retention.Milliseconds(), t.Schema + "." + t.Name}, retention: c.Retention.Milliseconds(),
			})
		}
	}
	var gaps int64
	var proof bool
	err = c.Conn.QueryRow(ctx, strings.ReplaceAll(`SELECT (SELECT count(*) FROM $SCHEMA.gap WHERE source = $1 AND ended_at IS NULL), EXISTS (SELECT FROM `+proofSQL+`)`, "$SCHEMA", schema),
		c.Source).Scan(&gaps, &proof)
	switch {
	case err != nil:
		return nil, nil, err
	case gaps > 0:
		kept = append(kept, fmt.Sprintf("%d gaps are open: until they are healed or accepted no row is deleted", gaps))
	case !proof:
		kept = append(kept, "nothing is proven to be stored in the present epoch: a relay proves it within seconds of delivering; until then no row is deleted")
	}
	return plans, kept, nil
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// columns gives the types of a table's columns by name.
func (c *Cleaner) columns(ctx context.Context, t router.Table) (map[string]string, error) {
	rows, err := c.Conn.Query(ctx, `SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
		JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace
		WHERE nspname = $1 AND relname = $2 AND attnum > 0 AND NOT attisdropped`, t.Schema, t.Name)
	if err != nil {
		return nil, err
	}
	have := map[string]string{}
	var name, kind string
	_, err = pgx.ForEachRow(rows, []any{&name, &kind}, func() error {
		have[name] = kind
		return nil
	})
	return have, err
}

// parts gives the tables that hold the rows: the table itself, or its
// partitions. A place (ctid) means something in one of them only.
func (c *Cleaner) parts(ctx context.Context, t router.Table) ([]pgx.Identifier, error) {
	rows, err := c.Conn.Query(ctx, `SELECT n.nspname::text, c.relname::text FROM pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace
		CROSS JOIN LATERAL (SELECT relid FROM pg_partition_tree(r.oid) WHERE isleaf UNION SELECT r.oid WHERE r.relkind = 'r') l
		JOIN pg_class c ON c.oid = l.relid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE rn.nspname = $1 AND r.relname = $2 AND c.relkind = 'r' ORDER BY 1, 2`, t.Schema, t.Name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (pgx.Identifier, error) {
		part := make(pgx.Identifier, 2)
		return part, row.Scan(&part[0], &part[1])
	})
}
