package witness

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// needs are the rights of a relay on our tables.
var needs = map[string][]string{
	"witness":     {"SELECT", "INSERT", "UPDATE"},
	"epoch":       {"SELECT", "INSERT"},
	"proven":      {"SELECT", "INSERT", "DELETE"},
	"job":         {"SELECT", "INSERT", "UPDATE"},
	"gap":         {"SELECT", "INSERT", "UPDATE"},
	"dead_letter": {"SELECT", "INSERT", "UPDATE"},
}

// A RightsError says what the role may not do with our tables.
type RightsError struct {
	Schema, User string
	Lacks        []string // such as UPDATE on witness
}

// Problem says what is missing.
func (e *RightsError) Problem() string {
	return "role " + quoted(e.User) + " lacks " + strings.Join(e.Lacks, ", ") + " in schema " + quoted(e.Schema)
}

// Fix is the statement that gives it.
func (e *RightsError) Fix() string {
	var tables []string
	for _, name := range []string{"witness", "epoch", "proven", "job", "gap", "dead_letter"} {
		tables = append(tables, table(e.Schema, name))
	}
	return "GRANT USAGE ON SCHEMA " + quoted(e.Schema) + " TO " + quoted(e.User) + "; GRANT SELECT, INSERT, UPDATE, DELETE ON " + strings.Join(tables, ", ") +
		" TO " + quoted(e.User) + "; -- as the owner of walrelay's tables"
}

// Error gives both.
func (e *RightsError) Error() string { return e.Problem() + ": " + e.Fix() }

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// CheckRights sees that the role may read and write our tables: nil, a
// [*RightsError], or a [*MissingError] where a table is not there.
func CheckRights(ctx context.Context, q Querier, schema string) error {
	rows, err := q.Query(ctx, `SELECT c.relname::text, current_user::text, has_schema_privilege(n.oid, 'USAGE'),
			array_remove(ARRAY[CASE WHEN NOT has_table_privilege(c.oid, 'SELECT') THEN 'SELECT' END,
				CASE WHEN NOT has_table_privilege(c.oid, 'INSERT') THEN 'INSERT' END, CASE WHEN NOT has_table_privilege(c.oid, 'UPDATE') THEN 'UPDATE' END,
				CASE WHEN NOT has_table_privilege(c.oid, 'DELETE') THEN 'DELETE' END], NULL)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') ORDER BY 1`, schema)
	if err != nil {
		return fmt.Errorf("ask for the rights in schema %q: %w", schema, err)
	}
	e := &RightsError{Schema: schema}
	var name string
	var usage bool
	var lacks []string
	seen, mayEnter := map[string]bool{}, true
	_, err = pgx.ForEachRow(rows, []any{&name, &e.User, &usage, &lacks}, func() error {
		seen[name] = true
		mayEnter = mayEnter && usage
		for _, right := range lacks {
			if slices.Contains(needs[name], right) {
				e.Lacks = append(e.Lacks, right+" on "+name)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ask for the rights in schema %q: %w", schema, err)
	}
	for _, name := range []string{"witness", "epoch", "proven", "job", "gap", "dead_letter"} {
		if !seen[name] {
			return &MissingError{Schema: schema, Err: fmt.Errorf("there is no table %s", table(schema, name))}
		}
	}
	if !mayEnter {
		e.Lacks = append([]string{"USAGE"}, e.Lacks...)
	}
	if len(e.Lacks) == 0 {
		return nil
	}
	return e
}

// An Entry is a source as its witness remembers it.
type Entry struct{ Source, Slot string }

// Sources lists the sources that have ever run in this schema.
func Sources(ctx context.Context, q Querier, schema string) ([]Entry, error) {
	rows, err := q.Query(ctx, `SELECT source, slot FROM `+table(schema, "witness")+` ORDER BY 1`)
	if err != nil {
		return nil, missing(schema, fmt.Errorf("list the sources: %w", err))
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) {
		return e, row.Scan(&e.Source, &e.Slot)
	})
	if err != nil {
		return nil, missing(schema, fmt.Errorf("list the sources: %w", err))
	}
	return list, nil
}
