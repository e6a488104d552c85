package outbox

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// A batch is the events of one call as PostgreSQL's text form of six arrays.
// Texts are sent alike by every driver and in every mode of a pooler; a list of
// placeholders would be another statement for each number of events.
type batch struct {
	table   Table
	columns [6]array
}

func newBatch(t Table, events int) *batch {
	b := &batch{table: t}
	for i := range b.columns {
		b.columns[i].b.Grow(48 * events)
	}
	return b
}

// add checks an event and adds it. A batch with problems must not be sent.
func (b *batch) add(ctx context.Context, e *Event) ([]Problem, error) {
	id := e.ID
	if id == [16]byte{} {
		var err error
		if id, err = NewID(); err != nil {
			return nil, err
		}
	}
	var c checker
	c.names(e)
	headers := c.headers(ctx, e)
	payload := c.payload(b.table, e)
	c.total(b.table)
	if len(c.problems) > 0 {
		return c.problems, nil
	}
	encoded, err := json.Marshal(headers)
	if err != nil {
		return nil, fmt.Errorf("encode the headers: %w", err)
	}
	b.columns[0].add(id.String())
	b.columns[1].add(e.AggregateType)
	b.columns[2].add(e.AggregateID)
	b.columns[3].add(e.Type)
	switch {
	case payload == nil:
		b.columns[4].null()
	case b.table.Payload == PayloadBytes:
		b.columns[4].add(`\x` + hex.EncodeToString(payload))
	default:
		b.columns[4].add(string(payload))
	}
	b.columns[5].add(string(encoded))
	return nil, nil
}

func (b *batch) args() []any {
	args := make([]any, len(b.columns))
	for i := range b.columns {
		args[i] = b.columns[i].String()
	}
	return args
}

// An array builds the text form of a text[]: {"a","b",NULL}.
type array struct{ b strings.Builder }

func (a *array) sep() {
	if a.b.Len() == 0 {
		a.b.WriteByte('{')
	} else {
		a.b.WriteByte(',')
	}
}

func (a *array) null() {
	a.sep()
	a.b.WriteString("NULL")
}

func (a *array) add(s string) {
	a.sep()
	a.b.WriteByte('"')
	for {
		i := strings.IndexAny(s, `"\`)
		if i < 0 {
			break
		}
		a.b.WriteString(s[:i])
		a.b.WriteByte('\\')
		a.b.WriteByte(s[i])
		s = s[i+1:]
	}
	a.b.WriteString(s)
	a.b.WriteByte('"')
}

// String closes the array; nothing can be added afterwards.
func (a *array) String() string {
	a.b.WriteByte('}')
	return a.b.String()
}
