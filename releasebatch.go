package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
)

// batch publishes letters in their order, to several streams at once, and notes
// what became of them. It stops where one is refused: the rest waits behind that
// one from then on.
func (r *release) batch(ctx context.Context, waiting []deadletter.Letter) (stop bool, err error) {
	var done []deadletter.Resolution
	var routed router.Routed
	var to []*stream // that something is under way to
	for i := range waiting {
		l := &waiting[i]
		row, why, err := r.route(ctx, l, &routed)
		wait, later := errors.AsType[*waitError](err)
		if err != nil && !later {
			return true, err
		}
		publishes := !later && routed.Verdict == router.Publish
		if len(done) > 0 && (!publishes || !r.joins(routed.StreamIndex, to)) {
			break // in a batch of its own
		}
		switch {
		case later:
			return true, wait
		case routed.Verdict == router.Refused:
			return true, r.refuse(ctx, l.ID, string(why.Reason), why.Detail)
		case routed.Verdict == router.Skip:
			return false, r.settle(ctx, nil, waiting, append(done, deadletter.Resolution{ID: l.ID, How: deadletter.Skipped}))
		}
		if st := r.s.streams[routed.StreamIndex]; !slices.Contains(to, st) {
			if recalled, err := r.open(ctx, st, len(to) > 0); recalled || err != nil {
				return false, err
			}
			to = append(to, st)
		}
		if err := r.repair.publishAs(ctx, row, &routed, l.Late); err != nil {
			return true, err
		}
		done = append(done, deadletter.Resolution{ID: l.ID, How: deadletter.Released})
	}
	return false, r.settle(ctx, to, waiting, done)
}

// joins says whether something may go to a stream while other things are under
// way to these.
func (r *release) joins(stream int, to []*stream) bool {
	st := r.s.streams[stream]
	if slices.Contains(to, st) {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alone == 0 && r.looked[st.name]
}

// open is called before the first message of a batch goes to a stream. Where it
// says that letters turned out to be stored, what waits is to be read again.
func (r *release) open(ctx context.Context, st *stream, others bool) (recalled bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		<-ctx.Done() // the session ends
		return false, context.Cause(ctx)
	}
	r.mixed = others
	if r.looked[st.name] {
		return false, nil
	}
	return r.recall(ctx, st)
}

// settle waits until what was sent to these streams is stored, and notes where.
func (r *release) settle(ctx context.Context, to []*stream, waiting []deadletter.Letter, done []deadletter.Resolution) error {
	if len(done) == 0 {
		return nil
	}
	if err := r.repair.drain(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mixed = false
	for _, st := range to {
		if err := r.look(ctx, st); err != nil {
			return err
		}
	}
	for i := range done { // they are the first ones of those that waited
		done[i].Sequence = r.stored[waiting[i].EventID]
		delete(r.stored, waiting[i].EventID)
	}
	r.alone = max(0, r.alone-len(done))
	return r.note(ctx, done)
}

// note makes it known what became of letters.
func (r *release) note(ctx context.Context, done []deadletter.Resolution) error {
	r.job.Progress.Looked += int64(len(done))
	r.job.Progress.Sent = r.repair.stored()
	r.job.Progress.Stored += int64(len(done))
	return r.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := deadletter.Settle(ctx, conn, r.s.cfg.Schema, done, releasedBy, r.s.fence); err != nil {
			return err
		}
		return job.Note(ctx, conn, r.s.cfg.Schema, &r.job, r.s.fence)
	})
}

