package idempotency

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// CanonicalJSON gives the canonical form of a JSON text after RFC 8785: no
// blanks, names in the order of their UTF-16 units, numbers as ECMAScript
// prints them. Numbers are doubles there, so that digits beyond a double's are
// lost. What I-JSON forbids is an error: repeated names, halves of surrogate
// pairs, and numbers that no double holds.
func CanonicalJSON(text []byte) ([]byte, error) {
	b, _, err := canonical(text)
	if err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	return b, nil
}

var (
	errNotJSON   = errors.New("the text is not JSON in UTF-8")
	errRepeated  = errors.New("an object has a name twice")
	errSurrogate = errors.New("a string has half a surrogate pair")
	errTooLarge  = errors.New("a number is beyond what a double holds")
)

// canonical also says whether every number kept its value.
func canonical(text []byte) (b []byte, exact bool, err error) {
	// What follows can then trust the text: its errors are those of I-JSON.
	if !json.Valid(text) || !utf8.Valid(text) {
		return nil, false, errNotJSON
	}
	w := writer{text: string(text), exact: true}
	b, err = w.value(make([]byte, 0, len(text)))
	return b, w.exact, err
}

// A writer walks through valid JSON.
type writer struct {
	text  string // what is left
	exact bool
}

// peek gives the next byte that is not a blank.
func (w *writer) peek() byte {
	w.text = strings.TrimLeft(w.text, " \t\r\n")
	return w.text[0]
}

// take passes over one byte.
func (w *writer) take() { w.text = w.text[1:] }

func (w *writer) value(b []byte) ([]byte, error) {
	switch c := w.peek(); c {
	case '{':
		return w.object(b)
	case '[':
		return w.array(b)
	case '"':
		s, err := w.string()
		return appendString(b, s), err
	case 't', 'f', 'n':
		n := len("true")
		if c == 'f' {
			n = len("false")
		}
		b = append(b, w.text[:n]...)
		w.text = w.text[n:]
		return b, nil
	}
	return w.number(b)
}

func (w *writer) array(b []byte) ([]byte, error) {
	w.take()
	b = append(b, '[')
	for first := true; ; first = false {
		switch w.peek() {
		case ']':
			w.take()
			return append(b, ']'), nil
		case ',':
			w.take()
		}
		if !first {
			b = append(b, ',')
		}
		var err error
		if b, err = w.value(b); err != nil {
			return nil, err
		}
	}
}

// A member is one name of an object and its value in canonical form.
type member struct {
	units []uint16 // the name, as RFC 8785 orders it
	name  string
	value []byte
}

func (w *writer) object(b []byte) ([]byte, error) {
	w.take()
	var members []member
	for w.peek() != '}' {
		if w.peek() == ',' {
			w.take()
			w.peek()
		}
		name, err := w.string()
		if err != nil {
			return nil, err
		}
		w.peek() // the colon
		w.take()
		value, err := w.value(nil)
		if err != nil {
			return nil, err
		}
		members = append(members, member{utf16.Encode([]rune(name)), name, value})
	}
	w.take()
	slices.SortFunc(members, func(a, b member) int { return slices.Compare(a.units, b.units) })
	b = append(b, '{')
	for i, m := range members {
		if i > 0 {
			if m.name == members[i-1].name {
				return nil, errRepeated
			}
			b = append(b, ',')
		}
		b = append(appendString(b, m.name), ':')
		b = append(b, m.value...)
	}
	return append(b, '}'), nil
}

// string reads a string and resolves its escapes.
func (w *writer) string() (string, error) {
	w.take()
	var b []byte
	for {
		c := w.text[0]
		switch {
		case c == '"':
			w.take()
			return string(b), nil
		case c != '\\':
			b = append(b, c)
			w.take()
			continue
		}
		e := w.text[1]
		w.text = w.text[2:]
		switch e {
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r, err := w.escape()
			if err != nil {
				return "", err
			}
			b = utf8.AppendRune(b, r)
		default: // a quotation mark or a slash of either kind
			b = append(b, e)
		}
	}
}

// escape reads the digits of one \u, or of two that make a pair.
func (w *writer) escape() (rune, error) {
	r := w.unit()
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if !strings.HasPrefix(w.text, `\u`) {
		return 0, errSurrogate
	}
	w.text = w.text[2:]
	if r = utf16.DecodeRune(r, w.unit()); r == utf8.RuneError {
		return 0, errSurrogate
	}
	return r, nil
}

func (w *writer) unit() rune {
	u, err := strconv.ParseUint(w.text[:4], 16, 16)
	if err != nil { // not in valid JSON
		return utf8.RuneError
	}
	w.text = w.text[4:]
	return rune(u)
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			if c < ' ' {
				b = fmt.Appendf(b, `\u%04x`, c)
			} else {
				b = append(b, c)
			}
		}
	}
	return append(b, '"')
}
