package slot

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Publication is what PostgreSQL says of a publication and one table of it.
type Publication struct {
	Exists                           bool
	Insert, Update, Delete, Truncate bool
	ViaRoot, AllTables               bool
	// Covers says whether the table's inserts are published, by whatever
	// route: by name, schema, all tables, or through its partitions.
	Covers bool
	// LeavesOnly says that the table is partitioned and only some of its
	// partitions are named: those made later are not published.
	LeavesOnly bool
	// RowFilter is the table's WHERE clause in the publication, which keeps
	// rows out; empty for none. ColumnList are the columns that are
	// published; nil for all.
	RowFilter  string
	ColumnList []string
	// TableExists says whether there is such a table, Kind what it is: r for
	// a plain table, p for a partitioned one, or another letter of
	// pg_class.relkind. Unlogged tables write no WAL.
	TableExists, Unlogged bool
	Kind                  string
	// Key says whether the table has a replica identity that updates and
	// deletes can be published with.
	Key bool
}

const publicationSQL = `WITH t AS (
	SELECT c.oid, c.relkind::text AS kind, c.relnamespace, c.relpersistence = 'u' AS unlogged,
		c.relreplident = 'f' OR (c.relreplident IN ('d', 'i') AND EXISTS (SELECT FROM pg_index i
			WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)) AS key
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $2 AND c.relname = $3
), family AS (SELECT oid FROM t UNION SELECT relid FROM t, pg_partition_ancestors(t.oid)
), direct AS (
	SELECT r.prqual, r.prattrs, r.prrelid FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
	WHERE p.pubname = $1 AND r.prrelid IN (SELECT oid FROM family)
), leaf AS (
	SELECT EXISTS (SELECT FROM t, pg_partition_tree(t.oid) l JOIN pg_class c ON c.oid = l.relid JOIN pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_publication_tables pt ON pt.pubname = $1 AND pt.schemaname = n.nspname AND pt.tablename = c.relname
		WHERE l.relid <> t.oid) AS covered
)
SELECT p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, p.puballtables,
	EXISTS (SELECT FROM t), coalesce((SELECT kind FROM t), ''), coalesce((SELECT unlogged FROM t), false), coalesce((SELECT key FROM t), false),
	d.named, leaf.covered,
	coalesce((SELECT pg_get_expr(prqual, prrelid) FROM direct WHERE prqual IS NOT NULL LIMIT 1), ''),
	(SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM direct, pg_attribute a
		WHERE a.attrelid = direct.prrelid AND a.attnum = ANY (direct.prattrs))
FROM pg_publication p CROSS JOIN leaf CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM t) AND (p.puballtables OR EXISTS (SELECT FROM direct) OR EXISTS (
		SELECT FROM pg_publication_namespace pn JOIN pg_class c ON c.relnamespace = pn.pnnspid
		WHERE pn.pnpubid = p.oid AND c.oid IN (SELECT oid FROM family))) AS named) d
WHERE p.pubname = $1`

// InspectPublication asks whether a publication covers a table.
func InspectPublication(ctx context.Context, q Querier, name, schema, table string) (Publication, error) {
	p := Publication{Exists: true}
	var named, leaf bool
	err := q.QueryRow(ctx, publicationSQL, name, schema, table).Scan(&p.Insert, &p.Update, &p.Delete, &p.Truncate,
		&p.ViaRoot, &p.AllTables, &p.TableExists, &p.Kind, &p.Unlogged, &p.Key, &named, &leaf, &p.RowFilter, &p.ColumnList)
	if errors.Is(err, pgx.ErrNoRows) {
		return Publication{}, nil
	}
	if err != nil {
		return Publication{}, fmt.Errorf("look at publication %q: %w", name, err)
	}
	p.Covers, p.LeavesOnly = named || leaf, leaf && !named
	return p, nil
}

const publicationVersionSQL = `WITH p AS (SELECT oid, xmin FROM pg_publication WHERE pubname = $1)
SELECT coalesce(md5(string_agg(part, ' ' ORDER BY part)), '') FROM (
	SELECT format('publication %s %s', oid, xmin) FROM p
	UNION ALL SELECT format('table %s %s', r.oid, r.xmin) FROM pg_publication_rel r JOIN p ON r.prpubid = p.oid
	UNION ALL SELECT format('schema %s %s', n.oid, n.xmin) FROM pg_publication_namespace n JOIN p ON n.pnpubid = p.oid) AS parts (part)`

// PublicationVersion gives a text that is another one after every change of a
// publication or of what it covers, also after one that was taken back. It is
// empty where there is no such publication.
func PublicationVersion(ctx context.Context, q Querier, name string) (version string, err error) {
	if err := q.QueryRow(ctx, publicationVersionSQL, name).Scan(&version); err != nil {
		return "", fmt.Errorf("look whether publication %q was changed: %w", name, err)
	}
	return version, nil
}

