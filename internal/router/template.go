package router

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/walrelay/walrelay/envelope"
)

// form is how a piece of a template writes a value.
type form uint8

const (
	literal   form = iota // the template's own text
	tokens                // {x}: dots between legal tokens stay
	token                 // {token(x)}: one token
	raw                   // {raw(x)}: as it is, checked with the subject
	partition             // {partition(n)}: hash of the aggregate id
)

// field is the value that a piece writes.
type field uint8

const (
	aggregateType field = iota
	aggregateID
	eventType
	rowID
)

// extra is the first field after those: from there on they are the further
// columns of the table, in order.
const extra = 4

// maxPartitions bounds n of {partition(n)}.
const maxPartitions = 1 << 16

// placeholders are the names that every table has; their text is in the row
// (its field) or known beforehand.
var placeholders = []string{"source", "schema", "table", "aggregate_type", "aggregate_id", "event_type", "id"}

// A piece of a compiled template.
type piece struct {
	form form
	lit  string
	from field
	n    uint32
}

// A node is a piece of a template as it is written: text, or a function and
// the name in it.
type node struct {
	lit      string
	form     form
	name     string
	n        uint32
	original string
}

var errBraces = errors.New("has braces that do not pair")

// parseTemplate reads a template. What it says of the tables' columns is
// looked at in compile.
func parseTemplate(s string) ([]node, error) {
	var nodes []node
	for s != "" {
		open := strings.IndexAny(s, "{}")
		if open < 0 {
			return append(nodes, node{lit: s}), nil
		}
		if s[open] == '}' {
			return nil, errBraces
		}
		if open > 0 {
			nodes = append(nodes, node{lit: s[:open]})
		}
		inner, rest, ok := strings.Cut(s[open+1:], "}")
		if !ok || strings.ContainsRune(inner, '{') {
			return nil, errBraces
		}
		n, err := parsePlaceholder(inner)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
		s = rest
	}
	return nodes, nil
}

func parsePlaceholder(s string) (node, error) {
	n := node{form: tokens, name: s, original: "{" + s + "}"}
	if fn, arg, ok := strings.Cut(s, "("); ok {
		arg, ok = strings.CutSuffix(arg, ")")
		if !ok {
			return n, fmt.Errorf("has %s without its closing parenthesis", n.original)
		}
		n.name = arg
		switch fn {
		case "token":
			n.form = token
		case "raw":
			n.form = raw
		case "partition":
			v, err := strconv.ParseUint(arg, 10, 32)
			if err != nil || v < 1 || v > maxPartitions {
				return n, fmt.Errorf("has %s, which needs a number from 1 to %d", n.original, maxPartitions)
			}
			n.form, n.name, n.n = partition, "", uint32(v)
			return n, nil
		default:
			return n, fmt.Errorf("has the unknown function %q, known are token, raw and partition", fn)
		}
	}
	if n.name == "" {
		return n, fmt.Errorf("has %s, which names no value", n.original)
	}
	return n, nil
}

// compile resolves the names of nodes for one table. Text that is the same for
// all its rows becomes literal.
func compile(nodes []node, source string, t *table) ([]piece, error) {
	var out []piece
	lit := func(s string) {
		if n := len(out); n > 0 && out[n-1].form == literal {
			out[n-1].lit += s
			return
		}
		out = append(out, piece{form: literal, lit: s})
	}
	for _, n := range nodes {
		if n.form == literal {
			lit(n.lit)
			continue
		}
		p := piece{form: n.form, n: n.n}
		fixed := ""
		switch n.name {
		case "": // partition
			p.from = aggregateID
		case "source":
			fixed = source
		case "schema":
			fixed = t.Schema
		case "table":
			fixed = t.Name
		case "aggregate_type":
			p.from = aggregateType
		case "aggregate_id":
			p.from = aggregateID
		case "event_type":
			p.from = eventType
		case "id":
			p.from = rowID
		default:
			i := t.extra(n.name)
			if i < 0 {
				known := append(t.extraColumns(), placeholders...)
				return nil, fmt.Errorf("has %s, which table %s does not have (nearest: %q); use one of %s, or map the column under columns.extra",
					n.original, t.name, nearest(n.name, known), strings.Join(placeholders, ", "))
			}
			p.from = extra + field(i) //nolint:gosec // New refuses more than maxExtra columns
		}
		switch {
		case fixed == "":
			out = append(out, p)
		case n.form == tokens:
			lit(envelope.Tokens(fixed))
		case n.form == token:
			lit(envelope.Token(fixed))
		default:
			lit(fixed)
		}
	}
	return out, checkShape(out)
}

// checkShape finds what is wrong with every subject of a template, whatever
// its rows hold.
func checkShape(pieces []piece) error {
	var b strings.Builder
	for _, p := range pieces {
		if p.form == literal {
			b.WriteString(p.lit)
		} else {
			b.WriteByte('x')
		}
	}
	if reason, problem := checkSubject(b.String()); reason != "" {
		return fmt.Errorf("can make no legal subject: %s", problem)
	}
	return nil
}

// tells says whether every subject of a template shows the value of f.
func tells(pieces []piece, f field) bool {
	for _, p := range pieces {
		if p.from == f && (p.form == tokens || p.form == token || p.form == raw) {
			return true
		}
	}
	return false
}

// appendSubject appends the subject of the row in v.
func appendSubject(b []byte, pieces []piece, v *values) []byte {
	for i := range pieces {
		p := &pieces[i]
		switch p.form {
		case literal:
			b = append(b, p.lit...)
		case tokens:
			b = envelope.AppendTokens(b, v.of(p.from))
		case token:
			b = envelope.AppendToken(b, v.of(p.from))
		case raw:
			b = append(b, v.of(p.from)...)
		case partition:
			b = strconv.AppendUint(b, uint64(fnv1a(v.aggregateID)%p.n), 10)
		}
	}
	return b
}

// fnv1a is the 32-bit FNV-1a hash: the one that the server's own partition
// mapping uses, so that both give an aggregate the same number.
func fnv1a(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h ^= uint32(s[i])
		h *= 16777619
	}
	return h
}
