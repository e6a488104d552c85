package envelope

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// MaxEscapedID is the length in bytes up to which the escaped id of a row is
// written out in a message id. A longer one is replaced by its SHA-256.
const MaxEscapedID = 512

// hashMark stands before the digest of a long id. A colon cannot come from an
// escaped id, so that no id looks like a digest.
const hashMark = "sha256:"

// MsgID gives the message id of an outbox row, which is also the event's id.
//
// A uuid is unique over tables and databases and is the id itself, exactly as
// PostgreSQL prints it. Any other id repeats over tables and databases: it is
// scoped as <source>:<schema.table>:<escaped id>, where the escape keeps
// letters, digits and "-._~" and writes every other byte as %XX. An id whose
// escaped form is longer than [MaxEscapedID] becomes
// <source>:<schema.table>:sha256:<64 hexadecimal digits of the id's SHA-256>.
//
// The uuid flag is the type of the id's column, not the look of its value: a
// uuid in a column of type text is scoped. An empty id has no message id.
func MsgID(source, table, id string, uuid bool) string {
	return string(AppendMsgID(nil, source, table, id, uuid))
}

// AppendMsgID appends [MsgID] to b.
func AppendMsgID(b []byte, source, table, id string, uuid bool) []byte {
	if uuid {
		return append(b, id...)
	}
	b = appendIDPart(b, source)
	b = append(b, ':')
	b = appendIDPart(b, table)
	b = append(b, ':')
	start := len(b)
	// An id of more than MaxEscapedID bytes has no shorter escaped form:
	// do not write out what may be megabytes.
	if len(id) <= MaxEscapedID {
		b = appendIDPart(b, id)
	}
	if len(id) > MaxEscapedID || len(b)-start > MaxEscapedID {
		sum := sha256.Sum256([]byte(id))
		b = append(b[:start], hashMark...)
		b = hex.AppendEncode(b, sum[:])
	}
	return b
}

func appendIDPart(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; tokenByte(c) || c == '.' || c == '~' {
			b = append(b, c)
		} else {
			b = appendPercent(b, c)
		}
	}
	return b
}

// A ParsedMsgID is what a message id says of its row.
type ParsedMsgID struct {
	// Source and Table are empty where the id is a uuid.
	Source, Table string
	// ID is the row's id, and empty where Digest is not.
	ID string
	// Digest is the SHA-256, in hexadecimal digits, of an id that was too
	// long to be written out.
	Digest string
}

// ParseMsgID reads a message id of walrelay, as [MsgID] writes it.
func ParseMsgID(s string) (ParsedMsgID, error) {
	if s == "" {
		return ParsedMsgID{}, errors.New("message id is empty")
	}
	source, rest, scoped := strings.Cut(s, ":")
	if !scoped {
		return ParsedMsgID{ID: s}, nil
	}
	table, id, ok := strings.Cut(rest, ":")
	if !ok || source == "" || table == "" || id == "" {
		return ParsedMsgID{}, fmt.Errorf("message id %q: want a uuid or <source>:<schema.table>:<id>", s)
	}
	var p ParsedMsgID
	digest, hashed := strings.CutPrefix(id, hashMark)
	if hashed {
		if raw, err := hex.DecodeString(digest); err != nil || len(raw) != sha256.Size {
			return ParsedMsgID{}, fmt.Errorf("message id %q: want %d hexadecimal digits after %s", s, 2*sha256.Size, hashMark)
		}
		p.Digest, id = digest, ""
	}
	if strings.Contains(id, ":") {
		return ParsedMsgID{}, fmt.Errorf("message id %q: a colon within the id must be %%3A", s)
	}
	for _, part := range []struct {
		dst  *string
		from string
	}{{&p.Source, source}, {&p.Table, table}, {&p.ID, id}} {
		v, err := Unescape(part.from)
		if err != nil {
			return ParsedMsgID{}, fmt.Errorf("message id %q: part %q: %w", s, part.from, err)
		}
		*part.dst = v
	}
	return p, nil
}
