package retention

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Lacks lists the rights that the role lacks for [Cleaner.Run], such as DELETE
// on "shop"."outbox", and gives the statements that grant them. To read the rows
// is a right of its own, which healing needs as well; it is not looked at.
func (c *Cleaner) Lacks(ctx context.Context) (lacks []string, fix string, err error) {
	user := pgx.Identifier{c.Conn.Config().User}.Sanitize()
	own := []pgx.Identifier{{c.Schema, "gap"}, {c.Schema, "job"}, {c.Schema, "proven"}}
	var grants []string
	look := func(table pgx.Identifier, right, query string) error {
		var has bool
		// A table that is not there is another check's.
		if err := c.Conn.QueryRow(ctx, "SELECT coalesce("+query+", true)", table.Sanitize()).Scan(&has); err != nil {
			return fmt.Errorf("ask for the rights on %s: %w", table.Sanitize(), err)
		}
		if !has {
			lacks = append(lacks, right+" on "+table.Sanitize())
			grants = append(grants, "GRANT "+right+" ON "+table.Sanitize()+" TO "+user+";")
		}
		return nil
	}
	const mayDelete = "has_table_privilege(to_regclass($1::text), 'DELETE')"
	// Any column will do, and none is ever updated.
	const mayLock = "has_any_column_privilege(to_regclass($1::text), 'UPDATE')"
	for _, table := range own {
		if err := look(table, "DELETE", mayDelete); err != nil {
			return nil, "", err
		}
	}
	for _, t := range c.Tables {
		parts, err := c.parts(ctx, t)
		var whole []partition
		if err == nil {
			whole, err = c.partitions(ctx, t)
		}
		if err != nil {
			return nil, "", fmt.Errorf("look at table %q.%q: %w", t.Schema, t.Name, err)
		}
		for _, part := range parts {
			if slices.ContainsFunc(whole, func(p partition) bool { return slices.Equal(p.name, part) }) {
				continue // it goes as a whole, by the rights of its owner
			}
			if err := look(part, "DELETE", mayDelete); err != nil {
				return nil, "", err
			}
			if err := look(part, "UPDATE", mayLock); err != nil {
				return nil, "", err
			}
		}
	}
	return lacks, strings.Join(grants, " "), nil
}
