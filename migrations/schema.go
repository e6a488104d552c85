package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// schema makes the schema and runs the set's files: those that are new, and all
// of them where something that they create is missing.
func (a *applier) schema(ctx context.Context, s set) error {
	if err := a.makeSchema(ctx); err != nil {
		return err
	}
	wanted, err := s.objects()
	if err != nil {
		return err
	}
	before, err := a.present(ctx)
	if err != nil {
		return err
	}
	verb := Completed
	if !before[object{kind: "table", name: s.version}] {
		verb = Created
		if _, err := a.conn.Exec(ctx, s.versionTable(a.cfg.Schema)); err != nil {
			return a.schemaRefused(ctx, s, err)
		}
	}
	version, err := a.upgrade(ctx, s)
	if err != nil {
		return a.schemaRefused(ctx, s, err)
	}
	after, err := a.present(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(wanted, func(o object) bool { return !after[o] }) {
		if err := a.complete(ctx, s); err != nil {
			return a.schemaRefused(ctx, s, err)
		}
	}
	if err := a.checkColumns(ctx, s); err != nil {
		return err
	}
	changed := false
	for _, o := range wanted {
		if !before[o] {
			changed = true
			a.report(Step{Object: o.kind + " " + a.cfg.Schema + "." + o.name, Did: verb})
		}
	}
	if !changed {
		a.report(Step{Object: "schema " + a.cfg.Schema, Did: Found, Detail: fmt.Sprintf("version %d of the %s side", version, s.folder)})
	}
	return nil
}

func (a *applier) makeSchema(ctx context.Context) error {
	var there bool
	err := a.conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", a.cfg.Schema).Scan(&there)
	if err != nil {
		return fmt.Errorf("look for schema %q: %w", a.cfg.Schema, err)
	}
	if there {
		return nil
	}
	if _, err := a.conn.Exec(ctx, createSchema(a.cfg.Schema)); err != nil {
		return refused(err, "schema "+a.cfg.Schema, a.user,
			"CREATE SCHEMA "+quote(a.cfg.Schema)+" AUTHORIZATION "+quote(a.user)+";")
	}
	a.report(Step{Object: "schema " + a.cfg.Schema, Did: Created})
	return nil
}

func createSchema(name string) string { return "CREATE SCHEMA IF NOT EXISTS " + quote(name) + ";\n" }

// present lists what the schema holds. The catalogue can be read by any role.
func (a *applier) present(ctx context.Context) (map[object]bool, error) {
	rows, err := a.conn.Query(ctx, `
		SELECT CASE WHEN relkind IN ('i', 'I') THEN 'index' ELSE 'table' END, relname::text
		FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'p', 'i', 'I')
		UNION ALL SELECT 'function', proname FROM pg_proc WHERE pronamespace = $1::regnamespace
		UNION ALL SELECT 'trigger', tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
		WHERE relnamespace = $1::regnamespace AND NOT tgisinternal`, quote(a.cfg.Schema))
	if err != nil {
		return nil, fmt.Errorf("list what schema %q holds: %w", a.cfg.Schema, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (object, error) {
		var o object
		return o, row.Scan(&o.kind, &o.name)
	})
	if err != nil {
		return nil, fmt.Errorf("list what schema %q holds: %w", a.cfg.Schema, err)
	}
	there := make(map[object]bool, len(list))
	for _, o := range list {
		there[o] = true
	}
	return there, nil
}

// upgrade runs the files that the version table does not record, each in a
// transaction with its record, and gives the version reached.
func (a *applier) upgrade(ctx context.Context, s set) (version int64, err error) {
	list, err := s.files(a.cfg.Schema)
	if err != nil {
		return 0, err
	}
	steps := make([]*goose.Migration, len(list))
	for i, f := range list {
		steps[i] = goose.NewGoMigration(f.version, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, f.sql)
			return err
		}}, nil)
	}
	db := stdlib.OpenDB(*a.connect, stdlib.OptionAfterConnect(a.pin))
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := goose.NewProvider(goose.DialectCustom, db, nil,
		goose.WithStore(store{set: s.version, schema: a.cfg.Schema}),
		goose.WithGoMigrations(steps...), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return 0, fmt.Errorf("prepare the migrations of the %s side: %w", s.folder, err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return 0, err
	}
	return provider.GetDBVersion(ctx)
}

// complete runs all files once more; what exists they leave alone.
func (a *applier) complete(ctx context.Context, s set) error {
	list, err := s.files(a.cfg.Schema)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, a.conn, func(tx pgx.Tx) error {
		for _, f := range list {
			if _, err := tx.Exec(ctx, f.sql); err != nil {
				return fmt.Errorf("migration %s: %w", f.name, err)
			}
		}
		return nil
	})
}

// checkColumns finds a table of that name that is not ours.
func (a *applier) checkColumns(ctx context.Context, s set) error {
	wanted, err := s.columns()
	if err != nil {
		return err
	}
	rows, err := a.conn.Query(ctx, `SELECT relname::text, array_agg(attname::text) FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
		WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped GROUP BY 1`, quote(a.cfg.Schema))
	if err != nil {
		return fmt.Errorf("read the columns in schema %q: %w", a.cfg.Schema, err)
	}
	var name string
	var have []string
	_, err = pgx.ForEachRow(rows, []any{&name, &have}, func() error {
		for _, c := range wanted[name] {
			if !slices.Contains(have, c) {
				return fmt.Errorf("table %s lacks column %q, so migrate did not make it; rename that table, or keep ours in another schema (--schema)",
					Table{a.cfg.Schema, name}, c)
			}
		}
		return nil
	})
	return err
}

// schemaRefused finds the statement that lets this role go on.
func (a *applier) schemaRefused(ctx context.Context, s set, cause error) error {
	object := "schema " + a.cfg.Schema
	if sqlState(cause) != insufficientPrivilege {
		return refused(cause, object, a.user, "")
	}
	var usage, create, super bool
	var owner string
	err := a.conn.QueryRow(ctx, `SELECT has_schema_privilege($1::regnamespace, 'USAGE'), has_schema_privilege($1::regnamespace, 'CREATE'),
		coalesce(rolname::text, ''), coalesce(rolsuper, false)
		FROM (SELECT) one LEFT JOIN (pg_class JOIN pg_roles ON pg_roles.oid = relowner) ON relnamespace = $1::regnamespace AND relname = $2`,
		quote(a.cfg.Schema), s.version).Scan(&usage, &create, &owner, &super)
	if err != nil {
		return errors.Join(cause, fmt.Errorf("ask for the rights on schema %q: %w", a.cfg.Schema, err))
	}
	var fix []string
	if super {
		fix = append(fix, "-- walrelay migrate as role "+quote(owner)+", a superuser, who owns our tables")
	} else {
		if !usage || !create {
			fix = append(fix, "GRANT USAGE, CREATE ON SCHEMA "+quote(a.cfg.Schema)+" TO "+quote(a.user)+";")
		}
		if owner != "" && owner != a.user {
			fix = append(fix, "GRANT "+quote(owner)+" TO "+quote(a.user)+"; -- the owner of our tables; or migrate as that role")
		}
	}
	return refused(cause, object, a.user, strings.Join(fix, "\n"))
}