// look reads from a stream what this job has stored. Where the stream has removed
// it since, its sequence is not known. The mutex is held.
func (r *release) look(ctx context.Context, st *stream) error {
	last, err := st.pub.EachHeader(ctx, r.read[st.name], func(m publish.StoredMessage) error {
		if m.Header.Get(envelope.HeaderSource) == r.s.cfg.Source && m.Header.Get(envelope.HeaderOrigin) == r.repair.origin {
			r.stored[eventOf(m)] = m.Seq
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look through stream %q: %w", st.name, err)
	}
	r.read[st.name] = last
	r.looked[st.name] = true
	return nil
}

// recall notes of letters that still wait that the stream has them, wherever
// they stand: they need not wait for anything. The mutex is held.
func (r *release) recall(ctx context.Context, st *stream) (some bool, err error) {
	if err := r.look(ctx, st); err != nil || len(r.stored) == 0 {
		return false, err
	}
	waiting, err := r.among(ctx, slices.Collect(maps.Keys(r.stored)))
	if err != nil {
		return false, err
	}
	done := make([]deadletter.Resolution, 0, len(waiting))
	for event, id := range waiting {
		done = append(done, deadletter.Resolution{ID: id, How: deadletter.Released, Sequence: r.stored[event]})
	}
	clear(r.stored)
	if len(done) == 0 {
		return false, nil
	}
	return true, r.note(ctx, done)
}

// among gives those of the events that wait, and their letters.
func (r *release) among(ctx context.Context, events []string) (found map[string]int64, err error) {
	err = r.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		found, err = deadletter.WaitingOf(ctx, conn, r.s.cfg.Schema, r.first, events)
		return err
	})
	return found, err
}

// refusedByStream is told of a released event that the stream can never store.
// What was sent behind it must not be: the session ends, and the next one goes
// on with what is stored by then. If something is under way to other streams,
// nobody knows yet whether what stands before the event is stored: then the next
// session meets it again, with nothing else under way.
func (r *release) refusedByStream(ctx context.Context, l deadletter.Letter) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.mixed {
		return r.s.restart(ctx, "a released event was refused by its stream while others were under way to other streams")
	}
	at := slices.IndexFunc(r.s.streams, func(st *stream) bool { return st.name == l.Stream })
	if _, err := r.recall(ctx, r.s.streams[at]); err != nil {
		return err
	}
	found, err := r.among(ctx, []string{l.EventID})
	if err != nil {
		return err
	}
	id, waits := found[l.EventID]
	if !waits {
		return fmt.Errorf("event %q was refused and is not among those that wait behind dead letter %d", l.EventID, r.first)
	}
	if err := r.refuse(ctx, id, l.Reason, l.Error); err != nil {
		return err
	}
	return r.s.restart(ctx, "a released event was refused by its stream; the others wait behind it")
}

// refuse has the aggregate wait until this letter is dealt with.
func (r *release) refuse(ctx context.Context, id int64, reason, detail string) error {
	s := r.s
	s.parking.mu.Lock()
	defer s.parking.mu.Unlock()
	r.job.Progress.Refused++
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := deadletter.Refuse(ctx, conn, s.cfg.Schema, id, reason, detail, s.fence); err != nil {
			return err
		}
		return job.End(ctx, conn, s.cfg.Schema, &r.job, nil, s.fence)
	})
	if err != nil {
		return err
	}
	s.parking.at[r.key] = parkedAt{r.first, id}
	s.log.WarnContext(ctx, "a parked event was refused when its turn came; the others wait behind it", slog.Int64("dead_letter", id),
		slog.String("reason", reason), slog.String("detail", detail))
	return nil
}

// route makes a message of a letter with the configuration of now.
func (r *release) route(ctx context.Context, l *deadletter.Letter, routed *router.Routed) (row *router.Row, why router.Refusal, err error) {
	*routed = router.Routed{}
	row, gone, err := r.row(ctx, l)
	if err != nil {
		return nil, why, err
	}
	if gone != "" {
		routed.Verdict = router.Refused
		return nil, router.Refusal{Reason: reasonRowGone, Detail: gone}, nil
	}
	if err := r.routes.Route(row, routed); err != nil {
		return nil, why, &waitError{err.Error()}
	}
	switch routed.Verdict {
	case router.Publish:
		if st := r.s.streams[routed.StreamIndex]; !st.started || st.behind.Load() {
			return nil, why, &waitError{fmt.Sprintf("stream %q is left behind", routed.Stream)}
		}
		if l.EventID != "" {
			routed.Message.MsgID = l.EventID // its identity, whatever the table is called by now
		}
	case router.Unrouted, router.NotOutbox:
		return nil, why, &waitError{fmt.Sprintf("event type %q of table %s matches no route; add one for it", l.EventType, l.Table)}
	case router.Refused, router.Skip:
	}
	return row, routed.Refusal, nil
}
