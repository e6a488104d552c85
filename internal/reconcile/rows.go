package reconcile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/router"
)

// A Row is one row of an outbox table. What it points to is valid until the
// next one is asked for.
type Row struct {
	// Row is what the router takes. It has neither a position nor the time of
	// the commit: the table knows neither.
	router.Row
	// Table is the OID of the table that holds the row (a partition, where
	// there are some) and TID its place in it: together they name this version
	// of the row as long as the snapshot is held.
	Table uint32
	TID   TID
	// Xid is the transaction that wrote the row, 0 where the table has no such
	// column.
	Xid uint64
	// Seq is the text of the column that orders rows; empty without one, and
	// where rows come unordered.
	Seq string
	// Proven says that [RowFilter.Proven] sees the row.
	Proven bool

	created []byte // text of the column that says when the event was written
}

// CreatedAt is when the event was written; ok is false where the table does not
// tell or the time is beyond what a clock shows (infinity). It is read anew each
// time: many who read rows do not ask.
func (r *Row) CreatedAt() (at time.Time, ok bool) { return parseTime(r.created) }

// A TID is the place of a row in its table.
type TID struct {
	Block  uint32
	Offset uint16
}

// String gives PostgreSQL's form, such as (0,1).
func (t TID) String() string { return fmt.Sprintf("(%d,%d)", t.Block, t.Offset) }

// A RowFilter says which rows of a table are read, and how. Its zero value
// reads all, in the order of the table's seq. Conditions are joined by and.
type RowFilter struct {
	// Since and Until bound created_at: at or after Since, before Until. On a
	// table without that column they are an error.
	Since, Until time.Time
	// IDs are ids as PostgreSQL prints them. Nil means any; empty means none.
	IDs []string
	// AggregateType and AggregateID bound the aggregate; empty means any.
	AggregateType, AggregateID string
	// SeenBy and NotSeenBy are snapshots, as pg_current_snapshot() gives them.
	// On a table without an xid column they are an error.
	SeenBy, NotSeenBy string
	// AfterSeq goes on behind a row: only those with a higher Seq.
	AfterSeq string
	// Table and TIDs name rows by their place, as earlier ones gave it within
	// the same snapshot.
	Table uint32
	TIDs  []TID
	// Proven is a snapshot of which Row.Proven tells. Empty means none; so it
	// does on a table without an xid column.
	Proven string
	// Unordered gives the rows as they come, which spares the server a sort.
	Unordered bool
	// Batch is how many rows are fetched at a time. Zero means 1000.
	Batch int
}

// Rows reads rows of an outbox table through a cursor of the server: memory is
// bounded by one row, however many there are. tx is busy until the loop ends;
// use another connection within it.
//
// The order is that of Columns.Seq, or else of created_at, or else of their
// place in the table. tx decides on the snapshot: it must be a transaction, and
// one of REPEATABLE READ where it matters that rows do not change under it. Its
// connection must have been opened with witness.PinSettings, else the bytes
// differ from those that the slot sends.
//
// A mapped column that is not there is a [*router.ColumnError].
func Rows(ctx context.Context, tx pgx.Tx, t router.Table, f RowFilter) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		s, err := describe(ctx, tx, t)
		if err == nil {
			var query string
			if query, err = s.query(f); err == nil {
				err = s.fetch(ctx, tx, query, f.Batch, yield)
			}
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(nil, fmt.Errorf("read table %s: %w", s.relation, err))
		}
	}
}

// errEnough says that the caller wants no more rows.
var errEnough = errors.New("no more rows are wanted")

// A source is a table with its columns as the catalogue has them.
type source struct {
	relation *decode.Relation // of the mapped columns alone
	columns  router.Columns
	oid      uint32
	kind     string            // r, or p for one with partitions
	types    map[string]string // of its columns, by name
}

