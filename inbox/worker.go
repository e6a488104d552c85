package inbox

import (
	"context"
	"log/slog"
	"time"
)

// work applies events until the lanes are closed.
func (s *session) work(ctx context.Context, worker int) error {
	for {
		jobs := s.lanes.take(s.c.cfg.Batch)
		if len(jobs) == 0 {
			return nil
		}
		if err := s.do(ctx, worker, jobs); err != nil {
			return errUnless(ctx, err)
		}
	}
}

// do applies the events of jobs, and ends the jobs.
func (s *session) do(ctx context.Context, worker int, jobs []job) error {
	if jobs[0].parked != 0 {
		return s.doParked(ctx, worker, jobs[0])
	}
	var all []*entry
	for _, j := range jobs {
		for _, e := range j.entries {
			present, err := s.load(ctx, e)
			if err != nil {
				s.finish(jobs, nil)
				return err
			}
			if !present {
				s.lanes.done(e)
				continue
			}
			e.worker = worker
			all = append(all, e)
		}
	}
	blocked := map[*lane]time.Duration{}
	err := s.doAll(ctx, all, blocked)
	s.finish(jobs, blocked)
	s.count()
	return err
}

func (s *session) finish(jobs []job, blocked map[*lane]time.Duration) {
	for _, j := range jobs {
		s.lanes.finish(j.lane, blocked[j.lane])
	}
}

// doAll applies events, together where that is possible, and notes which lanes
// are blocked by a failure.
func (s *session) doAll(ctx context.Context, all []*entry, blocked map[*lane]time.Duration) error {
	// What is odd in any way goes by itself.
	together := len(all) > 1
	for _, e := range all {
		if e.foreign != nil || e.suspect || e.Deliveries > crashTolerance+1 || s.c.handlers[e.Type] == nil {
			together = false
		}
	}
	var results []result
	if together {
		results, together = s.tryBatch(ctx, all)
	}
	for i, e := range all {
		if _, is := blocked[e.lane]; is && s.lanes.ordered {
			continue
		}
		var v verdict
		if together {
			first := results[i]
			tries := 0
			v = s.judge(ctx, e, func() result {
				tries++
				if tries == 1 {
					return first
				}
				return s.once(ctx, e)
			})
		} else {
			v = s.handle(ctx, e)
		}
		if v.end != nil {
			return v.end
		}
		s.settle(ctx, e, v, blocked)
	}
	return nil
}

// settle tells JetStream what became of a message.
func (s *session) settle(ctx context.Context, e *entry, v verdict, blocked map[*lane]time.Duration) {
	msg := s.lanes.delivery(e)
	var err error
	switch {
	case v.giveBack, v.deferred:
		return // it stays in its lane
	case v.outcome == Failed && s.lanes.ordered:
		// It stays here: an ack deadline that is extended keeps the order
		// that a negative ack would lose.
		blocked[e.lane] = max(v.retry, time.Millisecond)
		return
	case v.outcome == Failed:
		if v.uncounted {
			s.excuse(e.seq, false)
		}
		if msg != nil {
			err = msg.NakWithDelay(max(v.retry, time.Millisecond))
		}
		s.lanes.done(e)
	default:
		s.c.tally(ctx, e, v.outcome)
		s.excuse(e.seq, true)
		switch {
		case msg == nil:
		case v.outcome == DeadLettered:
			err = msg.TermWithReason(v.reason)
		default:
			err = msg.Ack()
		}
		s.lanes.done(e)
	}
	if err != nil {
		// The message comes again, and the receipt tells.
		s.c.log.DebugContext(ctx, "message not acknowledged", slog.Uint64("sequence", e.seq), slog.Any("err", err))
	}
}

// tally counts what a message came to.
func (c *Consumer) tally(ctx context.Context, e *entry, o Outcome) {
	switch o {
	case Applied:
		c.count.applied.Add(1)
		c.tele.applied(ctx, e.Message)
		if e.recovered {
			c.count.recovered.Add(1)
		}
	case Duplicate:
		c.count.duplicates.Add(1)
	case Skipped:
		c.count.skipped.Add(1)
	case DeadLettered:
		return // counted where it was written
	case Failed:
		return
	}
	c.tele.done(ctx, o)
	c.log.DebugContext(ctx, "event done", slog.String("event_id", e.ID), slog.String("outcome", o.String()),
		slog.Uint64("sequence", e.Sequence))
}
