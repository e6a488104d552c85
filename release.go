package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
)

// releaseBatch is how many parked letters are in memory at a time;
// deadletter.Waiting bounds their bytes as well.
const releaseBatch = 100

// releasedBy is who resolves what is released.
const releasedBy = "walrelay"

// reasonRowGone is the dead letters' word for an event of which only the row
// had the payload.
const reasonRowGone router.Reason = "row_gone"

// releaseLoop publishes what is parked once the first letter of its aggregate
// is dealt with. It runs until ctx ends.
func (s *session) releaseLoop(ctx context.Context) error {
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	told := map[int64]string{}
	for {
		due, err := s.dueReleases(ctx)
		if err != nil {
			return ended(ctx, "look for what is to be released", err)
		}
		for _, first := range due {
			err := s.release(ctx, first)
			if wait, ok := errors.AsType[*waitError](err); ok {
				if told[first] != wait.why {
					s.log.WarnContext(ctx, "what is parked cannot be released yet", slog.Int64("dead_letter", first), slog.String("cause", wait.why))
				}
				told[first] = wait.why
				continue
			}
			if err != nil {
				return ended(ctx, fmt.Sprintf("release what is parked behind dead letter %d", first), err)
			}
			delete(told, first)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// A waitError says that a release has to wait.
type waitError struct{ why string }

func (e *waitError) Error() string { return e.why }

// dueReleases gives the first letters of parked aggregates that are dealt with.
func (s *session) dueReleases(ctx context.Context) (due []int64, err error) {
	s.parking.mu.Lock()
	first := slices.Collect(maps.Values(s.parking.first))
	s.parking.mu.Unlock()
	if len(first) == 0 {
		return nil, nil
	}
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		due, err = deadletter.Resolved(ctx, conn, s.cfg.Schema, first)
		return err
	})
	return due, err
}

// A release publishes what is parked behind one letter.
type release struct {
	s      *session
	first  int64
	key    keyed
	job    job.Job
	repair *repair
	routes *router.Router
	tables map[string]*letterTable
	stored map[string]uint64 // sequences of what this job has stored, by message id
	read   map[string]uint64 // up to where each stream was looked through for them
}

func (s *session) release(ctx context.Context, first int64) error {
	r := &release{s: s, first: first, tables: map[string]*letterTable{}, stored: map[string]uint64{}}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if r.repair != nil {
		defer r.repair.end()
	}
	for {
		waiting, err := r.waiting(ctx, releaseBatch)
		if err != nil {
			return err
		}
		if len(waiting) > 0 {
			if stop, err := r.batch(ctx, waiting); stop || err != nil {
				return err
			}
			continue
		}
		free, err := r.free(ctx)
		if free || err != nil {
			return err
		}
	}
}

// begin finds the job of an earlier session, or makes one. Where nothing waits
// there is none.
func (r *release) begin(ctx context.Context) error {
	s := r.s
	waiting, err := r.waiting(ctx, 1)
	if err != nil {
		return err
	}
	var letter deadletter.Letter
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if letter, err = deadletter.Get(ctx, conn, s.cfg.Schema, r.first); err != nil {
			return err
		}
		open, err := job.Open(ctx, conn, s.cfg.Schema, s.cfg.Source)
		if err != nil {
			return err
		}
		for i := range open {
			a := &open[i].Arguments
			if open[i].Kind == job.Release && a.AggregateType == letter.AggregateType && a.AggregateID == letter.AggregateID {
				r.job = open[i]
			}
		}
		if r.job.ID > 0 || len(waiting) == 0 {
			return nil
		}
		r.job.Arguments = job.Arguments{AggregateType: letter.AggregateType, AggregateID: letter.AggregateID, Letters: []int64{r.first}}
		r.job.ID, err = job.Ask(ctx, conn, s.cfg.Schema, s.cfg.Source, job.Release, r.job.Arguments, releasedBy)
		return err
	})
	if err != nil {
		return err
	}
	r.key = keyOf(letter.AggregateType, letter.AggregateID)
	if r.job.ID == 0 {
		return nil
	}
	return r.start(ctx)
}

// start says that the job runs, and looks for what it has stored before a crash.
func (r *release) start(ctx context.Context) (err error) {
	s := r.s
	ends := make(map[string]uint64, len(s.streams))
	for _, st := range s.streams {
		ends[st.name] = st.stored().LastSeq
	}
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return job.Start(ctx, conn, s.cfg.Schema, &r.job, s.id, ends, s.fence)
	})
	if err != nil {
		return err
	}
	if r.routes, err = s.ownRouter(0); err != nil {
		return err
	}
	r.repair = s.newRepair(job.Release, r.job.ID, false)
	r.repair.refuse = r.refusedByStream
	r.read = maps.Clone(r.job.FirstSequence)
	s.log.InfoContext(ctx, "releasing what is parked", slog.Int64("dead_letter", r.first), slog.Int64("job", r.job.ID))
	return r.look(ctx, r.s.streams...)
}

