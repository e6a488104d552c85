package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// publicationComment marks a publication as ours to complete.
const publicationComment = "walrelay: made by migrate"

const publicationOptions = "(publish = 'insert', publish_via_partition_root = true)"

// createPublication is insert-only: deletes then cost no decoding, and a table
// without a key keeps taking updates. Never FOR ALL TABLES: that takes a
// superuser and sends what nobody asked for.
func (c Config) createPublication() []string {
	names := make([]string, len(c.Tables))
	for i, t := range c.Tables {
		names[i] = t.String()
	}
	return []string{
		"CREATE PUBLICATION " + quote(c.Publication) + " FOR TABLE " + strings.Join(names, ", ") + " WITH " + publicationOptions + ";",
		"COMMENT ON PUBLICATION " + quote(c.Publication) + " IS " + literal(publicationComment) + ";",
	}
}

// A published is what the catalogue says of a publication.
type published struct {
	oid       uint32
	allTables bool
	publish   []string
	viaRoot   bool
	ours      bool
}

// publication creates, completes or checks the publication. Created says that
// it is younger than any slot that exists.
func (a *applier) publication(ctx context.Context) (created bool, err error) {
	tables := make([]uint32, len(a.cfg.Tables))
	for i, t := range a.cfg.Tables {
		if tables[i], err = a.findTable(ctx, t); err != nil {
			return false, err
		}
	}
	p, err := a.readPublication(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		statements := a.cfg.createPublication()
		err := pgx.BeginFunc(ctx, a.conn, func(tx pgx.Tx) error { return execAll(ctx, tx, statements) })
		if err != nil {
			return false, a.publicationRefused(err, statements)
		}
		a.report(Step{Object: a.publicationName(), Did: Created})
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", a.publicationName(), err)
	}
	statements, problems, err := a.lacking(ctx, p, tables)
	switch {
	case err != nil:
		return false, err
	case len(statements) == 0:
		a.report(Step{Object: a.publicationName(), Did: Found})
		return false, nil
	case !p.ours:
		return false, &PrereqError{
			Object:  a.publicationName(),
			Problem: strings.Join(problems, "; ") + ". migrate did not make it and leaves it as it is",
			Fix:     strings.Join(statements, "\n"),
		}
	}
	err = pgx.BeginFunc(ctx, a.conn, func(tx pgx.Tx) error { return execAll(ctx, tx, statements) })
	if err != nil {
		return false, a.publicationRefused(err, statements)
	}
	a.report(Step{Object: a.publicationName(), Did: Completed, Detail: strings.Join(problems, "; ")})
	return true, nil
}

func (a *applier) publicationName() string { return "publication " + quote(a.cfg.Publication) }

func (a *applier) publicationRefused(err error, statements []string) error {
	return refused(err, a.publicationName(), a.user, strings.Join(statements, "\n"))
}

func execAll(ctx context.Context, tx pgx.Tx, statements []string) error {
	for _, s := range statements {
		if _, err := tx.Exec(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) readPublication(ctx context.Context) (p published, err error) {
	err = a.conn.QueryRow(ctx, `SELECT oid, puballtables, pubviaroot, coalesce(obj_description(oid, 'pg_publication') = $2, false),
		array_remove(ARRAY[CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
			CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END], NULL)
		FROM pg_publication WHERE pubname = $1`, a.cfg.Publication, publicationComment).
		Scan(&p.oid, &p.allTables, &p.viaRoot, &p.ours, &p.publish)
	return p, err
}

// lacking gives what a publication must have and has not, in words and as the
// statements that give it.
func (a *applier) lacking(ctx context.Context, p published, tables []uint32) (statements, problems []string, err error) {
	alter := "ALTER PUBLICATION " + quote(a.cfg.Publication) + " "
	if len(p.publish) == 0 || p.publish[0] != "insert" {
		statements = append(statements, alter+"SET (publish = "+literal(strings.Join(append([]string{"insert"}, p.publish...), ", "))+");")
		problems = append(problems, "it does not publish inserts")
	}
	for i, t := range a.cfg.Tables {
		var covered, direct, filtered, listed, partitioned bool
		err := a.conn.QueryRow(ctx, `SELECT
			$3 OR pr.oid IS NOT NULL OR EXISTS (SELECT FROM pg_publication_namespace WHERE pnpubid = $1 AND pnnspid = c.relnamespace),
			pr.oid IS NOT NULL, pr.prqual IS NOT NULL, pr.prattrs IS NOT NULL, c.relkind = 'p'
			FROM pg_class c LEFT JOIN pg_publication_rel pr ON pr.prrelid = c.oid AND pr.prpubid = $1
			WHERE c.oid = $2`, p.oid, tables[i], p.allTables).Scan(&covered, &direct, &filtered, &listed, &partitioned)
		if err != nil {
			return nil, nil, fmt.Errorf("look for table %s in %s: %w", t, a.publicationName(), err)
		}
		switch {
		case !covered:
			statements = append(statements, alter+"ADD TABLE "+t.String()+";")
			problems = append(problems, "it does not cover table "+t.String())
		case direct && (filtered || listed && t == Table{a.cfg.Schema, "outbox"}):
			// Whoever set it meant it; but what it hides is lost.
			statements = append(statements, alter+"DROP TABLE "+t.String()+";", alter+"ADD TABLE "+t.String()+";")
			problems = append(problems, "it hides rows or columns of table "+t.String())
		}
		if partitioned && !p.viaRoot {
			statements = append(statements, alter+"SET (publish_via_partition_root = true);")
			problems = append(problems, "it publishes the partitions of table "+t.String()+" under their own names")
		}
	}
	return statements, problems, nil
}

// findTable gives a table's oid, or an error that names what was perhaps meant.
func (a *applier) findTable(ctx context.Context, t Table) (oid uint32, err error) {
	err = a.conn.QueryRow(ctx, `SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
		WHERE nspname = $1 AND relname = $2 AND relkind IN ('r', 'p')`, t.Schema, t.Name).Scan(&oid)
	if !errors.Is(err, pgx.ErrNoRows) {
		if err != nil {
			err = fmt.Errorf("look for table %s: %w", t, err)
		}
		return oid, err
	}
	var near Table
	err = a.conn.QueryRow(ctx, `SELECT nspname::text, relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
		WHERE lower(relname) = lower($2) AND relkind IN ('r', 'p')
		ORDER BY lower(nspname) = lower($1) DESC, nspname, relname LIMIT 1`, t.Schema, t.Name).Scan(&near.Schema, &near.Name)
	switch {
	case err == nil:
		return 0, fmt.Errorf("table %s does not exist in database %q; there is %s: names are taken as written, upper and lower case differ", t, a.database, near)
	case errors.Is(err, pgx.ErrNoRows):
		return 0, fmt.Errorf("table %s does not exist in database %q; create it, or name another with --table", t, a.database)
	default:
		return 0, fmt.Errorf("look for table %s: %w", t, err)
	}
}
