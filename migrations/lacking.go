package migrations

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A Lack is what of the outbox side is not there.
type Lack struct {
	// Tables are what the relay cannot do without: tables of its own, columns
	// of them, versions that were not applied.
	Tables []string
	// Others are indexes, functions, triggers, the outbox (which may be another
	// table), and the record of versions.
	Others []string
}

// Lacking compares a schema with what Apply would make in it. It reads the
// catalogue, which every role may, and changes nothing.
func Lacking(ctx context.Context, conn *pgx.Conn, schema string) (Lack, error) {
	wanted, err := outboxSet.objects()
	if err != nil {
		return Lack{}, err
	}
	columns, err := outboxSet.columns()
	if err != nil {
		return Lack{}, err
	}
	rows, err := conn.Query(ctx, `WITH s AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1)
		SELECT CASE WHEN relkind IN ('i', 'I') THEN 'index' ELSE 'table' END, relname::text, (SELECT coalesce(array_agg(attname::text), '{}')
			FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
		FROM pg_catalog.pg_class c, s WHERE relnamespace = s.oid AND relkind IN ('r', 'p', 'i', 'I')
		UNION ALL SELECT 'function', proname, '{}' FROM pg_catalog.pg_proc, s WHERE pronamespace = s.oid
		UNION ALL SELECT 'trigger', tgname, '{}' FROM pg_catalog.pg_trigger JOIN pg_catalog.pg_class c ON c.oid = tgrelid, s
		WHERE relnamespace = s.oid AND NOT tgisinternal`, schema)
	if err != nil {
		return Lack{}, fmt.Errorf("list what schema %q holds: %w", schema, err)
	}
	have := map[object][]string{}
	var o object
	var names []string
	_, err = pgx.ForEachRow(rows, []any{&o.kind, &o.name, &names}, func() error {
		have[o] = slices.Clone(names)
		return nil
	})
	if err != nil {
		return Lack{}, fmt.Errorf("list what schema %q holds: %w", schema, err)
	}
	var lack Lack
	for _, want := range wanted {
		there, ok := have[want]
		switch {
		case !ok && want.kind == "table" && !optional(want.name):
			lack.Tables = append(lack.Tables, "table "+want.name)
		case !ok:
			lack.Others = append(lack.Others, want.kind+" "+want.name)
		case want.kind == "table" && !optional(want.name):
			for _, c := range columns[want.name] {
				if !slices.Contains(there, c) {
					lack.Tables = append(lack.Tables, "column "+c+" of table "+want.name)
				}
			}
		}
	}
	if _, recorded := have[object{kind: "table", name: outboxSet.version}]; recorded {
		err = pending(ctx, conn, schema, &lack)
	}
	return lack, err
}

func optional(table string) bool { return table == "outbox" || table == outboxSet.version }

// pending adds the versions that were not applied. A role that may not read the
// record learns nothing, and is none the worse for it: the columns tell.
func pending(ctx context.Context, conn *pgx.Conn, schema string, lack *Lack) error {
	list, err := outboxSet.files(schema)
	if err != nil {
		return err
	}
	rows, _ := conn.Query(ctx, "SELECT version FROM "+quote(schema)+"."+outboxSet.version) // CollectRows gives the error
	applied, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	switch {
	case sqlState(err) == insufficientPrivilege:
		return nil
	case err != nil:
		return fmt.Errorf("read the versions of schema %q: %w", schema, err)
	}
	for _, f := range list {
		if !slices.Contains(applied, f.version) {
			lack.Tables = append(lack.Tables, "migration "+f.name)
		}
	}
	return nil
}