func describe(ctx context.Context, tx pgx.Tx, t router.Table) (*source, error) {
	s := &source{
		relation: &decode.Relation{Schema: t.Schema, Name: t.Name, ReplicaIdentity: 'd'},
		columns:  t.Columns.Effective(), types: map[string]string{},
	}
	err := tx.QueryRow(ctx, `SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')`, t.Schema, t.Name).Scan(&s.oid, &s.kind)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, errors.New("there is no such table; correct its name, or run walrelay migrate")
	}
	if err != nil {
		return s, err
	}
	s.relation.ID = s.oid
	rows, err := tx.Query(ctx, `SELECT attname::text, atttypid, atttypmod, format_type(atttypid, NULL) FROM pg_attribute
		WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, s.oid)
	if err != nil {
		return s, err
	}
	var have []string
	var c decode.Column
	var kind string
	mapped := s.mapped()
	_, err = pgx.ForEachRow(rows, []any{&c.Name, &c.TypeOID, &c.TypeMod, &kind}, func() error {
		have = append(have, c.Name)
		s.types[c.Name] = kind
		for _, m := range mapped {
			if m[1] == c.Name {
				s.relation.Columns = append(s.relation.Columns, c)
				break
			}
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	for _, m := range mapped {
		if s.types[m[1]] == "" {
			return s, &router.ColumnError{Table: t.Schema + "." + t.Name, Column: m[1], Field: m[0], Have: have}
		}
	}
	// Only readers of the table use these, so that they may be missing.
	for _, name := range []*string{&s.columns.Xid, &s.columns.Seq} {
		if s.types[*name] == "" {
			*name = ""
		}
	}
	if s.columns.Xid != "" && s.types[s.columns.Xid] != "xid8" {
		return s, fmt.Errorf("column %q, which columns.xid maps, is %s; make it xid8 DEFAULT pg_current_xact_id()", s.columns.Xid, s.types[s.columns.Xid])
	}
	return s, nil
}

// mapped gives the fields and names of the columns that a message is made of.
func (s *source) mapped() [][2]string {
	c := &s.columns
	list := [][2]string{
		{"id", c.ID},
		{"aggregate_type", c.AggregateType},
		{"aggregate_id", c.AggregateID},
		{"event_type", c.EventType},
		{"payload", c.Payload},
		{"headers", c.Headers},
		{"created_at", c.CreatedAt},
	}
	for name := range c.Extra {
		list = append(list, [2]string{"extra", name})
	}
	n := 0
	for _, m := range list {
		if m[1] != "" {
			list[n] = m
			n++
		}
	}
	return list[:n]
}

// extras are the values that stand before those of the relation.
const extras = 5

// query gives the SELECT. Text of ours in it is quoted, since a cursor takes no
// parameters.
func (s *source) query(f RowFilter) (string, error) {
	c := &s.columns
	var b strings.Builder
	or := func(column, suffix, otherwise string) string {
		if column == "" {
			return otherwise
		}
		return "t." + quoteName(column) + suffix
	}
	proven := "NULL"
	if c.Xid != "" && f.Proven != "" {
		proven = "pg_visible_in_snapshot(t." + quoteName(c.Xid) + ", " + literal(f.Proven) + "::pg_snapshot)"
	}
	seq := "NULL"
	if !f.Unordered {
		seq = or(c.Seq, "", "NULL")
	}
	fmt.Fprintf(&b, "SELECT t.tableoid, t.ctid, %s, %s, %s", or(c.Xid, "", "NULL"), seq, proven)
	for i := range s.relation.Columns {
		b.WriteString(", t." + quoteName(s.relation.Columns[i].Name))
	}
	b.WriteString(" FROM ")
	if s.kind == "r" {
		// Children of another kind than partitions are tables of their own.
		b.WriteString("ONLY ")
	}
	b.WriteString(quoteName(s.relation.Schema) + "." + quoteName(s.relation.Name) + " t")
	where, err := s.conditions(f)
	if err != nil {
		return "", err
	}
	if len(where) > 0 {
		b.WriteString(" WHERE " + strings.Join(where, " AND "))
	}
	if !f.Unordered {
		// The place makes it one order, the same in each reading.
		b.WriteString(" ORDER BY " + or(c.Seq, ", ", or(c.CreatedAt, ", ", "")) + "t.tableoid, t.ctid")
	}
	return b.String(), nil
}

func (s *source) conditions(f RowFilter) ([]string, error) {
	c := &s.columns
	var where []string
	var err error
	compare := func(wanted bool, field, column, format, value string) {
		switch {
		case !wanted:
		case column == "":
			err = fmt.Errorf("has no column for columns.%s, by which its rows were to be chosen", field)
		default:
			where = append(where, fmt.Sprintf(format, "t."+quoteName(column), literal(value)+"::"+s.types[column]))
		}
	}
	const stamp = "2006-01-02 15:04:05.999999Z07:00"
	compare(!f.Since.IsZero(), "created_at", c.CreatedAt, "%s >= %s", f.Since.UTC().Format(stamp))
	compare(!f.Until.IsZero(), "created_at", c.CreatedAt, "%s < %s", f.Until.UTC().Format(stamp))
	compare(f.AggregateType != "", "aggregate_type", c.AggregateType, "%s = %s", f.AggregateType)
	compare(f.AggregateID != "", "aggregate_id", c.AggregateID, "%s = %s", f.AggregateID)
	compare(f.AfterSeq != "", "seq", c.Seq, "%s > %s", f.AfterSeq)
	for _, snapshot := range []struct{ not, text string }{{"", f.SeenBy}, {"NOT ", f.NotSeenBy}} {
		if snapshot.text == "" {
			continue
		}
		if c.Xid == "" {
			return nil, errors.New("has no column for columns.xid, so that no snapshot can tell which rows it sees")
		}
		where = append(where, snapshot.not+"pg_visible_in_snapshot(t."+quoteName(c.Xid)+", "+literal(snapshot.text)+"::pg_snapshot)")
	}
	if f.IDs != nil {
		where = append(where, "t."+quoteName(c.ID)+" = ANY (ARRAY["+literals(f.IDs)+"]::"+s.types[c.ID]+"[])")
	}
	if f.TIDs != nil {
		places := make([]string, len(f.TIDs))
		for i, p := range f.TIDs {
			places[i] = p.String()
		}
		where = append(where, fmt.Sprintf("t.tableoid = %d AND t.ctid = ANY (ARRAY[%s]::tid[])", f.Table, literals(places)))
	}
	return where, err
}

func quoteName(s string) string { return pgx.Identifier{s}.Sanitize() }

// literal quotes a text whatever standard_conforming_strings says.
func literal(s string) string {
	s = strings.ReplaceAll(s, "\x00", "") // no text of PostgreSQL's has one
	return "E'" + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", "''") + "'"
}

func literals(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = literal(s)
	}
	return strings.Join(quoted, ", ")
}

// fetch runs the query through a cursor and gives each row away as it comes.
func (s *source) fetch(ctx context.Context, tx pgx.Tx, query string, batch int, yield func(*Row, error) bool) error {
	if batch <= 0 {
		batch = 1000
	}
	const cursor = "walrelay_rows"
	if _, err := tx.Exec(ctx, "DECLARE "+cursor+" NO SCROLL CURSOR FOR "+query); err != nil {
		return err
	}
	fetch := fmt.Sprintf("FETCH FORWARD %d FROM %s", batch, cursor)
	row := &Row{}
	row.Relation = s.relation
	row.Tuple = make(decode.Tuple, len(s.relation.Columns))
	for {
		n, err := s.batch(tx.Conn().PgConn().ExecParams(ctx, fetch, nil, nil, nil, nil), row, yield)
		if err == nil && n == batch {
			continue
		}
		if err == nil || errors.Is(err, errEnough) {
			_, closed := tx.Exec(ctx, "CLOSE "+cursor)
			err = errors.Join(err, closed)
		}
		return err
	}
}

// batch gives away the rows of one FETCH. What is left of it when the caller has
// enough is read and dropped.
func (s *source) batch(rows *pgconn.ResultReader, row *Row, yield func(*Row, error) bool) (n int, err error) {
	for rows.NextRow() {
		n++
		if err = s.read(rows.Values(), row); err != nil {
			break
		}
		if !yield(row, nil) {
			err = errEnough
			break
		}
	}
	_, failed := rows.Close()
	if failed != nil && !errors.Is(err, errEnough) { // who wants no more rows must not be told of one
		return n, failed
	}
	return n, err
}

// read takes over one row in text form.
func (s *source) read(values [][]byte, row *Row) error {
	if len(values) != extras+len(row.Tuple) {
		return fmt.Errorf("the server sent %d columns, want %d", len(values), extras+len(row.Tuple))
	}
	oid, err := strconv.ParseUint(string(values[0]), 10, 32)
	if err != nil {
		return fmt.Errorf("tableoid: %w", err)
	}
	row.Table = uint32(oid)
	if row.TID, err = parseTID(values[1]); err != nil {
		return err
	}
	row.Xid = 0
	if values[2] != nil {
		if row.Xid, err = strconv.ParseUint(string(values[2]), 10, 64); err != nil {
			return fmt.Errorf("column %q: %w", s.columns.Xid, err)
		}
	}
	row.Seq = string(values[3])
	row.Proven = string(values[4]) == "t"
	row.created = nil
	for i, v := range values[extras:] {
		row.Tuple[i] = decode.Value{Kind: decode.Text, Data: v}
		if v == nil {
			row.Tuple[i] = decode.Value{Kind: decode.Null}
			continue
		}
		if s.relation.Columns[i].Name == s.columns.CreatedAt {
			row.created = v
		}
	}
	return nil
}

func parseTID(b []byte) (TID, error) {
	block, offset, ok := strings.Cut(strings.Trim(string(b), "()"), ",")
	n, err := strconv.ParseUint(block, 10, 32)
	m, err2 := strconv.ParseUint(offset, 10, 16)
	if err := errors.Join(err, err2); err != nil || !ok {
		return TID{}, fmt.Errorf("ctid %q: want (block,offset)", b)
	}
	return TID{Block: uint32(n), Offset: uint16(m)}, nil
}

// parseTime reads a timestamp as PostgreSQL prints it under our settings; one
// without a zone counts as UTC.
func parseTime(b []byte) (time.Time, bool) {
	s := string(b)
	for _, layout := range []string{"2006-01-02 15:04:05.999999Z07", "2006-01-02 15:04:05.999999"} {
		if at, err := time.Parse(layout, s); err == nil {
			return at.UTC(), true
		}
	}
	return time.Time{}, false
}
