package reconcile

import (
	"context"
	"time"
)

// judge matches, looks again where a finding could have another reason, and
// fills the report.
func (v *verification) judge(ctx context.Context) error {
	v.phase.Store("comparing")
	m := &matcher{proven: v.proof.confirmed, since: v.judgedSince(), started: v.clock.tick(v.started), limit: v.cfg.Show}
	match := func() error {
		m.removed = m.removed[:0]
		for _, r := range v.streams {
			until := r.removedUntil()
			r.report.RemovedUntil = until
			if !until.IsZero() {
				until = until.Add(removalMargin)
			}
			m.removed = append(m.removed, v.clock.tick(until))
		}
		return m.run(v.rows, v.letters, v.events)
	}
	if err := match(); err != nil {
		return err
	}
	again := false
	if m.out.missing.count > 0 {
		// A row's created_at is what its writer says: look at the rest of the
		// streams before a row is called missing.
		more, err := v.readRest(ctx)
		if err != nil {
			return err
		}
		again = more
	}
	if m.out.unknown.count > 0 {
		if err := v.readNewer(ctx); err != nil {
			return err
		}
		again = true
	}
	if again {
		if err := match(); err != nil {
			return err
		}
	}
	order, err := v.disorder(ctx)
	if err != nil {
		return err
	}
	v.report.JudgedSince = v.clock.time(m.since)
	v.fill(&m.out)
	return v.details(ctx, &m.out, &order)
}

// judgedSince is when an event must have been written for its row to be there
// still: not before the oldest row, not before what retention may have deleted.
func (v *verification) judgedSince() tick {
	if v.oldest == 0 {
		return 0
	}
	since := max(v.oldest, v.clock.tick(v.at.Add(-v.cfg.Retention))) + 1
	if v.olderToo {
		since = v.clock.tick(v.at.Add(-v.cfg.Retention)) + 1
	}
	if !v.cfg.Since.IsZero() {
		since = max(since, v.clock.tick(v.cfg.Since))
	}
	return since
}

// disorder looks at each aggregate of the streams in which positions do not
// only rise.
func (v *verification) disorder(ctx context.Context) (all first, err error) {
	for _, r := range v.streams {
		if !r.disorder {
			continue
		}
		v.phase.Store("looking at the order of stream " + r.report.Name)
		found, err := r.look(ctx)
		if err != nil {
			return all, err
		}
		all.count += found.count
		all.kept = append(all.kept, found.kept...)
	}
	all.trim(v.cfg.Show)
	return all, nil
}

// look reads the stream once more for the order of its aggregates.
func (r *streamReader) look(ctx context.Context) (first, error) {
	again := &streamReader{v: r.v, index: r.index, report: r.report, state: r.state, order: &spill{}}
	defer again.order.close()
	if err := again.read(ctx, max(r.from, r.state.State.FirstSeq), time.Time{}, r.state.State.LastSeq); err != nil {
		return first{}, err
	}
	return disordered(again.order, uint16(r.index), r.v.cfg.Show) //nolint:gosec // streams are few
}

// fill takes over the counts.
func (v *verification) fill(m *matched) {
	r := &v.report
	r.OnTheirWay, r.DeadLettered, r.Skipped, r.Unrouted = m.onTheirWay, m.deadLettered, m.skipped, m.unrouted
	r.NotJudged, r.Replayed, r.NotCompared = m.notJudged, m.replayed, m.notCompared
	for i, gone := range m.gone {
		// No more rows can be among the removed than were removed.
		certain := gone - min(gone, r.Streams[i].Removed)
		r.NotVerifiable += gone - certain
		if certain > 0 {
			r.Missing.Count += certain
			v.note("%d of the missing rows cannot be named: %d rows of stream %s are not there, and it has removed only %d messages",
				certain, gone, r.Streams[i].Name, r.Streams[i].Removed)
		}
	}
	switch {
	case v.proof.confirmed:
		r.Proof = ProofConfirmed
	case v.proof.snapshot != "":
		r.Proof = ProofSnapshot
		v.note("%s: rows that are nowhere count as missing only where the proven snapshot of %s saw them, else as on their way",
			v.proof.why, v.proof.at.UTC().Format(time.RFC3339))
	default:
		r.Proof = ProofNone
		v.note("%s, and there is no proven snapshot: rows that are nowhere count as on their way", v.proof.why)
	}
	if m.beforeStart > 0 {
		v.note("%d of the missing rows were written before source %s first ran, at %s: what was there before its slot was made is sent by a backfill alone",
			m.beforeStart, v.cfg.Source, v.started.UTC().Format(time.RFC3339))
	}
	if m.notJudged > 0 && r.JudgedSince.IsZero() {
		v.note("no row tells from when on rows are kept, so that messages without a row were not judged")
	}
}
