package router

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
)

// keepBuffer is the largest buffer in bytes that is kept from one row to the
// next: one huge row must not hold its memory for ever.
const keepBuffer = 4 << 20

// A Router routes rows. It is used by one goroutine at a time.
type Router struct {
	cfg     Config
	tables  map[tableKey]*table
	streams []string
	limits  []Limits // of each stream
	hash    string

	plans        map[*decode.Relation]*plan
	lastRelation *decode.Relation
	lastPlan     *plan

	// What follows is of the current row and used again for the next.
	buf     []byte
	body    []byte
	headers []envelope.Header
	values  values

	// One transaction has many rows and one time.
	committedAt   time.Time
	committedText string
}

type tableKey struct{ schema, name string }

// A route is a [Route] compiled for one table.
type route struct {
	types       []string
	skip        bool
	stream      string
	streamIndex int
	subject     []piece
	headers     []envelope.Header
	tellsType   bool   // every subject shows the aggregate type
	good        []byte // the subject that was found good last
}

// Limits are what bounds a stream's messages, in bytes.
type Limits struct {
	// MaxPayload is the server's max_payload: header block and body. Zero
	// means not known.
	MaxPayload int
	// MaxMsgSize is the stream's: header block and body. Zero and -1 mean
	// none.
	MaxMsgSize int
	// HeaderReserve is how many bytes of header the publisher adds.
	HeaderReserve int
}

// maxHeaderBlock is the server's limit for the header block, in bytes.
const maxHeaderBlock = math.MaxUint16

// New makes a Router, or reports all problems of cfg at once, each as a
// [*ConfigError].
func New(cfg Config) (*Router, error) {
	r := &Router{
		cfg:    cfg,
		tables: make(map[tableKey]*table, len(cfg.Tables)),
		plans:  make(map[*decode.Relation]*plan),
	}
	if err := r.compile(); err != nil {
		return nil, err
	}
	r.limits = make([]Limits, len(r.streams))
	r.hash = hashOf(cfg)
	return r, nil
}

// Streams gives the names of the streams that events go to, in the order in
// which the routes name them.
func (r *Router) Streams() []string { return slices.Clone(r.streams) }

// Hash is a hash of tables, columns, routes and the form of the message, in
// hexadecimal digits: the same for the same configuration in every release.
// The source is not in it.
func (r *Router) Hash() string { return r.hash }

// SetLimits sets the limits of a stream, now and whenever server or stream
// tell others. A stream that no route names is passed over.
func (r *Router) SetLimits(stream string, l Limits) {
	if i := slices.Index(r.streams, stream); i >= 0 {
		r.limits[i] = l
	}
}

// SetPartition makes rows of a partition count as rows of its root, for
// publications without publish_via_partition_root. Ids, too, carry the root's
// name. It fails when the root is none of the outbox tables.
func (r *Router) SetPartition(schema, name, rootSchema, rootName string) error {
	root := r.tables[tableKey{rootSchema, rootName}]
	if root == nil {
		return fmt.Errorf("partition %s.%s: its root %s.%s is none of the outbox tables; add it under tables", schema, name, rootSchema, rootName)
	}
	r.tables[tableKey{schema, name}] = root
	r.lastRelation, r.lastPlan = nil, nil
	clear(r.plans)
	return nil
}

// Route turns a row into a message, or says in out why there is none. What it
// returns points into the row and into the Router's own buffers: it is valid
// until the next call.
//
// An error stops delivery: it is not about this row but about all rows of the
// table. It is a [*ColumnError].
func (r *Router) Route(row *Row, out *Routed) error {
	p, err := r.planFor(row.Relation)
	if err != nil {
		return err
	}
	*out = Routed{StreamIndex: -1}
	if p.table == nil {
		out.Verdict = NotOutbox
		return nil
	}
	r.reset()
	out.Event.Table = p.table.name
	if len(row.Tuple) != p.columns {
		refuse(out, ReasonUndecodable, "row of table %s has %d columns and its relation %d; report this as a bug",
			p.table.name, len(row.Tuple), p.columns)
		return nil
	}
	bad := r.values.read(p, row.Tuple)
	r.describe(&out.Event)
	var rt *route
	if p.readable(p.eventType, row.Tuple) {
		if rt = p.table.match(r.values.eventType); rt == nil {
			r.buildBody(out)
			out.Verdict, out.Refusal = Unrouted, Refusal{}
			return nil
		}
		if rt.skip {
			out.Verdict = Skip
			return nil
		}
		out.Stream, out.StreamIndex = rt.stream, rt.streamIndex
	}
	if bad >= 0 {
		refuse(out, ReasonUndecodable, "column %q of table %s came as %s and not as text; an insert has every value, and binary must be off in the replication options",
			row.Relation.Columns[bad].Name, p.table.name, row.Tuple[bad].Kind)
	}
	r.buildBody(out)
	if rt != nil {
		r.build(row, rt, out)
	}
	return nil
}

// reset makes the buffers ready for a row.
func (r *Router) reset() {
	r.buf, r.body = reuse(r.buf), reuse(r.body)
	r.headers = r.headers[:0]
}

