package walrelay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// lookAtSchema looks at walrelay's own tables and what they hold, if they are there.
func (d *databaseDoctor) lookAtSchema(ctx context.Context) (there bool) {
	const name = "schema"
	others, err := checkSchema(ctx, d.conn, d.cfg.Schema)
	if !d.judge(name, d.cfg.Schema, err, "the relay remembers there what it delivered, refused and found missing") {
		return false
	}
	if others = d.wanted(others); len(others) > 0 {
		d.warn("schema, the rest", strings.Join(others, ", ")+" missing", "they are part of walrelay's schema: queries get slow, or an event could be changed", "walrelay migrate")
	}
	if !d.judge("rights on the schema", "enough", witness.CheckRights(ctx, d.conn, d.cfg.Schema), "the relay reads and writes its own tables") {
		return true
	}
	gaps, err := witness.OpenGaps(ctx, d.conn, d.cfg.Schema, d.cfg.Source)
	switch {
	case err != nil:
		d.unknown("open gaps", plain(err))
	case len(gaps) > 0:
		g := &gaps[0]
		halt := openGap(g, fmt.Sprintf("%d events", g.Events), "")
		d.warn("open gaps", fmt.Sprint(len(gaps)), halt.Object+" "+halt.Problem, "start walrelay run, which heals what it may; or "+halt.Fix)
	default:
		d.ok("open gaps", "none", "events that may be in no stream")
	}
	d.lookAtLetters(ctx)
	return true
}

// wanted leaves out what only the outbox that migrate makes needs, where the
// events come from other tables.
func (d *databaseDoctor) wanted(lacks []string) []string {
	if slices.ContainsFunc(d.cfg.Tables, func(t Table) bool { return t.Schema == d.cfg.Schema && t.Name == outboxTable }) {
		return lacks
	}
	return slices.DeleteFunc(lacks, func(s string) bool { return strings.Contains(s, "outbox") })
}

func (d *databaseDoctor) lookAtLetters(ctx context.Context) {
	letters, err := deadletter.Open(ctx, d.conn, d.cfg.Schema, d.cfg.Source)
	if err != nil {
		d.unknown("dead letters", plain(err))
		return
	}
	total := 0
	for _, n := range letters {
		total += n
	}
	if total == 0 {
		d.ok("dead letters", "none open", "events that could not be delivered")
		return
	}
	d.warn("dead letters", fmt.Sprintf("%d open", total), "these events could not be delivered and wait for somebody", "walrelay deadletters list")
}

// lookAtTable looks at one outbox table, if it is there, and its place in the
// publication.
func (d *databaseDoctor) lookAtTable(ctx context.Context, t Table) (there bool) {
	full := pgx.Identifier{t.Schema, t.Name}.Sanitize()
	name := "table " + t.Schema + "." + t.Name
	p, err := checkTable(ctx, d.conn, d.cfg, t)
	if _, misfit := errors.AsType[*slot.MisfitError](err); err != nil && !misfit {
		d.unknown(name, plain(err))
		return false
	}
	if !d.judge(name, describeTable(p), err, "PostgreSQL sends the inserts that the publication covers, and no others") && !p.TableExists {
		return false
	}
	if err := p.CheckKey(d.cfg.Publication, t.Schema, t.Name); err != nil {
		d.refuse(VerdictWarn, name+", deletes", "refused by PostgreSQL", err)
	}
	columns, err := checkColumns(ctx, d.conn, d.cfg, d.router, t)
	if d.judge(name+", columns", "mapped", err, "only mapped columns are read, and each must be there") {
		d.lookAtColumns(name, full, router.Columns(t.Columns).Effective(), columns)
	}
	d.lookAtRows(ctx, name, full, t)
	return true
}

func describeTable(p slot.Publication) string {
	if !p.TableExists {
		return "not there"
	}
	kind := map[string]string{"r": "plain table", "p": "partitioned table", "f": "foreign table", "v": "view", "m": "materialized view"}[p.Kind]
	if kind == "" {
		kind = "relation of kind " + p.Kind
	}
	if p.Unlogged {
		kind = "unlogged " + kind
	}
	if p.Kind == "p" && p.ViaRoot {
		kind += ", published under its own name"
	} else if p.Kind == "p" {
		kind += ", published under its partitions' names"
	}
	var published []string
	for _, action := range []struct {
		name string
		yes  bool
	}{{"insert", p.Insert}, {"update", p.Update}, {"delete", p.Delete}, {"truncate", p.Truncate}} {
		if action.yes {
			published = append(published, action.name)
		}
	}
	switch {
	case !p.Covers:
		return kind + ", not published"
	case p.ColumnList != nil:
		return kind + ", published: " + strings.Join(published, ", ") + " of columns " + strings.Join(p.ColumnList, ", ")
	}
	return kind + ", published: " + strings.Join(published, ", ")
}

