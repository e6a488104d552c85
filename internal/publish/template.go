package publish

import (
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
)

// templateCount is how many sets of header names are remembered. Routes have a
// few; rows that each bring other names only cost allocations.
const templateCount = 16

// A template is one set of header names with the header map that messages of
// that set are published with. Only the values change from message to message.
type template struct {
	names   []string
	header  nats.Header
	values  []*string // in the order of names
	id      *string   // Nats-Msg-Id
	last    *string   // Nats-Expected-Last-Sequence, nil in lanes, where few messages have one
	expects bool      // the header map has that one just now, in lanes
	// overhead is at least what names and fixed values take in a header block.
	overhead int
	parts    [partCount]*part
}

func newTemplate(stream string, headers []envelope.Header, chained bool) *template {
	t := &template{header: make(nats.Header, len(headers)+3)}
	for _, h := range headers {
		name := strings.Clone(h.Name)
		t.names = append(t.names, name)
		t.header[name] = append(t.header[name], "")
	}
	taken := make(map[string]int, len(headers))
	for _, name := range t.names {
		t.values = append(t.values, &t.header[name][taken[name]])
		taken[name]++
	}
	one := func(name, value string) *string {
		t.header[name] = []string{value}
		return &t.header[name][0]
	}
	one(envelope.HeaderExpectedStream, stream)
	t.id = one(envelope.HeaderMsgID, "")
	if chained {
		t.last = one(envelope.HeaderExpectedLastSeq, "")
	}
	t.overhead = len("NATS/1.0\r\n\r\n") + HeaderReserve(stream)
	for name, values := range t.header {
		t.overhead += len(values) * (len(name) + len(": \r\n"))
	}
	return t
}

// expect sets the sequence that is expected, "" for none.
func (t *template) expect(last string) {
	switch {
	case t.last != nil:
		*t.last = last
	case last != "":
		t.header[envelope.HeaderExpectedLastSeq] = []string{last}
		t.expects = true
	case t.expects:
		delete(t.header, envelope.HeaderExpectedLastSeq)
		t.expects = false
	}
}

func (t *template) fits(headers []envelope.Header) bool {
	if len(t.names) != len(headers) {
		return false
	}
	for i, name := range t.names {
		if headers[i].Name != name {
			return false
		}
	}
	return true
}

// templates keeps the sets in use, the most recent first.
type templates struct {
	stream  string
	chained bool
	list    []*template
}

func (ts *templates) find(headers []envelope.Header) *template {
	for i, t := range ts.list {
		if t.fits(headers) {
			if i > 0 {
				copy(ts.list[1:i+1], ts.list[:i])
				ts.list[0] = t
			}
			return t
		}
	}
	t := newTemplate(ts.stream, headers, ts.chained)
	ts.list = slices.Insert(ts.list, 0, t)
	if len(ts.list) > templateCount {
		ts.list = slices.Delete(ts.list, templateCount, len(ts.list))
	}
	return t
}

// HeaderReserve is the most bytes that our own headers add to a
// message of stream. A router subtracts it from the server's limit.
func HeaderReserve(stream string) int {
	const perHeader = len(": \r\n")
	return len(envelope.HeaderExpectedStream) + len(stream) + perHeader +
		len(envelope.HeaderExpectedLastSeq) + 20 + perHeader
}