// Check says why the publication cannot serve; nil when it can.
func (p Publication) Check(name, schema, table string) error {
	object := "publication " + strconv.Quote(name)
	full := pgx.Identifier{schema, table}.Sanitize()
	quoted := pgx.Identifier{name}.Sanitize()
	switch {
	case !p.Exists:
		return &MisfitError{
			Object: object, Problem: "does not exist",
			Fix: "CREATE PUBLICATION " + quoted + " FOR TABLE " + full + " WITH (publish = 'insert', publish_via_partition_root = true); " +
				"-- as the owner of the table, or walrelay migrate; it must be there before the slot is made",
		}
	case !p.TableExists:
		return &MisfitError{Object: "table " + full, Problem: "does not exist", Fix: "run walrelay migrate, or name the right table"}
	case p.Kind != "r" && p.Kind != "p":
		return &MisfitError{Object: full, Problem: "is no table, or a foreign one, whose inserts are not in the write-ahead log", Fix: "name a plain or a partitioned table"}
	case p.Unlogged:
		return &MisfitError{Object: "table " + full, Problem: "is unlogged, so its inserts are not in the write-ahead log", Fix: "ALTER TABLE " + full + " SET LOGGED; -- as its owner"}
	case !p.Covers:
		return &MisfitError{
			Object: object, Problem: "does not cover table " + full,
			Fix: "ALTER PUBLICATION " + quoted + " ADD TABLE " + full + asOwner,
		}
	case p.LeavesOnly:
		return &MisfitError{
			Object: object, Problem: "covers partitions of table " + full + " but not the table itself, so partitions made later would be missed",
			Fix: "ALTER PUBLICATION " + quoted + " ADD TABLE " + full + asOwner,
		}
	case p.RowFilter != "":
		return &MisfitError{
			Object: object, Problem: "lets pass only those rows of table " + full + " for which " + p.RowFilter + ", so the others would never be events",
			Fix: "ALTER PUBLICATION " + quoted + " DROP TABLE " + full + "; ALTER PUBLICATION " + quoted + " ADD TABLE " + full + asOwner +
				"; use a route with skip: true for events that are not to be published",
		}
	case !p.Insert:
		return &MisfitError{
			Object: object, Problem: "does not publish inserts",
			Fix: "ALTER PUBLICATION " + quoted + " SET (publish = 'insert')" + asOwner,
		}
	}
	return nil
}

const asOwner = "; -- as the owner of publication and table"

// CheckKey says that the publication makes the application's own updates and
// deletes of the table fail. A relay needs neither.
func (p Publication) CheckKey(name, schema, table string) error {
	if p.Key || !p.Covers || !p.Update && !p.Delete {
		return nil
	}
	full := pgx.Identifier{schema, table}.Sanitize()
	return &MisfitError{
		Object:  "publication " + strconv.Quote(name),
		Problem: "publishes updates or deletes of table " + full + ", which has no key, so PostgreSQL refuses the updates and deletes themselves",
		Fix:     "ALTER PUBLICATION " + pgx.Identifier{name}.Sanitize() + " SET (publish = 'insert')" + asOwner,
	}
}

const youngerSQL = `WITH s AS (SELECT age(catalog_xmin) AS age FROM pg_replication_slots WHERE slot_name = $2 AND catalog_xmin IS NOT NULL),
	p AS (SELECT oid, xmin FROM pg_publication WHERE pubname = $1)
SELECT EXISTS (SELECT FROM s, (SELECT xmin FROM p
	UNION ALL SELECT r.xmin FROM pg_publication_rel r JOIN p ON p.oid = r.prpubid
	UNION ALL SELECT n.xmin FROM pg_publication_namespace n JOIN p ON p.oid = n.pnpubid) made WHERE age(made.xmin) <= s.age)`

// CheckAge says that the publication may have been made or changed after the
// point from which the slot still has to send: nothing in the catalogue tells
// for certain, since the slot's catalog_xmin is that of the oldest transaction
// which was open then. PostgreSQL decodes a change with the catalogue as it was
// at that change.
func CheckAge(ctx context.Context, q Querier, publication, name string) error {
	var younger bool
	if err := q.QueryRow(ctx, youngerSQL, publication, name).Scan(&younger); err != nil {
		return fmt.Errorf("compare the age of publication %q with that of slot %q: %w", publication, name, err)
	}
	if !younger {
		return nil
	}
	return &MisfitError{
		Object: "publication " + strconv.Quote(publication),
		Problem: "may have been made or changed after the point where slot " + strconv.Quote(name) +
			" stands: at rows that were inserted before that, PostgreSQL up to 17 stops (\"publication does not exist\"), and 18 passes over them without a word",
		Fix: "nothing, if no row was inserted before the publication was there: this ends when the slot has moved on; " +
			"else the rows between slot and publication are at risk: drop the slot, make it anew, and send those rows from the table",
	}
}
