package walrelay

import (
	"context"
	"log/slog"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
)

// A stream that has lost its end may take newer events before older ones of the
// same aggregate are in it again; those say that they are late.
//
//   - Lanes send an event when the earlier ones of its aggregate are stored. Of a
//     stream that is deleted and made again at once, or put back from a copy, each
//     aggregate's next event may be the first in it, before anybody knows. What the
//     slot sends again then stands behind it.
//   - A gap is healed when the marks of all streams are met. What the slot sends
//     before that goes out, and the rows of the gap stand behind it.

// An overtaken is which live events a stream has that others would stand behind.
// It is one session's, the reader's own once that runs.
type overtaken struct {
	// lean says that messages need not tell their aggregate's type: one that
	// does not may be of any type.
	lean   bool
	newest map[string]envelope.Position // by aggregate
	last   envelope.Position            // the newest of these
	told   bool
}

// note takes the headers of a live event that the stream holds.
func (o *overtaken) note(h nats.Header, pos envelope.Position) {
	kind, _ := envelope.Unescape(h.Get(envelope.HeaderAggregateType))
	id, _ := envelope.Unescape(h.Get(envelope.HeaderAggregateID))
	if o.lean && h[envelope.HeaderAggregateType] == nil {
		kind = anyType
	}
	o.add(aggregate(kind, id), pos)
}

// noteBehind is note for any message of the source, of which only live events
// from pos on count.
func (o *overtaken) noteBehind(from envelope.Position, m publish.StoredMessage) {
	if m.Header.Get(envelope.HeaderOrigin) != "" {
		return
	}
	if pos, err := envelope.ParsePosition(m.Header.Get(envelope.HeaderPosition)); err == nil && pos.Compare(from) >= 0 {
		o.note(m.Header, pos)
	}
}

// add takes a live event that is in the stream, or will be before what comes.
func (o *overtaken) add(aggregate string, pos envelope.Position) {
	if o.newest == nil {
		o.newest = map[string]envelope.Position{}
	}
	if pos.Compare(o.newest[aggregate]) > 0 {
		o.newest[aggregate] = pos
	}
	if pos.Compare(o.last) > 0 {
		o.last = pos
	}
}

// until forgets what no live event at pos or later can be behind.
func (o *overtaken) until(pos envelope.Position) {
	if pos.Compare(o.last) >= 0 {
		o.newest = nil
	}
}

// has says whether an event of e's aggregate at pos or behind it is stored.
func (o *overtaken) has(e *router.Event, pos envelope.Position) bool {
	if o.newest == nil {
		return false
	}
	newest := func(aggregate string) bool {
		at, some := o.newest[aggregate]
		return some && at.Compare(pos) >= 0
	}
	return newest(aggregateKey(e)) || o.lean && newest(aggregate(anyType, e.AggregateID))
}

// overtaken says whether the row's event would stand behind newer ones.
func (r *reader) overtaken() bool {
	i := r.routed.StreamIndex
	return i >= 0 && r.s.streams[i].overtaken.has(&r.routed.Event, r.row.Position)
}

// markLate says in the row's message that it is late, if it is; the log tells so
// once a session. It keeps what a heal has to know of what went before it.
func (r *reader) markLate(ctx context.Context, st *stream, m *publish.Message) (late bool) {
	if late = r.overtaken(); late {
		m.Headers = append(slices.Clip(m.Headers), publish.Late)
		if !st.overtaken.told {
			st.overtaken.told = true
			r.s.log.WarnContext(ctx, "events are sent marked late: the stream lost them, and took newer ones of their aggregates before that was known",
				slog.String("stream", st.name))
		}
	}
	if r.healed {
		st.overtaken.until(r.row.Position)
	} else {
		st.overtaken.add(aggregateKey(&r.routed.Event), r.row.Position)
	}
	return late
}

// anyType is no type: text in PostgreSQL has no such byte.
const anyType = "\x00"

// aggregateKey joins type and id so that no two aggregates share one.
func aggregateKey(e *router.Event) string { return aggregate(e.AggregateType, e.AggregateID) }

func aggregate(kind, id string) string { return kind + "\x00" + id }