// look reads from streams what this job has stored. Where a stream has removed
// it since, its sequence is not known.
func (r *release) look(ctx context.Context, streams ...*stream) error {
	for _, st := range streams {
		if !st.started {
			continue // what goes there waits
		}
		last, err := st.pub.EachHeader(ctx, r.read[st.name], func(m publish.StoredMessage) error {
			if m.Header.Get(envelope.HeaderSource) == r.s.cfg.Source && m.Header.Get(envelope.HeaderOrigin) == r.repair.origin {
				r.stored[m.Header.Get(envelope.HeaderMsgID)] = m.Seq
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("look through stream %q: %w", st.name, err)
		}
		r.read[st.name] = last
	}
	return nil
}

func (r *release) waiting(ctx context.Context, most int) (found []deadletter.Letter, err error) {
	err = r.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		found, err = deadletter.Waiting(ctx, conn, r.s.cfg.Schema, r.first, most)
		return err
	})
	return found, err
}

// batch publishes letters in their order and notes what became of them. It
// stops where one is refused: the rest waits behind that one from then on.
func (r *release) batch(ctx context.Context, waiting []deadletter.Letter) (stop bool, err error) {
	var done []deadletter.Resolution
	var routed router.Routed
	stream := -1 // that the others go to: what goes elsewhere waits until they are stored
	for i := range waiting {
		l := &waiting[i]
		if _, before := r.stored[l.EventID]; before && l.EventID != "" {
			done = append(done, deadletter.Resolution{ID: l.ID, How: deadletter.Released})
			continue
		}
		row, why, err := r.route(ctx, l, &routed)
		wait, later := errors.AsType[*waitError](err)
		if err != nil && !later {
			return true, err
		}
		if len(done) > 0 && (later || routed.Verdict != router.Publish || stream >= 0 && routed.StreamIndex != stream) {
			break // in a batch of its own
		}
		switch {
		case later:
			return true, wait
		case routed.Verdict == router.Refused:
			return true, r.refuse(ctx, l.ID, string(why.Reason), why.Detail)
		case routed.Verdict == router.Skip:
			return false, r.settle(ctx, stream, waiting, append(done, deadletter.Resolution{ID: l.ID, How: deadletter.Skipped}))
		}
		stream = routed.StreamIndex
		if err := r.repair.publish(ctx, row, &routed); err != nil {
			return true, err
		}
		done = append(done, deadletter.Resolution{ID: l.ID, How: deadletter.Released})
	}
	return false, r.settle(ctx, stream, waiting, done)
}

// settle waits until what was sent is stored, and notes where. All of it went to
// one stream, if to any: to look through the others would take longer than all
// the rest.
func (r *release) settle(ctx context.Context, stream int, waiting []deadletter.Letter, done []deadletter.Resolution) error {
	if len(done) == 0 {
		return nil
	}
	if err := r.repair.drain(ctx); err != nil {
		return err
	}
	if stream >= 0 {
		if err := r.look(ctx, r.s.streams[stream]); err != nil {
			return err
		}
	}
	for i := range done { // they are the first ones of those that waited
		done[i].Sequence = r.stored[waiting[i].EventID]
		delete(r.stored, waiting[i].EventID)
	}
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

// refuse makes a letter the first one: what waited with it waits behind it.
func (r *release) refuse(ctx context.Context, id int64, reason, detail string) error {
	s := r.s
	s.parking.mu.Lock()
	defer s.parking.mu.Unlock()
	r.job.Progress.Refused++
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := deadletter.Refuse(ctx, conn, s.cfg.Schema, id, r.first, reason, detail, s.fence); err != nil {
			return err
		}
		return job.End(ctx, conn, s.cfg.Schema, &r.job, nil, s.fence)
	})
	if err != nil {
		return err
	}
	s.parking.first[r.key] = id
	s.log.WarnContext(ctx, "a parked event was refused when its turn came; the others wait behind it", slog.Int64("dead_letter", id),
		slog.String("reason", reason), slog.String("detail", detail))
	return nil
}

// refusedByStream is told of a released event that the stream can never store.
// What was sent behind it must not be: the session ends, and the next one goes
// on with what is stored by then.
func (r *release) refusedByStream(ctx context.Context, l deadletter.Letter) error {
	waiting, err := r.waiting(ctx, releaseBatch)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(waiting, func(w deadletter.Letter) bool { return w.EventID == l.EventID })
	if at < 0 {
		return fmt.Errorf("event %q was refused and is not among those that wait behind dead letter %d", l.EventID, r.first)
	}
	// What stands before it in the stream is stored, and is noted first: it
	// waits behind nothing.
	done := make([]deadletter.Resolution, at)
	for i := range done {
		done[i] = deadletter.Resolution{ID: waiting[i].ID, How: deadletter.Released}
	}
	err = r.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return deadletter.Settle(ctx, conn, r.s.cfg.Schema, done, releasedBy, r.s.fence)
	})
	if err == nil {
		err = r.refuse(ctx, waiting[at].ID, l.Reason, l.Error)
	}
	if err != nil {
		return err
	}
	return r.s.restart(ctx, "a released event was refused by its stream; the others wait behind it")
}

// free ends the parking if nothing waits any more. The reader waits meanwhile:
// what it has parked is seen here, and what it reads later goes to the stream,
// behind all that was released.
func (r *release) free(ctx context.Context) (free bool, err error) {
	s := r.s
	s.parking.mu.Lock()
	defer s.parking.mu.Unlock()
	left, err := r.waiting(ctx, 1)
	if err != nil || len(left) > 0 {
		return false, err
	}
	delete(s.parking.first, r.key)
	s.log.InfoContext(ctx, "aggregate is no longer parked", slog.Int64("dead_letter", r.first))
	if r.job.ID == 0 {
		return true, nil
	}
	return true, s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return job.End(ctx, conn, s.cfg.Schema, &r.job, nil, s.fence)
	})
}
