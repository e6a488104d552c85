package decode_test

import (
	"encoding/binary"
	"time"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
)

// A wire builds messages as the server writes them. It shares no code with the
// decoder, so that a common mistake cannot hide.
type wire []byte

func (w wire) byte(b byte) wire    { return append(w, b) }
func (w wire) u16(v int) wire      { return binary.BigEndian.AppendUint16(w, uint16(v)) }
func (w wire) u32(v uint32) wire   { return binary.BigEndian.AppendUint32(w, v) }
func (w wire) u64(v uint64) wire   { return binary.BigEndian.AppendUint64(w, v) }
func (w wire) text(s string) wire  { return append(append(w, s...), 0) }
func (w wire) sized(b []byte) wire { return append(w.u32(uint32(len(b))), b...) }
func (w wire) time(t time.Time) wire {
	return w.u64(uint64(t.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds()))
}

func (w wire) tuple(tuple decode.Tuple) wire {
	w = w.u16(len(tuple))
	for _, v := range tuple {
		switch v.Kind {
		case decode.Null:
			w = w.byte('n')
		case decode.Unchanged:
			w = w.byte('u')
		case decode.Text:
			w = w.byte('t').sized(v.Data)
		case decode.Binary:
			w = w.byte('b').sized(v.Data)
		}
	}
	return w
}

func begin(commit envelope.LSN, at time.Time, xid uint32) wire {
	return wire("B").u64(uint64(commit)).time(at).u32(xid)
}

func commit(start, end envelope.LSN, at time.Time) wire {
	return wire("C").byte(0).u64(uint64(start)).u64(uint64(end)).time(at)
}

func relation(r *decode.Relation) wire {
	w := wire("R").u32(r.ID).text(r.Schema).text(r.Name).byte(r.ReplicaIdentity).u16(len(r.Columns))
	for _, c := range r.Columns {
		flags := byte(0)
		if c.Key {
			flags = 1
		}
		w = w.byte(flags).text(c.Name).u32(c.TypeOID).u32(uint32(c.TypeMod))
	}
	return w
}

func insert(id uint32, row decode.Tuple) wire {
	return wire("I").u32(id).byte('N').tuple(row)
}

// update writes the old row only where its kind, K or O, is not zero.
func update(id uint32, kind byte, old, row decode.Tuple) wire {
	w := wire("U").u32(id)
	if kind != 0 {
		w = w.byte(kind).tuple(old)
	}
	return w.byte('N').tuple(row)
}

func remove(id uint32, kind byte, old decode.Tuple) wire {
	return wire("D").u32(id).byte(kind).tuple(old)
}

func truncate(options byte, ids ...uint32) wire {
	w := wire("T").u32(uint32(len(ids))).byte(options)
	for _, id := range ids {
		w = w.u32(id)
	}
	return w
}

func typeName(id uint32, schema, name string) wire {
	return wire("Y").u32(id).text(schema).text(name)
}

func origin(at envelope.LSN, name string) wire {
	return wire("O").u64(uint64(at)).text(name)
}

func logical(flags byte, at envelope.LSN, prefix string, content []byte) wire {
	return wire("M").byte(flags).u64(uint64(at)).text(prefix).sized(content)
}

// text is a value in text format.
func text(s string) decode.Value { return decode.Value{Kind: decode.Text, Data: []byte(s)} }

// outbox is a relation like the one of the design.
func outbox() *decode.Relation {
	return &decode.Relation{
		ID: 16385, Schema: "walrelay", Name: "outbox", ReplicaIdentity: 'd',
		Columns: []decode.Column{
			{Name: "id", TypeOID: 2950, TypeMod: -1, Key: true},
			{Name: "aggregate_type", TypeOID: 25, TypeMod: -1},
			{Name: "aggregate_id", TypeOID: 25, TypeMod: -1},
			{Name: "event_type", TypeOID: 25, TypeMod: -1},
			{Name: "payload", TypeOID: 3802, TypeMod: -1},
			{Name: "headers", TypeOID: 3802, TypeMod: -1},
			{Name: "created_at", TypeOID: 1184, TypeMod: -1},
			{Name: "xid", TypeOID: 5069, TypeMod: -1},
			{Name: "seq", TypeOID: 20, TypeMod: -1},
		},
	}
}

func outboxRow() decode.Tuple {
	return decode.Tuple{
		text("0197a3c0-6f5e-7cc3-98c4-dc0c0c07398f"), text("order"), text("4711"), text("order.placed"),
		text(`{"total": "12.50", "currency": "EUR"}`), text("{}"), text("2026-01-02 03:04:05.678901+00"), text("742"), text("1"),
	}
}
