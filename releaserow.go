package walrelay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/router"
)

// A letterTable is a table as letters of it are made rows again.
type letterTable struct {
	router.Table
	columns  router.Columns
	relation *decode.Relation
	bytea    bool // the payload is
}

// oidBytea is PostgreSQL's number of the type.
const oidBytea = 17

// table looks a letter's table up; nil where it is no outbox table any more.
func (r *release) table(ctx context.Context, name string) (*letterTable, error) {
	if t, known := r.tables[name]; known {
		return t, nil
	}
	var t *letterTable
	for _, c := range r.s.cfg.Tables {
		if c.Schema+"."+c.Name == name {
			t = &letterTable{Table: routerTable(c)}
			t.columns = t.Columns.Effective()
		}
	}
	if t == nil {
		return nil, nil //nolint:nilnil // as said
	}
	types := map[string]uint32{}
	err := r.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT a.attname::text, a.atttypid FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
			JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped`, t.Schema, t.Name)
		if err != nil {
			return err
		}
		var column string
		var kind uint32
		_, err = pgx.ForEachRow(rows, []any{&column, &kind}, func() error {
			types[column] = kind
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up table %s: %w", name, err)
	}
	c := &t.columns
	t.bytea = types[c.Payload] == oidBytea
	t.relation = &decode.Relation{Schema: t.Schema, Name: t.Name, ReplicaIdentity: 'd'}
	names := []string{c.ID, c.AggregateType, c.AggregateID, c.EventType, c.Payload, c.Headers, c.CreatedAt}
	for extra := range c.Extra {
		names = append(names, extra)
	}
	for _, column := range names {
		if column != "" {
			t.relation.Columns = append(t.relation.Columns, decode.Column{Name: column, TypeOID: types[column]})
		}
	}
	r.tables[name] = t
	return t, nil
}

// row makes a letter a row again. Where the payload was not copied the row is
// read from its table; gone says why that cannot be.
func (r *release) row(ctx context.Context, l *deadletter.Letter) (row *router.Row, gone string, err error) {
	t, err := r.table(ctx, l.Table)
	if err != nil {
		return nil, "", err
	}
	if t == nil {
		return nil, "", &waitError{fmt.Sprintf("table %s, of which dead letter %d is, is no outbox table any more; add it under tables", l.Table, l.ID)}
	}
	if l.Payload == nil && !l.PayloadNull || l.Columns == nil {
		return r.tableRow(ctx, t, l)
	}
	row = &router.Row{Relation: t.relation, Position: l.Position, CommittedAt: l.CommittedAt}
	for _, column := range t.relation.Columns {
		row.Tuple = append(row.Tuple, t.value(l, column.Name))
	}
	return row, "", nil
}

// value is what the row had in a column.
func (t *letterTable) value(l *deadletter.Letter, column string) decode.Value {
	value := func(s string) decode.Value { return decode.Value{Kind: decode.Text, Data: []byte(s)} }
	null := decode.Value{Kind: decode.Null}
	c := &t.columns
	if kept, ok := l.Columns[column]; ok {
		if kept == nil {
			return null
		}
		return value(*kept)
	}
	switch column {
	case c.ID:
		if id, ok := rowID(l.EventID); ok {
			return value(id)
		}
		return null
	case c.AggregateType:
		return value(l.AggregateType)
	case c.AggregateID:
		return value(l.AggregateID)
	case c.EventType:
		return value(l.EventType)
	case c.Payload:
		switch {
		case l.PayloadNull:
			return null
		case t.bytea:
			return value(`\x` + hex.EncodeToString(l.Payload))
		}
		return decode.Value{Kind: decode.Text, Data: l.Payload}
	case c.Headers:
		if l.RowHeaders == nil {
			return null
		}
		return decode.Value{Kind: decode.Text, Data: l.RowHeaders}
	}
	return null // a column that was not mapped then
}

// tableRow reads the row of a letter.
func (r *release) tableRow(ctx context.Context, t *letterTable, l *deadletter.Letter) (row *router.Row, gone string, err error) {
	gone = fmt.Sprintf("the payload of %d bytes was not copied into the dead letter, and no row of table %s has its id any more", l.PayloadSize, l.Table)
	id, ok := rowID(l.EventID)
	if kept := l.Columns[t.columns.ID]; kept != nil {
		id, ok = *kept, true
	}
	if !ok {
		return nil, gone, nil
	}
	err = r.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			for found, err := range reconcile.Rows(ctx, tx, t.Table, reconcile.RowFilter{IDs: []string{id}, Unordered: true, Batch: 1}) {
				if err != nil {
					return err
				}
				if row != nil || !t.same(found, l) {
					continue
				}
				row = &router.Row{Relation: found.Relation, Position: l.Position, CommittedAt: l.CommittedAt}
				for _, v := range found.Tuple {
					row.Tuple = append(row.Tuple, decode.Value{Kind: v.Kind, Data: bytes.Clone(v.Data)})
				}
			}
			return nil
		})
	})
	if row != nil {
		gone = ""
	}
	return row, gone, err
}

// same says whether a row of the table is the one that the letter is of: an id
// may have been used again.
func (t *letterTable) same(row *reconcile.Row, l *deadletter.Letter) bool {
	at := row.Relation.Column(t.columns.Payload)
	if at < 0 {
		return false
	}
	v := row.Tuple[at]
	if l.PayloadNull || v.Kind == decode.Null {
		return l.PayloadNull && v.Kind == decode.Null
	}
	body := v.Data
	if t.bytea {
		var err error
		if body, err = decode.AppendBytea(nil, v.Data); err != nil {
			return false
		}
	}
	sum := sha256.Sum256(body)
	return bytes.Equal(sum[:], l.PayloadHash)
}
