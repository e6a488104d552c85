package reconcile

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/router"
)

// details reads again what the findings to be shown are about.
func (v *verification) details(ctx context.Context, m *matched, order *first) error {
	r := &v.report
	for _, kind := range []struct {
		to   *Findings
		from *first
		fill func(context.Context, pair, *Finding) error
	}{
		{&r.Missing, &m.missing, v.missing},
		{&r.Unknown, &m.unknown, v.unknown},
		{&r.StoredAgain, &m.again, v.again},
		{&r.OutOfOrder, order, v.behind},
		{&r.Different, &m.different, v.different},
	} {
		kind.to.Count += kind.from.count
		for _, p := range kind.from.kept {
			var f Finding
			if err := kind.fill(ctx, p, &f); err != nil {
				return err
			}
			kind.to.Shown = append(kind.to.Shown, f)
		}
	}
	return nil
}

func (v *verification) missing(ctx context.Context, p pair, f *Finding) error {
	return v.row(ctx, p.e, func(out *router.Routed) {
		f.ofRow(out)
		if out.Verdict == router.Refused {
			f.Detail = "the router refuses it: " + out.Refusal.Detail
		}
	})
}

func (v *verification) unknown(ctx context.Context, p pair, f *Finding) error {
	_, err := v.message(ctx, p.e, f)
	return err
}

func (v *verification) again(ctx context.Context, p pair, f *Finding) error {
	_, err := v.message(ctx, p.e, f)
	f.Detail = fmt.Sprintf("the event is stored at sequence %d of stream %s already", p.with.ref, v.report.Streams[p.with.stream].Name)
	return err
}

func (v *verification) behind(ctx context.Context, p pair, f *Finding) error {
	var newer Finding
	if _, err := v.message(ctx, p.with, &newer); err != nil {
		return err
	}
	_, err := v.message(ctx, p.e, f)
	f.Detail = fmt.Sprintf("it stands behind position %s at sequence %d of the same aggregate", newer.Position, newer.Sequence)
	return err
}

func (v *verification) different(ctx context.Context, p pair, f *Finding) error {
	msg, err := v.message(ctx, p.e, f)
	if err != nil || msg == nil {
		return err
	}
	return v.row(ctx, p.with, func(out *router.Routed) {
		f.Table = out.Event.Table
		f.Detail = v.compare(int(p.e.stream), msg, out)
	})
}

// compare says in what a message is not what the router makes of the row. It
// repeats no value of a header and nothing of a body.
func (v *verification) compare(stream int, msg *stored, out *router.Routed) string {
	var parts []string
	if stream != out.StreamIndex {
		parts = append(parts, "its route leads to stream "+out.Stream)
	}
	want := &out.Message
	if msg.Subject != want.Subject {
		parts = append(parts, fmt.Sprintf("subject %q, want %q", msg.Subject, want.Subject))
	}
	var names []string
	for i := range want.Headers {
		h := &want.Headers[i]
		if !identity(h.Name) {
			continue
		}
		names = append(names, h.Name)
		switch values := msg.header[h.Name]; {
		case len(values) == 0:
			parts = append(parts, "header "+h.Name+" is missing")
		case len(values) > 1 || values[0] != h.Value:
			parts = append(parts, "header "+h.Name+" differs")
		}
	}
	var more []string
	for name := range msg.header {
		if identity(name) && !slices.Contains(names, name) {
			more = append(more, "header "+name+" is too much")
		}
	}
	slices.Sort(more)
	parts = append(parts, more...)
	switch {
	case len(msg.Body) != len(want.Body):
		parts = append(parts, fmt.Sprintf("body of %d bytes, want %d", len(msg.Body), len(want.Body)))
	case !bytes.Equal(msg.Body, want.Body):
		parts = append(parts, "body differs")
	}
	return strings.Join(parts, "; ")
}

// row reads a row by its place, in the snapshot, and routes it.
func (v *verification) row(ctx context.Context, e entry, use func(*router.Routed)) error {
	oid := v.places[e.ref>>48]
	place := TID{Block: uint32(e.ref >> 16), Offset: uint16(e.ref)} //nolint:gosec // as it was put together
	for _, t := range v.cfg.Router.Tables {
		for row, err := range Rows(ctx, v.tx, t, RowFilter{Table: oid, TIDs: []TID{place}, Unordered: true}) {
			if err != nil {
				return err
			}
			var out router.Routed
			if err := v.router.Route(&row.Row, &out); err != nil {
				return err
			}
			use(&out)
			return nil
		}
	}
	return fmt.Errorf("row %v of table %d is not where it was in the snapshot; report this as a bug", place, oid)
}

func (f *Finding) ofRow(out *router.Routed) {
	e := &out.Event
	f.Event, f.Table, f.EventType, f.CreatedAt = strings.Clone(e.ID), e.Table, strings.Clone(e.EventType), strings.Clone(e.CreatedAt)
	f.Aggregate = e.AggregateType + "/" + e.AggregateID
	f.Stream = out.Stream
}

// message reads a message from the leader; nil where it is gone meanwhile.
func (v *verification) message(ctx context.Context, e entry, f *Finding) (*stored, error) {
	f.Stream, f.Sequence = v.report.Streams[e.stream].Name, e.ref
	msg, err := askMessage(ctx, v.cfg.leader(), f.Stream, e.ref, false)
	if err != nil {
		return nil, err
	}
	if msg == nil {
		f.Detail = "the message is gone meanwhile"
		return nil, nil //nolint:nilnil // as said
	}
	event, _ := envelope.Read(func(name string) string { return one(msg.header, name) }) // what can be read
	f.Event, f.EventType, f.CreatedAt = event.ID, event.EventType, event.CreatedAt
	f.Aggregate = event.AggregateType + "/" + event.AggregateID
	if event.HasPosition {
		f.Position = event.Position.String()
	}
	return msg, nil
}
