package envelope

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// An LSN is a byte address in PostgreSQL's write-ahead log. LSNs of two
// histories of a database (see [Position]) are not comparable.
type LSN uint64

// String gives the form that PostgreSQL prints, such as 0/16B3748.
func (l LSN) String() string { return string(l.Append(nil)) }

// Append appends the form that PostgreSQL prints to b.
func (l LSN) Append(b []byte) []byte {
	b = appendHex(b, uint32(l>>32))
	b = append(b, '/')
	return appendHex(b, uint32(l)) //nolint:gosec // the two halves of 64 bits
}

func appendHex(b []byte, v uint32) []byte {
	const digits = "0123456789ABCDEF"
	started := false
	for shift := 28; shift >= 0; shift -= 4 {
		d := v >> shift & 0xF
		if d != 0 || started || shift == 0 {
			b = append(b, digits[d])
			started = true
		}
	}
	return b
}

// ParseLSN reads PostgreSQL's form of an LSN: two hexadecimal numbers of at
// most 32 bits, joined by a slash.
func ParseLSN(s string) (LSN, error) {
	high, low, ok := strings.Cut(s, "/")
	if !ok {
		return 0, fmt.Errorf("LSN %q: want two hexadecimal numbers joined by a slash, such as 0/16B3748", s)
	}
	h, err := parseHex(high)
	if err != nil {
		return 0, fmt.Errorf("LSN %q: %w", s, err)
	}
	l, err := parseHex(low)
	if err != nil {
		return 0, fmt.Errorf("LSN %q: %w", s, err)
	}
	return LSN(h)<<32 | LSN(l), nil
}

var errHex = errors.New("want one to eight hexadecimal digits on each side of the slash")

func parseHex(s string) (uint64, error) {
	if s == "" || len(s) > 8 || s[0] == '+' || s[0] == '-' {
		return 0, errHex
	}
	v, err := strconv.ParseUint(s, 16, 32)
	if err != nil {
		return 0, errHex
	}
	return v, nil
}

// A Position orders the events of one source. Positions compare by epoch, then
// commit LSN, then index, which is commit order: the only order that
// PostgreSQL defines between transactions.
type Position struct {
	// Epoch numbers the histories of the database, from 1. A promotion or
	// an adopted database begins the next one.
	Epoch uint32
	// Commit is the start of the transaction's commit record.
	Commit LSN
	// Index is the number of the row among the inserts that the slot sends
	// for its transaction, from 0, counted before any route or filter.
	Index uint64
}

// IsZero says whether p is no position at all.
func (p Position) IsZero() bool { return p == Position{} }

// Compare gives -1, 0 or +1 as p is before, at or after q.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.Commit, q.Commit), cmp.Compare(p.Index, q.Index))
}

// String gives the form on the wire, such as 1/0/16B3748/0.
func (p Position) String() string { return string(p.Append(nil)) }

// Append appends the form on the wire to b.
func (p Position) Append(b []byte) []byte {
	b = strconv.AppendUint(b, uint64(p.Epoch), 10)
	b = append(b, '/')
	b = p.Commit.Append(b)
	b = append(b, '/')
	return strconv.AppendUint(b, p.Index, 10)
}

// ParsePosition reads the form on the wire.
func ParsePosition(s string) (Position, error) {
	epoch, rest, ok := strings.Cut(s, "/")
	last := strings.LastIndexByte(rest, '/')
	if !ok || last < 0 {
		return Position{}, fmt.Errorf("position %q: want epoch/LSN/index, such as 1/0/16B3748/0", s)
	}
	e, err := parseDecimal(epoch, 32)
	if err != nil {
		return Position{}, fmt.Errorf("position %q: epoch: %w", s, err)
	}
	commit, err := ParseLSN(rest[:last])
	if err != nil {
		return Position{}, fmt.Errorf("position %q: %w", s, err)
	}
	index, err := parseDecimal(rest[last+1:], 64)
	if err != nil {
		return Position{}, fmt.Errorf("position %q: index: %w", s, err)
	}
	return Position{Epoch: uint32(e), Commit: commit, Index: index}, nil //nolint:gosec // parsed as 32 bits
}

func parseDecimal(s string, bits int) (uint64, error) {
	if s == "" || s[0] == '+' || s[0] == '-' {
		return 0, fmt.Errorf("%q is not a decimal number", s)
	}
	v, err := strconv.ParseUint(s, 10, bits)
	if err != nil {
		return 0, fmt.Errorf("%q is not a decimal number of %d bits", s, bits)
	}
	return v, nil
}
