package walrelay

import (
	"context"
	"slices"

	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// endName is the check that needs both sides.
const endName = "end of the stream"

// compare looks at what only both sides together tell.
func (d *databaseDoctor) compare(ctx context.Context, b *brokerDoctor) {
	if !d.looked {
		return
	}
	var unsure error
	if slices.ContainsFunc(b.chains(), func(s *streamDoctor) bool { return d.endOf(s) != nil }) {
		// The two were looked at in no order. A relay that went on meanwhile
		// makes that look like a loss, or like another history.
		unsure = d.lookInOrder(ctx, b)
	}
	for _, s := range b.chains() {
		switch err := d.endOf(s); {
		case err != nil && unsure != nil:
			s.unknown(endName, plain(unsure))
		case err != nil || d.slot.Exists:
			s.judge(endName, s.end(), err, "the relay goes on behind the last event of its own")
		}
	}
}

// chains are the streams that were seen and whose end is a mark.
func (d *brokerDoctor) chains() []*streamDoctor {
	var list []*streamDoctor
	for _, s := range d.streams {
		if s.seen && !s.Shared {
			list = append(list, s)
		}
	}
	return list
}

// endOf says what is wrong with the end of a stream, by what the database
// remembers.
func (d *databaseDoctor) endOf(s *streamDoctor) error {
	switch {
	case len(d.witness.Streams) == 0 && s.tail.Ours:
		return forgottenBy(d.cfg.Source, s.Name, s.tail)
	case !d.slot.Exists:
		return nil
	}
	w := d.witness.Streams[s.Name]
	known := dedup.Known{Created: w.Created, LastSeq: w.LastSeq, Position: w.Position, MsgID: w.MsgID}
	at := dedup.Slot{Confirmed: d.slot.Confirmed, WALEnd: d.slot.ServerWALEnd, Epoch: max(d.epoch, 1)}
	_, err := dedup.Start(s.Name, markTail(s.tail), known, at)
	return err
}

// lookInOrder looks at both sides again: at what the database remembers before
// the streams' ends, and at the end of its log after them.
func (d *databaseDoctor) lookInOrder(ctx context.Context, b *brokerDoctor) error {
	ctx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	conn, err := d.open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has done its work
	broker, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer broker.Close()
	found, err := witness.Read(ctx, conn, d.cfg.Schema, d.cfg.Source)
	if err != nil {
		return err
	}
	info, err := slot.Inspect(ctx, conn, d.cfg.Slot)
	if err != nil {
		return err
	}
	tails := map[*streamDoctor]publish.Tail{}
	for _, s := range b.chains() {
		if tails[s], _, err = broker.Look(ctx, s.Name, s.cfg.Source); err != nil {
			return err
		}
	}
	after, err := slot.Inspect(ctx, conn, d.cfg.Slot)
	if err != nil {
		return err
	}
	info.ServerWALEnd = after.ServerWALEnd
	d.witness, d.slot = found, info
	for s, tail := range tails {
		s.tail = tail
	}
	return nil
}
