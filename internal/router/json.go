package router

import (
	"bytes"
	"encoding/hex"
	"unicode/utf16"
	"unicode/utf8"
)

const jsonBlanks = " \t\r\n"

// A walker goes through the members of an object. It stands behind the opening
// brace and relies on the text being valid JSON: encoding/json has looked at
// it, but would lose digits and allocate if it read it.
type walker struct{ json []byte }

// next moves to the name of the next member, or reports that there is none.
func (w *walker) next() bool {
	w.json = bytes.TrimLeft(w.json, jsonBlanks+",")
	return len(w.json) > 0 && w.json[0] == '"'
}

// string takes a string, without its quotation marks and still escaped.
func (w *walker) string() []byte {
	for i := 1; i < len(w.json); i++ {
		switch w.json[i] {
		case '\\':
			i++
		case '"':
			s := w.json[1:i]
			w.json = w.json[i+1:]
			return s
		}
	}
	s := w.json
	w.json = nil
	return s
}

// scalar takes a number, true, false or null.
func (w *walker) scalar() []byte {
	end := bytes.IndexAny(w.json, jsonBlanks+",]}")
	if end < 0 {
		end = len(w.json)
	}
	s := w.json[:end]
	w.json = w.json[end:]
	return s
}

// appendNested takes an object or array and appends it without the blanks
// between its parts.
func (w *walker) appendNested(b []byte) []byte {
	depth, inString := 0, false
	for i := 0; i < len(w.json); i++ {
		c := w.json[i]
		switch {
		case inString && c == '\\':
			b = append(b, c)
			i++
			c = w.json[i]
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			continue
		}
		b = append(b, c)
		if depth == 0 {
			w.json = w.json[i+1:]
			return b
		}
	}
	w.json = nil
	return b
}

// value takes the value of a member. It reports whether there is a header
// (null is none) and whether the value is text at all.
func (r *Router) value(w *walker) (value string, has, ok bool) {
	w.json = bytes.TrimLeft(w.json, jsonBlanks+":")
	switch w.json[0] {
	case '"':
		value, ok = r.unquote(w.string())
		return value, true, ok
	case '{', '[':
		start := len(r.buf)
		r.buf = w.appendNested(r.buf)
		return text(r.buf[start:]), true, true
	case 'n':
		w.scalar()
		return "", false, true
	default:
		return text(w.scalar()), true, true
	}
}

// unquote resolves the escapes of a JSON string. Half a surrogate pair is no
// character, which type json of PostgreSQL lets through.
func (r *Router) unquote(s []byte) (string, bool) {
	if bytes.IndexByte(s, '\\') < 0 {
		return text(s), true
	}
	start := len(r.buf)
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			r.buf = append(r.buf, s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case 'b':
			r.buf = append(r.buf, '\b')
		case 'f':
			r.buf = append(r.buf, '\f')
		case 'n':
			r.buf = append(r.buf, '\n')
		case 'r':
			r.buf = append(r.buf, '\r')
		case 't':
			r.buf = append(r.buf, '\t')
		case 'u':
			c := unicodeEscape(s[i-1:])
			i += 4
			if utf16.IsSurrogate(c) {
				low := unicodeEscape(s[i+1:])
				if c = utf16.DecodeRune(c, low); c == utf8.RuneError {
					return "", false
				}
				i += 6
			}
			r.buf = utf8.AppendRune(r.buf, c)
		default: // quotation mark, slash, backslash
			r.buf = append(r.buf, c)
		}
	}
	return text(r.buf[start:]), true
}

// unicodeEscape reads the \uXXXX that s begins with, or gives -1.
func unicodeEscape(s []byte) rune {
	var v [2]byte
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	if _, err := hex.Decode(v[:], s[2:6]); err != nil {
		return -1
	}
	return rune(v[0])<<8 | rune(v[1])
}
