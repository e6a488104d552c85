package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/witness"
)

const (
	// jobEvery is how often the session looks for jobs that no notification
	// told of.
	jobEvery = 3 * time.Second
	// noteEvery is how often a job's progress is written.
	noteEvery = time.Second
	// askedEvery is how often a halted relay looks whether it was asked for
	// something.
	askedEvery = 2 * time.Second
)

// jobLoop runs what is asked for beside the reader, one job after the other,
// until ctx ends. A job that a session leaves unfinished is taken up by the
// next one.
func (s *session) jobLoop(ctx context.Context) error {
	for _, st := range s.streams {
		if !st.started {
			return nil // the next session has all streams
		}
	}
	tick := time.NewTicker(jobEvery)
	defer tick.Stop()
	for {
		if err := s.runJobs(ctx); err != nil {
			return ended(ctx, "run what was asked for", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.jobsNow:
		}
	}
}

func (s *session) runJobs(ctx context.Context) error {
	var jobs []job.Job
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		jobs, err = job.Open(ctx, conn, s.cfg.Schema, s.cfg.Source)
		return err
	})
	if err != nil {
		return err
	}
	for i := range jobs {
		j := &jobs[i]
		var run func(context.Context, *job.Job) error
		switch j.Kind {
		case job.Heal:
			if j.ID <= s.seenJob {
				continue
			}
			run = s.askedToHeal
		case job.Replay:
			run = s.replay
		case job.Requeue:
			run = s.requeue
		default:
			continue
		}
		if err := s.runJob(ctx, j, run); err != nil {
			return err
		}
		s.r.seenJob.Store(max(s.r.seenJob.Load(), j.ID))
	}
	return nil
}

// runJob runs one job. It fails the job for what repeating cannot mend; what
// time can mend leaves it to the next look; the rest ends the session.
func (s *session) runJob(ctx context.Context, j *job.Job, run func(context.Context, *job.Job) error) error {
	log := s.log.With(slog.Int64("job", j.ID), slog.String("kind", j.Kind))
	err := run(ctx, j)
	failed, forGood := errors.AsType[*jobError](err)
	later, waits := errors.AsType[*laterError](err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case forGood:
		log.ErrorContext(ctx, "job failed", slog.String("err", failed.Error()))
	case waits:
		log.WarnContext(ctx, "job waits", slog.String("why", later.Error()))
		return nil
	case err != nil:
		return fmt.Errorf("job %d (%s): %w", j.ID, j.Kind, err)
	case j.Kind == job.Heal:
		return nil // the next session ends it
	default:
		p := j.Progress
		log.InfoContext(ctx, "job done", slog.Int64("looked", p.Looked), slog.Int64("stored", p.Stored), slog.Int64("present", p.Present),
			slog.Int64("refused", p.Refused), slog.Int64("skipped", p.Skipped))
	}
	var why error
	if forGood {
		why = failed
	}
	defer s.lookSoon()
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return job.End(ctx, conn, s.cfg.Schema, j, why, s.fence)
	})
}

// lookSoon has the status brought up to date.
func (s *session) lookSoon() {
	select {
	case s.lookNow <- struct{}{}:
	default:
	}
}

// A jobError is why a job can never be done as it was asked for.
type jobError struct{ err error }

func (e *jobError) Error() string { return e.err.Error() }
func (e *jobError) Unwrap() error { return e.err }

func jobFails(format string, args ...any) error { return &jobError{fmt.Errorf(format, args...)} }

// A laterError is why a job cannot go on now.
type laterError struct{ err error }

func (e *laterError) Error() string { return e.err.Error() }
func (e *laterError) Unwrap() error { return e.err }

// ofTable tells what went wrong with the connection on which a job reads tables
// from what is wrong with the job.
func ofTable(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*router.ColumnError](err); ok {
		return &jobError{err}
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "42")):
		return &jobError{err}
	case ok, pgconn.Timeout(err):
		return &laterError{err}
	}
	return err
}

// askedToHeal lets the next session, which begins at once, heal the open gaps
// before anything new.
func (s *session) askedToHeal(ctx context.Context, j *job.Job) error {
	s.seenJob = j.ID
	s.renew(ctx, fmt.Sprintf("job %d asks for gaps to be healed", j.ID))
	return nil
}

