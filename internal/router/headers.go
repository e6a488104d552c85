package router

import (
	"strings"
	"time"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
)

// Headers of CloudEvents 1.0 in binary mode, after the NATS protocol binding.
const (
	ceSpecVersion     = "ce-specversion"
	ceID              = "ce-id"
	ceType            = "ce-type"
	ceSource          = "ce-source"
	ceTime            = "ce-time"
	ceSubject         = "ce-subject"
	ceDataContentType = "ce-datacontenttype"
	cePrefix          = "ce-"
)

const (
	contentType = "Content-Type"
	// structured is the content type by which a receiver takes a message for
	// a CloudEvent in structured mode.
	structured = "application/cloudevents"
)

// Sizes of a header block as nats.go writes it.
const (
	blockBytes  = len("NATS/1.0\r\n") + len("\r\n")
	headerBytes = len(": ") + len("\r\n")
)

// headerBlock is the size on the wire of headers, in bytes.
func headerBlock(headers []envelope.Header) int {
	n := blockBytes
	for i := range headers {
		n += len(headers[i].Name) + len(headers[i].Value) + headerBytes
	}
	return n
}

func (r *Router) add(name, value string) {
	r.headers = append(r.headers, envelope.Header{Name: name, Value: value})
}

// addValue adds a header of our own, escaped so that the value can be had back.
func (r *Router) addValue(name, value string) {
	start := len(r.buf)
	r.buf = envelope.AppendValue(r.buf, value)
	r.add(name, text(r.buf[start:]))
}

// addColumn adds a header of our own whose value is a column; null adds none.
func (r *Router) addColumn(name string, column int, value string) {
	if !r.values.null(column) {
		r.addValue(name, value)
	}
}

// buildHeaders fills r.headers. It reports whether the row was not refused.
func (r *Router) buildHeaders(row *Row, rt *route, out *Routed) bool {
	v, p := &r.values, r.values.plan
	r.add(envelope.HeaderMsgID, out.Message.MsgID)
	r.add(envelope.HeaderSource, r.cfg.Source)
	if !row.Position.IsZero() {
		start := len(r.buf)
		r.buf = row.Position.Append(r.buf)
		r.add(envelope.HeaderPosition, text(r.buf[start:]))
	}
	if !r.cfg.Lean && !row.CommittedAt.IsZero() {
		r.add(envelope.HeaderCommittedAt, r.commitText(row.CommittedAt))
	}
	if !r.cfg.Lean || !rt.tellsType {
		r.addColumn(envelope.HeaderAggregateType, p.aggregateType, v.aggregateType)
	}
	r.addColumn(envelope.HeaderAggregateID, p.aggregateID, v.aggregateID)
	r.addColumn(envelope.HeaderEventType, p.eventType, v.eventType)
	if !r.cfg.Lean {
		r.addColumn(envelope.HeaderCreatedAt, p.createdAt, v.createdAt)
	}
	if out.Event.NullPayload {
		r.add(envelope.HeaderPayload, "null")
	}
	for i, e := range p.table.extras {
		value := v.of(extra + field(i))
		if e.header == "" || v.null(p.extras[i]) {
			continue
		}
		if !envelope.Verbatim(value) {
			refuse(out, ReasonInvalidHeader, "column %q of table %s goes into header %s and has a control character or a blank at an end, which would be changed on the way; correct the writer or do not map the column",
				e.column, p.table.name, e.header)
			return false
		}
		r.add(e.header, value)
	}
	r.headers = append(r.headers, rt.headers...)
	reserved := len(r.headers)
	if h := p.headers; h >= 0 && v.tuple[h].Kind == decode.Text && !r.rowHeaders(v.tuple[h].Data, out) {
		return false
	}
	return !r.cfg.CloudEvents || r.cloudEvent(reserved, out)
}

// commitText gives the time of a commit, which the rows of a transaction share.
func (r *Router) commitText(at time.Time) string {
	if !at.Equal(r.committedAt) || r.committedText == "" {
		r.committedAt = at
		r.committedText = at.UTC().Format(time.RFC3339Nano)
	}
	return r.committedText
}

// cloudEvent adds the attributes of CloudEvents 1.0.
func (r *Router) cloudEvent(fixed int, out *Routed) bool {
	v := &r.values
	if v.eventType == "" {
		refuse(out, ReasonInvalidHeader, "column %q of table %s is empty or null, and a CloudEvent needs a type; write an event type",
			v.plan.table.cols.EventType, v.plan.table.name)
		return false
	}
	data := ""
	if !out.Event.NullPayload {
		data = v.plan.contentType
	}
	for i, h := range r.headers {
		if !strings.EqualFold(h.Name, contentType) {
			continue
		}
		if hasPrefixFold(h.Value, structured) {
			where := "the row's headers"
			if i < fixed {
				where = "the route's headers or a mapped column"
			}
			refuse(out, ReasonReservedHeader, "%s set Content-Type to a CloudEvent in structured mode, and the body is none; leave it out or write the payload's own type", where)
			return false
		}
		data = h.Value
	}
	r.add(ceSpecVersion, "1.0")
	r.addAttribute(ceID, out.Message.MsgID)
	r.addAttribute(ceSource, r.cfg.Source)
	r.addAttribute(ceType, v.eventType)
	if v.aggregateID != "" {
		r.addAttribute(ceSubject, v.aggregateID)
	}
	start := len(r.buf)
	if b, ok := appendRFC3339(r.buf, v.createdAt); ok {
		r.buf = b
		r.add(ceTime, text(r.buf[start:]))
	}
	if data != "" {
		r.addAttribute(ceDataContentType, data)
	}
	return true
}

// addAttribute adds an attribute in the percent-encoding that the NATS binding
// prescribes: blanks, quotation marks, percent signs and all but printable
// ASCII.
func (r *Router) addAttribute(name, value string) {
	const digits = "0123456789ABCDEF"
	start := len(r.buf)
	for i := range len(value) {
		if c := value[i]; c <= ' ' || c == '"' || c == '%' || c > '~' {
			r.buf = append(r.buf, '%', digits[c>>4], digits[c&0xF])
		} else {
			r.buf = append(r.buf, c)
		}
	}
	r.add(name, text(r.buf[start:]))
}

// appendRFC3339 appends the text of a timestamptz (DateStyle ISO) in RFC 3339.
// Infinity, years before Christ or of five digits, and times without a zone
// have no such form.
func appendRFC3339(b []byte, s string) ([]byte, bool) {
	const date, clock = len("2006-01-02"), len("2006-01-02 15:04:05")
	if len(s) < clock+len("+00") || s[4] != '-' || s[7] != '-' || s[date] != ' ' {
		return b, false
	}
	zone := strings.LastIndexAny(s, "+-")
	if zone < clock {
		return b, false
	}
	offset := s[zone:]
	start := len(b)
	b = append(b, s[:date]...)
	b = append(b, 'T')
	b = append(b, s[date+1:zone]...)
	switch {
	case offset == "+00":
		b = append(b, 'Z')
	case len(offset) == len("+00"):
		b = append(b, offset...)
		b = append(b, ":00"...)
	default:
		b = append(b, offset...)
	}
	if _, err := time.Parse(time.RFC3339Nano, text(b[start:])); err != nil {
		return b[:start], false
	}
	return b, true
}
