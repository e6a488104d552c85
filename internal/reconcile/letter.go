package reconcile

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/router"
)

// A Copy is what was kept of a row that may be gone from its table.
type Copy struct {
	ID                                    string // as PostgreSQL prints it
	AggregateType, AggregateID, EventType string
	Headers                               []byte // the column's text; nil for null
	Payload                               []byte // the message's body
	NullPayload                           bool
	// Columns are created_at and the further columns by name; nil for null.
	Columns map[string]*string
}

// RowOf makes of a copy the row that it was, for the router. An empty text of
// aggregate and type counts as null where the table allows null, which makes
// no difference to a message.
func RowOf(ctx context.Context, tx pgx.Tx, t router.Table, c Copy) (*router.Row, error) {
	s, err := describe(ctx, tx, t)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", s.relation, err)
	}
	const oidBytea = 17 // the same on every server
	row := &router.Row{Relation: s.relation, Tuple: make(decode.Tuple, len(s.relation.Columns))}
	for i, column := range s.relation.Columns {
		v := &row.Tuple[i]
		*v = decode.Value{Kind: decode.Text}
		switch column.Name {
		case s.columns.ID:
			v.Data = []byte(c.ID)
		case s.columns.AggregateType:
			v.Data = []byte(c.AggregateType)
		case s.columns.AggregateID:
			v.Data = []byte(c.AggregateID)
		case s.columns.EventType:
			v.Data = []byte(c.EventType)
		case s.columns.Payload:
			switch {
			case c.NullPayload:
				*v = decode.Value{Kind: decode.Null}
			case column.TypeOID == oidBytea:
				v.Data = []byte(`\x` + hex.EncodeToString(c.Payload))
			default:
				v.Data = append([]byte{}, c.Payload...)
			}
		case s.columns.Headers:
			if v.Data = c.Headers; c.Headers == nil {
				*v = decode.Value{Kind: decode.Null}
			}
		default:
			if text := c.Columns[column.Name]; text != nil {
				v.Data = []byte(*text)
			} else {
				*v = decode.Value{Kind: decode.Null}
			}
		}
	}
	return row, nil
}
