package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/walrelay/walrelay/envelope"
)

// Limits of one event, in bytes.
const (
	// maxName is what the checks of walrelay.outbox allow.
	maxName = 255
	// maxSubject is what the names may take of a subject once they are
	// escaped. The relay refuses a subject above 1024, and prefix and source
	// take up to 80.
	maxSubject = 940
	// maxHeaders leaves room for walrelay's headers in NATS' 64 KiB.
	maxHeaders = 60_000
	// headerBytes is what a header takes beside its name and value.
	headerBytes = len(": ") + len("\r\n")
)

// A checker finds what the relay or the table would refuse of one event.
type checker struct {
	problems []Problem
	size     int // of the message, as far as it is known here
}

func (c *checker) problem(field, format string, args ...any) {
	c.problems = append(c.problems, Problem{Field: field, Reason: fmt.Sprintf(format, args...)})
}

func (c *checker) names(e *Event) {
	c.name("AggregateType", e.AggregateType)
	c.name("Type", e.Type)
	c.text("AggregateID", e.AggregateID)
	escaped := len(envelope.Tokens(e.AggregateType)) + len(envelope.Tokens(e.Type)) + len(".")
	if escaped > maxSubject && len(e.AggregateType) <= maxName && len(e.Type) <= maxName {
		c.problem("Type", "and AggregateType take %d bytes of the subject once escaped, more than %d; use letters, digits, underscores and hyphens", escaped, maxSubject)
	}
}

// name checks a text that becomes tokens of the subject.
func (c *checker) name(field, s string) {
	if !c.text(field, s) {
		return
	}
	if s[0] == '.' || s[len(s)-1] == '.' || strings.Contains(s, "..") {
		c.problem(field, "has an empty part before, between or after its dots; write it like order.placed")
	}
}

// text checks a text that becomes a column and a header.
func (c *checker) text(field, s string) bool {
	c.size += len(s)
	switch {
	case s == "":
		c.problem(field, "is empty; set it")
	case len(s) > maxName:
		c.problem(field, "has %d bytes, more than %d; shorten it", len(s), maxName)
	case !utf8.ValidString(s):
		c.problem(field, "is not UTF-8; encode it")
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7F }):
		c.problem(field, "has a control character; remove it")
	default:
		return true
	}
	return false
}

// headers gives the event's headers with those that the context adds.
func (c *checker) headers(ctx context.Context, e *Event) map[string]string {
	headers := contextHeaders(ctx, e.Headers)
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names) // problems come in the same order each time
	seen := make(map[string]string, len(names))
	size := 0
	for _, name := range names {
		value := headers[name]
		size += len(name) + len(value) + headerBytes
		field := fmt.Sprintf("Headers[%.80q]", name)
		switch {
		case envelope.Reserved(name):
			c.problem(field, "is reserved for the broker and the relay (Nats-*, Walrelay-*, Status, Description); use another name")
		case !validName(name):
			c.problem(field, "is no name of a header: printable ASCII without blanks and without any of %s; use another name", forbiddenInName)
		case !envelope.Verbatim(value):
			c.problem(field, "has a value that would not arrive as it is: a control character, a blank at an end, or not UTF-8; encode the value")
		}
		lower := strings.ToLower(name)
		if other, ok := seen[lower]; ok {
			c.problem(field, "differs from %q only in case, which consumers do not see; write it once", other)
		}
		seen[lower] = name
	}
	if size > maxHeaders {
		c.problem("Headers", "take %d bytes, more than %d; move what is large into the payload", size, maxHeaders)
	}
	c.size += size
	return headers
}

// payload gives the bytes for the column, or nil for SQL's null.
func (c *checker) payload(t Table, e *Event) []byte {
	raw, isRaw := rawBytes(e.Payload)
	switch {
	case e.Payload == nil && !t.json():
		return nil
	case isRaw && raw == nil:
		c.problem("Payload", "is a nil slice; set it, or leave Payload nil for null")
		return nil
	case !isRaw:
		encoded, err := encode(e.Payload)
		if err != nil {
			// The error of encoding/json names a Go type; a Marshaler's own
			// may name a value.
			c.problem("Payload", "of type %T cannot be encoded as JSON; give a value that encoding/json takes, or json.RawMessage", e.Payload)
			return nil
		}
		raw = encoded
	}
	switch {
	case t.json():
		if problem := jsonProblem(raw, t.Payload == PayloadJSONB); problem != "" {
			c.problem("Payload", "%s", problem)
			return nil
		}
	case t.Payload == PayloadText && (!utf8.Valid(raw) || bytes.IndexByte(raw, 0) >= 0):
		c.problem("Payload", "is not UTF-8 without NUL, and the column is text; encode it or use a column of type bytea")
		return nil
	}
	c.size += len(raw)
	if t.Payload == PayloadJSONB {
		c.size += jsonbBlanks(raw)
	}
	return raw
}

func (c *checker) total(t Table) {
	if c.size > t.MaxBytes {
		c.problem("Payload", "with headers takes %d bytes, more than %d; send a reference instead of the content, or raise the broker's max_payload and Table.MaxBytes", c.size, t.MaxBytes)
	}
}

func rawBytes(payload any) ([]byte, bool) {
	switch p := payload.(type) {
	case json.RawMessage:
		return p, true
	case []byte:
		return p, true
	}
	return nil, false
}

// encode is json.Marshal without the escapes for HTML, which triple the size of
// markup and help nobody here.
func encode(payload any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(payload); err != nil {
		return nil, err //nolint:wrapcheck // the caller reports its own words
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// forbiddenInName are the printable characters that the NATS client refuses in
// a header's name.
const forbiddenInName = "\"(),/:;<=>?@[\\]{}"

func validName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || strings.IndexByte(forbiddenInName, c) >= 0 {
			return false
		}
	}
	return s != ""
}
