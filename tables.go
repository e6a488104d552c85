package walrelay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
)

// checkTables sees that the publication covers each outbox table. It says
// whether partitions come under their own names.
func checkTables(ctx context.Context, q slot.Querier, c *Config) (leaves bool, err error) {
	for _, t := range c.Tables {
		p, err := checkTable(ctx, q, c, t)
		if err != nil {
			return false, err
		}
		leaves = leaves || p.Kind == "p" && !p.ViaRoot
	}
	return leaves, nil
}

func checkTable(ctx context.Context, q slot.Querier, c *Config, t Table) (slot.Publication, error) {
	p, err := slot.InspectPublication(ctx, q, c.Publication, t.Schema, t.Name)
	if err != nil {
		return p, err
	}
	if err := p.Check(c.Publication, t.Schema, t.Name); err != nil {
		return p, nearestTable(ctx, q, t, p, err)
	}
	return p, nil
}

// nearestTable adds the name that differs in case alone to the report of a
// table that does not exist.
func nearestTable(ctx context.Context, q slot.Querier, t Table, p slot.Publication, err error) error {
	misfit, ok := err.(*slot.MisfitError) //nolint:errorlint // as Check gives it
	if !ok || !p.Exists || p.TableExists {
		return err
	}
	var schema, name string
	if q.QueryRow(ctx, `SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p') AND lower(c.relname) = lower($2) ORDER BY lower(n.nspname) <> lower($1), n.nspname, c.relname LIMIT 1`,
		t.Schema, t.Name).Scan(&schema, &name) == nil {
		misfit.Problem += "; there is a table " + pgx.Identifier{schema, name}.Sanitize()
	}
	return misfit
}

// mapPartitions tells the router which partitions belong to which outbox
// table, where the publication sends them under their own names.
func mapPartitions(ctx context.Context, q slot.Querier, c *Config, to *router.Router) error {
	for _, t := range c.Tables {
		rows, err := q.Query(ctx, `SELECT n.nspname, c.relname FROM pg_partition_tree(to_regclass(format('%I.%I', $1::text, $2::text))) l
			JOIN pg_class c ON c.oid = l.relid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE l.parentrelid IS NOT NULL`, t.Schema, t.Name)
		if err != nil {
			return fmt.Errorf("look up the partitions of %s.%s: %w", t.Schema, t.Name, err)
		}
		names, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (n [2]string, err error) {
			return n, row.Scan(&n[0], &n[1])
		})
		if err != nil {
			return fmt.Errorf("look up the partitions of %s.%s: %w", t.Schema, t.Name, err)
		}
		for _, n := range names {
			if err := to.SetPartition(n[0], n[1], t.Schema, t.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// adopt finds out whether a relation that the router does not know is a
// partition that was made after the session's start, and says whether the row
// is to be routed again. A partition that is gone by now cannot be told from
// another table: then delivery stops rather than that an event is lost.
func (r *reader) adopt(ctx context.Context) (again bool, err error) {
	s, rel := r.s, r.row.Relation
	if !s.leaves || r.strangers[rel.Generation] {
		return false, nil
	}
	var root, name *string
	var own bool
	err = s.sql.do(ctx, func(ctx context.Context, q *pgx.Conn) error {
		return q.QueryRow(ctx, `SELECT n.nspname, c.relname, EXISTS (SELECT FROM pg_publication_tables p
				WHERE p.pubname = $3 AND p.schemaname = $1 AND p.tablename = $2)
			FROM (SELECT pg_partition_root(to_regclass(format('%I.%I', $1::text, $2::text))) AS oid) r
			LEFT JOIN pg_class c ON c.oid = r.oid LEFT JOIN pg_namespace n ON n.oid = c.relnamespace`,
			rel.Schema, rel.Name, s.cfg.Publication).Scan(&root, &name, &own)
	})
	if err != nil {
		return false, fmt.Errorf("look up what table %s.%s belongs to: %w", rel.Schema, rel.Name, err)
	}
	if root != nil {
		for _, t := range s.cfg.Tables {
			if t.Schema == *root && t.Name == *name {
				return true, s.router.SetPartition(rel.Schema, rel.Name, t.Schema, t.Name)
			}
		}
	}
	if root == nil && !own {
		if t, like := looksLike(s.cfg, rel); like {
			return false, &HaltError{
				Object:  "table " + pgx.Identifier{rel.Schema, rel.Name}.Sanitize(),
				Problem: fmt.Sprintf("is not there any more, or is no partition any more, and has the columns of outbox table %s.%s: its rows may be events", t.Schema, t.Name),
				Fix: fmt.Sprintf("list it under tables with a route of its own (skip: true if its rows are no events); to rule this out, let the owner run ALTER PUBLICATION %s SET (publish_via_partition_root = true)",
					pgx.Identifier{s.cfg.Publication}.Sanitize()),
			}
		}
	}
	if r.strangers == nil || len(r.strangers) > 1000 {
		r.strangers = map[uint64]bool{}
	}
	r.strangers[rel.Generation] = true
	return false, nil
}

// looksLike says whether a relation has every column that an outbox table maps.
func looksLike(c *Config, rel *decode.Relation) (Table, bool) {
	for _, t := range c.Tables {
		cols := router.Columns(t.Columns).Effective()
		all := true
		for _, want := range []string{cols.ID, cols.AggregateType, cols.AggregateID, cols.EventType, cols.Payload} {
			found := false
			for i := range rel.Columns {
				found = found || rel.Columns[i].Name == want
			}
			all = all && found
		}
		if all {
			return t, true
		}
	}
	return Table{}, false
}
