package publish

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"
	"unsafe"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
)

// A Message is what is published.
type Message struct {
	// Subject is where it goes.
	Subject string
	// Headers are written as they are. Nats-Msg-Id and the chain's own
	// headers are added by the stream and must not be among them.
	Headers []envelope.Header
	// Body is the payload.
	Body []byte
	// MsgID becomes Nats-Msg-Id. It must not be empty.
	MsgID string
	// Table is the table that the event came from, for [Refused]. It is kept
	// as it is, not copied.
	Table string
	// Done, if set, is called once the message is stored, or found to be
	// (true), or is made a dead letter (false); not when the session ends
	// before. It is called with locks held and must not wait.
	Done func(stored bool)
	// Key names the aggregate, type and id joined so that no two have the
	// same. [Lanes] keep the order of messages with one key; a [Stream]
	// keeps that of all and does not look at it.
	Key string
	// CommittedAt is when its transaction was committed, for
	// [StoredRun.Age]; zero where that does not matter.
	CommittedAt time.Time
}

// entryBytes is what an entry costs beside its bytes in the arena; it counts
// against the byte bound, so that small messages cannot outgrow it.
const entryBytes = int(unsafe.Sizeof(entry{}))

var errNoID = errors.New("message without id: the stream could not recognise a second attempt")

// An entry is one message that is queued or in flight.
type entry struct {
	data       []byte // header values with lengths, subject, id, body
	chunk      *chunk
	template   *template
	tx         uint64
	pos        envelope.Position
	table      string
	committed  int64 // CommittedAt in microseconds since 1970, the precision that PostgreSQL has; 0: not given
	done       func(stored bool)
	fail       *failure // the refusal of the last attempt
	subjectLen int
	idLen      int
	bodyLen    int
	batch      int  // messages of the batch that it is part of in this round, 0 for none
	answered   bool // this attempt has its answer
	acked      bool // it was acknowledged as stored in its place
	maybe      bool // some attempt got no answer: it may be stored
	tried      bool // an attempt was made before this one
	aside      bool // not live: pos is its mark
	once       bool // see Aside.Once
}

func uvarintLen(n int) int {
	l := 1
	for ; n >= 0x80; n >>= 7 {
		l++
	}
	return l
}

// dataLen is the number of arena bytes that m takes.
func dataLen(m *Message) int {
	n := len(m.Subject) + len(m.MsgID) + len(m.Body)
	for i := range m.Headers {
		n += uvarintLen(len(m.Headers[i].Value)) + len(m.Headers[i].Value)
	}
	return n
}

// encode copies m into e.data, which has dataLen(m) bytes.
func (e *entry) encode(m *Message) {
	b := e.data[:0]
	for i := range m.Headers {
		b = binary.AppendUvarint(b, uint64(len(m.Headers[i].Value)))
		b = append(b, m.Headers[i].Value...)
	}
	b = append(b, m.Subject...)
	b = append(b, m.MsgID...)
	_ = append(b, m.Body...)
	e.table, e.done = m.Table, m.Done
	if !m.CommittedAt.IsZero() {
		e.committed = m.CommittedAt.UnixMicro()
	}
	e.subjectLen, e.idLen, e.bodyLen = len(m.Subject), len(m.MsgID), len(m.Body)
}

// text gives b as a string that shares its bytes: valid while b is.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) } //nolint:gosec // no copy for each event; callers clone what they keep

// leaves tells Done.
func (e *entry) leaves(stored bool) {
	if e.done != nil {
		e.done(stored)
	}
}

func (e *entry) tail(fromEnd, n int) []byte {
	start := len(e.data) - fromEnd
	return e.data[start : start+n]
}

func (e *entry) subject() string {
	return text(e.tail(e.subjectLen+e.idLen+e.bodyLen, e.subjectLen))
}
func (e *entry) id() string   { return text(e.tail(e.idLen+e.bodyLen, e.idLen)) }
func (e *entry) body() []byte { return e.tail(e.bodyLen, e.bodyLen) }
func (e *entry) size() int    { return len(e.data) + entryBytes }

// fill makes m the entry's message; last is the sequence that is expected, "" for
// none. Everything in m points into the arena and is overwritten by the next fill.
func (e *entry) fill(m *nats.Msg, last string) {
	rest := e.data
	for _, v := range e.template.values {
		n, k := binary.Uvarint(rest)
		*v = text(rest[k : k+int(n)]) //nolint:gosec // a length that encode wrote
		rest = rest[k+int(n):]        //nolint:gosec // a length that encode wrote
	}
	*e.template.id = e.id()
	e.template.expect(last)
	m.Subject, m.Header, m.Data = e.subject(), e.template.header, e.body()
}

// message gives a copy that outlives the entry.
func (e *entry) message() Message {
	var m nats.Msg
	e.fill(&m, "")
	out := Message{Table: e.table, Subject: strings.Clone(m.Subject), MsgID: strings.Clone(e.id()), Body: append([]byte{}, m.Data...)}
	for i, name := range e.template.names {
		out.Headers = append(out.Headers, envelope.Header{Name: name, Value: strings.Clone(*e.template.values[i])})
	}
	return out
}

// A failure is why a message was not stored, or why sending stopped.
type failure struct {
	class     Class
	scope     scope  // what it holds back in lanes
	rank      int    // a higher one replaces a lower as the reason shown
	code      int    // JetStream's, 0 if none
	reason    string // for the operator
	permanent string // of ClassPermanent: one of the reasons above
	duplicate uint64 // the sequence a duplicate reply named
}