// beginJob notes that a job runs. It gives a reader of the events that it has
// sent already, in this session or an earlier one.
func (s *session) beginJob(ctx context.Context, j *job.Job) (sent func(context.Context, func(keyed) error) error, err error) {
	again := len(j.FirstSequence) > 0
	err = s.startJob(ctx, j)
	s.lookSoon()
	origin := originOf(j.Kind, j.ID)
	return func(ctx context.Context, note func(keyed) error) error {
		if !again {
			return nil
		}
		for _, st := range s.streams {
			_, err := st.pub.EachHeader(ctx, j.FirstSequence[st.name], func(m publish.StoredMessage) error {
				if m.Header.Get(envelope.HeaderSource) == s.cfg.Source && m.Header.Get(envelope.HeaderOrigin) == origin {
					return note(keyOf(eventOf(m)))
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("look through stream %q: %w", st.name, err)
			}
		}
		return nil
	}, err
}

// startJob notes that a job runs, and from where its events are to be looked for.
func (s *session) startJob(ctx context.Context, j *job.Job) error {
	ends := s.ends()
	if len(j.FirstSequence) == 0 {
		j.FirstSequence = ends
	}
	for name, before := range j.FirstSequence {
		if end, some := ends[name]; some && end < before {
			j.FirstSequence[name] = end // the stream has lost what was behind
		}
	}
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return job.Start(ctx, conn, s.cfg.Schema, j, s.id, s.fence)
	})
}

// A coverage says what subjects each stream takes, by its index. What none takes
// must not be sent: everything live would have to wait behind it.
type coverage []publish.StreamFacts

func (s *session) coverage(ctx context.Context) (coverage, error) {
	c := make(coverage, len(s.streams))
	for i, st := range s.streams {
		info, err := s.nats.StreamInfo(ctx, st.name)
		if err != nil {
			return nil, &laterError{fmt.Errorf("ask for the subjects of stream %q: %w", st.name, err)}
		}
		c[i] = info.Facts
	}
	return c, nil
}

// has is true for what is not published at all.
func (c coverage) has(routed *router.Routed) bool {
	return routed.Verdict != router.Publish || c[routed.StreamIndex].Covers(routed.Message.Subject)
}

// eventOf is the id of the event that a message carries.
func eventOf(m publish.StoredMessage) string {
	if id := m.Header.Get(envelope.HeaderEventID); id != "" {
		return id
	}
	return m.Header.Get(envelope.HeaderMsgID)
}

// noteJob writes how far a job is.
func (s *session) noteJob(ctx context.Context, j *job.Job) error {
	s.lookSoon()
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return job.Note(ctx, conn, s.cfg.Schema, j, s.fence)
	})
}

// awaitDelivered waits until everything that tx sees is delivered: what the slot has
// yet to send must not be sent before its turn.
func (s *session) awaitDelivered(ctx context.Context, tx pgx.Tx) error {
	_, at, err := witness.Capture(ctx, tx)
	if err != nil {
		return err
	}
	const patience = 30 * time.Second // for so long vacuum may be held up by it
	ended := time.NewTimer(patience)
	defer ended.Stop()
	tick := time.NewTicker(confirmEvery)
	defer tick.Stop()
	for lsn(&s.confirmed) < at {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ended.C:
			return &laterError{fmt.Errorf("what was committed up to LSN %v is not delivered yet: confirmed is %v", at, lsn(&s.confirmed))}
		case <-tick.C:
		}
	}
	return nil
}

// waitAsked waits for d at most: it ends when something is asked for that no
// session has seen. Halted relays hold no connection, so a short one looks.
func (r *Relay) waitAsked(ctx context.Context, d time.Duration) {
	until := time.Now().Add(d)
	for ctx.Err() == nil && time.Until(until) > 0 {
		r.wait(ctx, min(askedEvery, time.Until(until)))
		if newest, err := r.newestJob(ctx); err == nil && newest > r.seenJob.Load() {
			r.seenJob.Store(newest)
			r.log.InfoContext(ctx, "looking again at once", slog.String("why", fmt.Sprintf("job %d was asked for", newest)))
			return
		}
	}
}

// newestJob gives the number of the newest open job, 0 where there is none.
func (r *Relay) newestJob(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	conn, err := r.cfg.open(ctx, "asked")
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	jobs, err := job.Open(ctx, conn, r.cfg.Schema, r.cfg.Source)
	if err != nil || len(jobs) == 0 {
		return 0, err
	}
	return jobs[len(jobs)-1].ID, nil
}