// lookAtColumns says what is weaker with the columns that there are.
func (d *databaseDoctor) lookAtColumns(name, full string, cols router.Columns, have []slot.Column) {
	find := func(column string) *slot.Column {
		if i := slices.IndexFunc(have, func(c slot.Column) bool { return c.Name == column }); i >= 0 && column != "" {
			return &have[i]
		}
		return nil
	}
	oneOf := func(c *slot.Column, types ...string) bool {
		return c == nil || slices.ContainsFunc(types, func(t string) bool { return strings.HasPrefix(c.Type, t) })
	}
	if c := find(cols.ID); c != nil && !c.NotNull {
		d.warn(name+", id", "may be null", "a row without an id becomes a dead letter", "ALTER TABLE "+full+" ALTER COLUMN "+pgx.Identifier{c.Name}.Sanitize()+" SET NOT NULL; -- as its owner")
	}
	if c := find(cols.Headers); !oneOf(c, "json", "text", "character varying") {
		d.warn(name+", headers", c.Type, "headers are read as a JSON object; a row whose text is none becomes a dead letter", "map a column of type jsonb, or none")
	}
	created := find(cols.CreatedAt)
	if !oneOf(created, "timestamp with time zone", "timestamp(") || created != nil && strings.HasSuffix(created.Type, "without time zone") {
		d.warn(name+", created_at", created.Type, "a time without its zone cannot be compared with that of a gap", "map a column of type timestamptz, or none")
	}
	xid, seq := find(cols.Xid), find(cols.Seq)
	if xid != nil && xid.Type != "xid8" {
		d.warn(name+", xid", xid.Type, "only an xid8 column tells which snapshots see a row", "map a column of type xid8, or none")
		return
	}
	if xid == nil {
		why := "which rows a gap holds, and which may be deleted, is judged by created_at and a margin, so some are looked at again"
		if created == nil {
			why = "without xid and created_at nothing tells which rows a gap holds and which may be deleted: they are neither healed nor cleaned up"
		}
		d.warn(name+", xid", "none", why, "ALTER TABLE "+full+" ADD COLUMN xid xid8 DEFAULT pg_current_xact_id(); -- as its owner, and map it as columns.xid")
	}
	if seq == nil {
		d.warn(name+", seq", "none", "events that are read from the table (backfill, healing, replay) have no order of their own within one moment",
			"ALTER TABLE "+full+" ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY; -- as its owner, and map it as columns.seq")
	}
}

// lookAtDeletion says whether rows that are old enough can be deleted.
func (d *databaseDoctor) lookAtDeletion(ctx context.Context) {
	const name = "rights to delete old rows"
	if d.cfg.Retention < 0 {
		return
	}
	lacks, fix, err := d.cfg.cleaner(d.conn).Lacks(ctx)
	switch {
	case err != nil:
		d.unknown(name, plain(err))
	case len(lacks) > 0:
		d.warn(name, "not granted", "role "+pgx.Identifier{d.server.User}.Sanitize()+" lacks "+strings.Join(lacks, ", ")+
			": what is older than the retention stays (to lock a row takes UPDATE of some column; none is updated)", fix+" -- as the owner of the tables; or retention: off")
	default:
		d.ok(name, "granted", "rows that are stored and older than the retention are deleted")
	}
}

// manyRows is up to where rows are counted.
const manyRows = 1_000_000

// lookAtRows says what is not sent on a first start, and whether the table can
// be read.
func (d *databaseDoctor) lookAtRows(ctx context.Context, name, full string, t Table) {
	var rows int64
	err := d.conn.QueryRow(ctx, `SELECT count(*) FROM (SELECT FROM `+full+` LIMIT $1) r`, int64(1)).Scan(&rows)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" {
		d.warn(name+", SELECT", "not granted", "the relay reads the slot without it, but rows of the table only with it: to heal a gap, to backfill, to replay",
			"GRANT USAGE ON SCHEMA "+pgx.Identifier{t.Schema}.Sanitize()+" TO "+pgx.Identifier{d.server.User}.Sanitize()+"; GRANT SELECT ON "+full+
				" TO "+pgx.Identifier{d.server.User}.Sanitize()+"; -- as the table's owner")
		return
	}
	info, err2 := slot.Inspect(ctx, d.conn, d.cfg.Slot)
	if err = errors.Join(err, err2); err != nil {
		d.unknown(name+", rows", plain(err))
		return
	}
	if info.Exists || rows == 0 {
		return
	}
	if err := d.conn.QueryRow(ctx, `SELECT count(*) FROM (SELECT FROM `+full+` LIMIT $1) r`, int64(manyRows)).Scan(&rows); err != nil {
		d.unknown(name+", rows", plain(err))
		return
	}
	count := fmt.Sprint(rows)
	if rows == manyRows {
		count += " or more"
	}
	d.warn(name+", rows", count, "they are older than the slot, which does not exist yet, so they will not be sent", "walrelay run --backfill, if they are to be sent")
}
