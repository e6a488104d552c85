package publish

import (
	"context"
	"errors"
	"time"
)

var errNotBegun = errors.New("run a stream before Begin")

// Run keeps the chain going: it watches for answers that do not come, settles,
// resyncs and sends again, for ever. It returns nil when ctx ends, or what ends
// the session: a [*GapError], a [*SecondWriterError], or the error of Refused.
// When it has returned, Stored is not called any more.
func (s *Stream) Run(ctx context.Context) error {
	return s.serve(ctx, s, s.run)
}

// serve lets l hear of the connection while run runs, and hangs up.
func (s *publisher) serve(ctx context.Context, l listener, run func(context.Context) error) error {
	s.conn.register(l)
	defer s.conn.unregister(l)
	err := run(ctx)
	s.stop(ctx, err)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Stream) run(ctx context.Context) error {
	s.mu.Lock()
	begun := s.state == StateResync
	s.mu.Unlock()
	if !begun {
		return errNotBegun
	}
	r := recovery{Stream: s}
	tick := time.NewTicker(max(s.cfg.AckTimeout/4, time.Millisecond))
	defer tick.Stop()
	for {
		if err := r.recover(ctx); err != nil {
			return err
		}
		for !s.stalled() {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-s.kick:
			case <-tick.C:
			}
			s.resumed(ctx)
		}
	}
}

// stalled says whether sending has stopped, and stops it if the oldest message
// has waited for its answer too long.
func (s *Stream) stalled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sending() && s.w.inFlight() > 0 && time.Since(s.headSince) >= s.cfg.AckTimeout {
		s.count.Timeouts++
		s.fail(&failure{
			class: ClassResync, rank: rankConsequence,
			reason: "no acknowledgement within " + s.cfg.AckTimeout.String() + ": the outcome is unknown",
		})
	}
	return !s.sending()
}

// stop hangs up. It waits for a call of Stored that is under way.
func (s *publisher) stop(ctx context.Context, err error) {
	s.mu.Lock()
	s.stopErr = ErrStopped
	reason := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		reason = err.Error()
	}
	s.setState(StateStopped, reason)
	_ = s.told(context.WithoutCancel(ctx)) // so it only ends when it is done
	sub := s.sub
	s.sub, s.nc = nil, nil
	s.wake()
	s.mu.Unlock()
	if sub != nil {
		_ = sub.Unsubscribe() // the connection may be gone, and the subscription with it
	}
}

// A recovery is the part of Run that brings a stopped stream back.
type recovery struct {
	*Stream
}

// recover returns when messages can be sent again.
func (r *recovery) recover(ctx context.Context) error {
	r.settle(ctx)
	again := r.stopped(ctx)
	ready := false
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var err error
		if !ready {
			again, err = r.head(ctx, again)
			ready = err == nil
		}
		if err == nil && again {
			r.waitFor(ctx)
			again = false
		}
		if err == nil {
			err = r.resync(ctx)
		}
		if err == nil {
			return nil
		}
		if err = r.another(ctx, err); err != nil {
			return err
		}
	}
}

// stopped reports why sending has stopped and counts the attempt to begin
// again. It says whether to pause before that.
func (s *publisher) stopped(ctx context.Context) (again bool) {
	s.mu.Lock()
	why := s.why
	if s.attempts == 0 {
		s.pause.Reset()
	}
	again = s.attempts > 0 || why != nil && why.class == ClassEnvironment
	s.attempts++
	s.mu.Unlock()
	if why != nil {
		s.report(ctx, why.reason)
	}
	return again
}

// another waits until it is time for another attempt after err. It gives an
// error where there is to be none.
func (s *publisher) another(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ends(err):
		return err
	}
	pause := s.pause.NextBackOff()
	if errors.Is(err, errLoss) {
		pause = s.cfg.LossConfirm
	}
	s.trouble(ctx, err, pause)
	return nil
}

// waitFor pauses before another attempt at what failed.
func (s *publisher) waitFor(ctx context.Context) {
	s.mu.Lock()
	reason := "publishing failed"
	if s.why != nil {
		reason = s.why.reason
	}
	s.setState(StateWaiting, reason)
	s.mu.Unlock()
	sleep(ctx, s.pause.NextBackOff())
}

func ends(err error) bool {
	if other, ok := errors.AsType[*SecondWriterError](err); ok {
		return other.final()
	}
	_, gap := errors.AsType[*GapError](err)
	_, refused := errors.AsType[*refusedError](err)
	return gap || refused
}

// final says whether waiting cannot help.
func (e *SecondWriterError) final() bool { return e.SameSource || len(e.Missing) > 0 }

// settle waits for the answers to what is in flight: until all are there, none
// has come for a while, or none can come.
func (s *Stream) settle(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	quiet := s.cfg.AckTimeout / 4
	for s.w.unanswered > 0 && !s.cut {
		now := time.Now()
		last := s.whyAt
		if s.answeredAt.After(last) {
			last = s.answeredAt
		}
		left := min(quiet-now.Sub(last), s.cfg.AckTimeout-now.Sub(s.whyAt))
		if left <= 0 {
			return
		}
		if err := s.wait(ctx, left); err != nil && !errors.Is(err, errWaited) {
			return
		}
	}
}
