package slot

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A Column is a column of a table.
type Column struct {
	Name    string
	Type    string // as PostgreSQL writes it, such as character varying(20)
	NotNull bool
}

// InspectColumns lists a table's columns in their order; none where there is no
// such table.
func InspectColumns(ctx context.Context, q Querier, schema, table string) ([]Column, error) {
	rows, err := q.Query(ctx, `SELECT a.attname::text, format_type(CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE a.atttypid END, a.atttypmod), a.attnotnull
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_type t ON t.oid = a.atttypid
		WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`, schema, table)
	if err != nil {
		return nil, fmt.Errorf("list the columns of table %s.%s: %w", schema, table, err)
	}
	columns, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Column, err error) {
		return c, row.Scan(&c.Name, &c.Type, &c.NotNull)
	})
	if err != nil {
		return nil, fmt.Errorf("list the columns of table %s.%s: %w", schema, table, err)
	}
	return columns, nil
}
