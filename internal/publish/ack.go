package publish

import (
	"bytes"
	"encoding/json"

	"github.com/nats-io/nats.go"
)

// An ackKind is what the server said about one message.
type ackKind uint8

const (
	ackStored       ackKind = iota // stored at seq
	ackDuplicate                   // not stored: its id is that of the message at seq
	ackError                       // refused with err
	ackNoResponders                // nobody listens on the subject
	ackOther                       // another stream answered, or nothing that is an answer
)

// An ack is one parsed answer.
type ack struct {
	kind   ackKind
	seq    uint64
	count  int    // messages, where it answers an atomic batch
	stream string // of ackOther
	err    *APIError
}

// An ackParser reads answers for one stream. Nearly all of them are
// {"stream":"X","seq":N}, in older servers with a blank and in a domain with
// its name between the two, which is read without allocating.
type ackParser struct {
	stream string
	prefix string
}

const ackSeq = `"seq":`

func newAckParser(stream string) ackParser {
	return ackParser{stream: stream, prefix: `{"stream":"` + stream + `",`}
}

func (p ackParser) parse(header nats.Header, data []byte) ack {
	if seq, ok := p.fast(data); ok {
		return ack{kind: ackStored, seq: seq}
	}
	return p.slow(header, data)
}

func (p ackParser) fast(data []byte) (uint64, bool) {
	n := len(p.prefix)
	if len(data) < n+len(ackSeq)+2 || string(data[:n]) != p.prefix || data[len(data)-1] != '}' {
		return 0, false
	}
	// Whatever stands behind the number, such as a duplicate's mark, makes
	// this the slow one's business.
	at := bytes.LastIndex(data[n:], []byte(ackSeq))
	if at < 0 {
		return 0, false
	}
	return parseDigits(data[n+at+len(ackSeq) : len(data)-1])
}

// parseDigits reads a decimal number of at most 19 digits.
func parseDigits[T []byte | string](b T) (v uint64, ok bool) {
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	for i := range len(b) {
		c := b[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		v = v*10 + uint64(c-'0')
	}
	return v, true
}

type wireError struct {
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *wireError) api() *APIError {
	if e == nil {
		return nil
	}
	return &APIError{Code: e.Code, Description: e.Description}
}

func (p ackParser) slow(header nats.Header, data []byte) ack {
	if len(data) == 0 && header.Get("Status") == "503" {
		return ack{kind: ackNoResponders}
	}
	var wire struct {
		Error     *wireError `json:"error"`
		Stream    string     `json:"stream"`
		Seq       uint64     `json:"seq"`
		Count     int        `json:"count"`
		Duplicate bool       `json:"duplicate"`
	}
	switch err := json.Unmarshal(data, &wire); {
	case err != nil:
		return ack{kind: ackOther}
	case wire.Error != nil:
		return ack{kind: ackError, err: wire.Error.api()}
	case wire.Stream != p.stream || wire.Seq == 0:
		return ack{kind: ackOther, stream: wire.Stream}
	case wire.Duplicate:
		return ack{kind: ackDuplicate, seq: wire.Seq}
	default:
		return ack{kind: ackStored, seq: wire.Seq, count: wire.Count}
	}
}
