package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/job"
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

// dueReleases gives the first letters of parked aggregates of which nothing is to
// be dealt with any more.
func (s *session) dueReleases(ctx context.Context) (due []int64, err error) {
	s.parking.mu.Lock()
	first := make([]int64, 0, len(s.parking.at))
	for _, at := range s.parking.at {
		first = append(first, at.first)
	}
	s.parking.mu.Unlock()
	if len(first) == 0 {
		return nil, nil
	}
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		due, err = deadletter.Due(ctx, conn, s.cfg.Schema, first)
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
	alone  int // of so many letters those of one stream at a time are under way

	mu     sync.Mutex        // a publisher that reports a refusal comes from its own goroutine
	mixed  bool              // what is under way goes to several streams
	over   bool              // one was refused
	stored map[string]uint64 // sequences of what this job has stored and not noted yet, by event id
	read   map[string]uint64 // up to where each stream was looked through for them
	looked map[string]bool   // the streams that were, in this session
}

func (s *session) release(ctx context.Context, first int64) error {
	r := &release{s: s, first: first, tables: map[string]*letterTable{}, stored: map[string]uint64{}, looked: map[string]bool{}}
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
		r.job.State = job.Asked
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

// start says that the job runs, and notes what an earlier session has stored.
// Where that session ended in the middle, one of the next letters may be the
// reason: until they are through, it is to be seen what stands before it.
func (r *release) start(ctx context.Context) (err error) {
	s := r.s
	if r.job.State != job.Asked {
		r.alone = releaseBatch
	}
	if err := s.startJob(ctx, &r.job); err != nil {
		return err
	}
	if r.routes, err = s.ownRouter(0); err != nil {
		return err
	}
	r.repair = s.newRepair(job.Release, r.job.ID, false)
	r.repair.refuse = r.refusedByStream
	r.read = r.job.FirstSequence
	s.log.InfoContext(ctx, "releasing what is parked", slog.Int64("dead_letter", r.first), slog.Int64("job", r.job.ID))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, st := range s.streams {
		if !st.started {
			continue // what goes there waits
		}
		if _, err := r.recall(ctx, st); err != nil {
			return err
		}
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
	delete(s.parking.at, r.key)
	s.log.InfoContext(ctx, "aggregate is no longer parked", slog.Int64("dead_letter", r.first))
	if r.job.ID == 0 {
		return true, nil
	}
	return true, s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return job.End(ctx, conn, s.cfg.Schema, &r.job, nil, s.fence)
	})
}