func reuse(b []byte) []byte {
	if cap(b) > keepBuffer {
		return nil
	}
	return b[:0]
}

// describe fills in what the row says of itself.
func (r *Router) describe(e *Event) {
	v := &r.values
	e.RowID, e.AggregateType, e.AggregateID = v.id, v.aggregateType, v.aggregateID
	e.EventType, e.CreatedAt = v.eventType, v.createdAt
	e.NullPayload = v.null(v.plan.payload)
	if h := v.plan.headers; h >= 0 && v.tuple[h].Kind == decode.Text {
		e.Headers = v.tuple[h].Data
	}
	if v.id != "" {
		start := len(r.buf)
		r.buf = envelope.AppendMsgID(r.buf, r.cfg.Source, e.Table, v.id, v.plan.uuid)
		e.ID = text(r.buf[start:])
	}
}

func (p *plan) readable(i int, tuple decode.Tuple) bool {
	return tuple[i].Kind == decode.Text || tuple[i].Kind == decode.Null
}

// match gives the first route that takes an event type, or nil.
func (t *table) match(eventType string) *route {
	for i := range t.routes {
		if rt := &t.routes[i]; len(rt.types) == 0 || slices.Contains(rt.types, eventType) {
			return rt
		}
	}
	return nil
}

// build makes the message but for its body. A refused row gets its subject all
// the same, for the dead letter.
func (r *Router) build(row *Row, rt *route, out *Routed) {
	v := &r.values
	switch {
	case v.null(v.plan.id):
		refuse(out, ReasonNullID, "column %q of table %s is null; make it NOT NULL or write an id: without one an event cannot be recognised when it is sent again",
			v.plan.table.cols.ID, v.plan.table.name)
	case v.id == "":
		refuse(out, ReasonEmptyID, "column %q of table %s is empty; write an id: without one an event cannot be recognised when it is sent again",
			v.plan.table.cols.ID, v.plan.table.name)
	}
	out.Message.MsgID = out.Event.ID
	r.buildSubject(rt, out)
	if out.Verdict == Refused || !r.buildHeaders(row, rt, out) {
		return
	}
	out.Message.Headers = r.headers
	if r.checkSize(out) {
		out.Verdict = Publish
	}
}

// buildBody takes the payload: the text as it is, the raw bytes of a bytea.
func (r *Router) buildBody(out *Routed) {
	v := &r.values
	payload := v.tuple[v.plan.payload]
	out.Message.Body, out.Event.Payload = payload.Data, payload.Data
	if !v.plan.bytea || payload.Kind != decode.Text {
		return
	}
	var err error
	if r.body, err = decode.AppendBytea(r.body, payload.Data); err != nil {
		out.Message.Body = nil
		refuse(out, ReasonUndecodable, "column %q of table %s: %s", v.plan.table.cols.Payload, v.plan.table.name, err)
		return
	}
	out.Message.Body, out.Event.Payload = r.body, r.body
}

func (r *Router) buildSubject(rt *route, out *Routed) {
	start := len(r.buf)
	r.buf = appendSubject(r.buf, rt.subject, &r.values)
	subject := text(r.buf[start:])
	if len(rt.good) > 0 && string(rt.good) == subject { // most rows of a route have few subjects
		out.Message.Subject = subject
		return
	}
	reason, problem := checkSubject(subject)
	if reason != "" {
		refuse(out, reason, "subject %s of table %s: %s; correct the columns that the route's template uses, or the template",
			clip(subject), r.values.plan.table.name, problem)
		return
	}
	rt.good = append(rt.good[:0], subject...)
	out.Message.Subject = subject
}

// checkSize compares what goes on the wire with the limits. It reports whether
// the row was not refused.
func (r *Router) checkSize(out *Routed) bool {
	l := r.limits[out.StreamIndex]
	m := &out.Message
	m.HeaderBytes = headerBlock(m.Headers)
	headers := m.HeaderBytes + l.HeaderReserve
	total := headers + len(m.Body)
	switch {
	case headers > maxHeaderBlock:
		refuse(out, ReasonHeadersTooLarge, "headers of %d bytes (%d of them the relay's reserve) are more than the server's %d; write fewer or shorter headers",
			headers, l.HeaderReserve, maxHeaderBlock)
	case l.MaxPayload > 0 && total > l.MaxPayload:
		refuse(out, ReasonTooLarge, "body of %d and headers of %d bytes are together more than the server's max_payload of %d; raise it to %d or more, or make the payload smaller",
			len(m.Body), headers, l.MaxPayload, total)
	case l.MaxMsgSize > 0 && total > l.MaxMsgSize:
		refuse(out, ReasonTooLarge, "body of %d and headers of %d bytes are together more than the %d bytes that stream %s keeps at most (its max_msg_size; in files 32 MiB); make the payload smaller, or the limit larger",
			len(m.Body), headers, l.MaxMsgSize, out.Stream)
	}
	return out.Verdict != Refused
}

// refuse notes the first reason; what is found later follows from it or comes
// up when it is mended.
func refuse(out *Routed, reason Reason, format string, args ...any) {
	if out.Verdict == Refused {
		return
	}
	out.Verdict = Refused
	out.Refusal = Refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}
