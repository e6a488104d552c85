package inbox

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// crashTolerance is how many deliveries more than attempts an event may have
// before it is taken to have killed its process: a few are lost by kills that
// were not its fault.
const crashTolerance = 3

// A verdict says what is to be done with a message.
type verdict struct {
	outcome Outcome
	// reason is why the message is terminated.
	reason string
	// retry is when to try again, where outcome is Failed.
	retry time.Duration
	// uncounted says that the failure was not the event's.
	uncounted bool
	// giveBack says that the message was not tried to its end, since the
	// consumer stops.
	giveBack bool
	// deferred says that it was not tried, behind one that failed.
	deferred bool
	// end ends the session.
	end error
}

// handle applies e, by itself, until there is a verdict. It waits for a
// database that is away, unless stop ends or there is an order to keep: a
// database that comes back may have forgotten what must come first.
func (s *session) handle(ctx context.Context, e *entry) verdict {
	return s.judge(ctx, e, func() result { return s.once(ctx, e) })
}

// judge makes a verdict of the results of try, which it calls again while the
// database is in the way.
func (s *session) judge(ctx context.Context, e *entry, try func() result) verdict {
	c := s.c
	conflicts, troubles := 0, 0
	for {
		r := try()
		if r.deferred {
			return verdict{deferred: true}
		}
		if r.err == nil {
			return verdict{outcome: r.outcome}
		}
		switch r.class {
		case classStopped:
			return verdict{giveBack: true}
		case classConflict:
			conflicts++
			if conflicts > maxConflicts {
				return verdict{retry: jitter(c.cfg.MinBackoff), uncounted: true}
			}
			if pause(ctx, conflictDelay(conflicts)) != nil {
				return verdict{giveBack: true}
			}
			continue
		case classHandler, classPermanent:
			v, err := c.decide(ctx, e, r)
			if err == nil {
				return v
			}
			// The handler is not called again for want of a place to
			// write its failure.
			failure := r
			try = func() result { return failure }
			r.err = err
		case classTrouble:
		}
		c.trouble.is(ctx, r.err)
		c.askRecheck()
		if s.fence != nil {
			return verdict{end: r.err}
		}
		if s.stopping(troubleDelay(troubles)) {
			return verdict{giveBack: true}
		}
		troubles++
	}
}

// once tries e one time: side by side with others, or alone and counted
// beforehand if it may be one that kills.
func (s *session) once(ctx context.Context, e *entry) result {
	c := s.c
	suspect := e.suspect
	if !suspect && e.Deliveries > crashTolerance+1 {
		behind := e.Deliveries - 1 - min(e.Deliveries-1, s.excused(e.seq))
		if behind > crashTolerance {
			attempts, err := c.tried(ctx, e)
			if err != nil {
				return result{err: err, class: ownClass(ctx, err)}
			}
			suspect = behind > uint64(attempts)+crashTolerance //nolint:gosec // never negative
		}
	}
	if !suspect {
		c.alone.RLock()
		defer c.alone.RUnlock()
		return c.try(ctx, e, s.fence)
	}
	if s.fence == nil {
		// Waiting for it alone would hold back all other events.
		switch held, err := c.inHand(ctx, e); {
		case err != nil:
			return result{err: err, class: ownClass(ctx, err)}
		case held:
			return result{err: errInHand, class: classConflict}
		}
	}
	c.alone.Lock()
	defer c.alone.Unlock()
	attempts, err := c.failedOnce(ctx, e, errors.New("the process ended while it handled this event"))
	if err != nil {
		return result{err: err, class: ownClass(ctx, err)}
	}
	if attempts > c.cfg.MaxAttempts {
		return result{err: errors.New("the process ended each time it handled this event"), class: classPermanent, counted: true}
	}
	e.forgetTries()
	r := c.try(ctx, e, s.fence)
	r.counted = true
	if r.err != nil && r.class != classHandler && r.class != classPermanent {
		if err := c.uncount(ctx, e); err != nil {
			c.log.DebugContext(ctx, "attempt stays counted", slog.String("event_id", e.ID), slog.Any("err", err))
		}
		r.counted = false
	}
	return r
}

var (
	errInHand = errors.New("another process handles this event")
	errProbed = errors.New("nobody does")
)

// inHand says whether a live process has the receipt of e: then e has killed
// nobody, however often it was delivered. A process that is stopped is live, and
// gets redeliveries for as long as its request for messages lasts.
func (c *Consumer) inHand(ctx context.Context, e *entry) (bool, error) {
	err := c.within(ctx, func(u unit) error {
		var setting string
		err := u.query(ctx, `SELECT set_config('lock_timeout', '100ms', true)`, nil, func(scan func(...any) error) error { return scan(&setting) })
		if err != nil {
			return err
		}
		if _, err := u.exec(ctx, c.sql.fresh, c.cfg.Name, e.ID, e.Stream, int64(e.Sequence)); err != nil { //nolint:gosec // sequences stay below 2^63
			return err
		}
		return errProbed // and roll back
	})
	switch {
	case errors.Is(err, errProbed):
		return false, nil
	case lockWait(err):
		return true, nil
	}
	return false, err
}

// forgetTries makes the transaction of e remove its count of attempts.
func (e *entry) forgetTries() {
	if e.Deliveries == 1 {
		e.Deliveries = 2
	}
}

// decide counts a failed attempt, or writes a dead letter.
func (c *Consumer) decide(ctx context.Context, e *entry, r result) (verdict, error) {
	if r.unread || errors.As(r.err, new(*unreadableError)) {
		if v, err, ok := c.policy(ctx, e, r.err); ok {
			return v, err
		}
	}
	c.count.failed.Add(1)
	c.tele.failed(ctx)
	if r.class == classPermanent && !r.unread {
		attempts, err := c.tried(ctx, e)
		if err != nil {
			return verdict{}, err
		}
		return c.toDeadLetter(ctx, e, attempts+1, reasonPermanent, r.err)
	}
	var attempts int
	var err error
	if r.counted {
		attempts, err = c.tried(ctx, e)
	} else {
		attempts, err = c.failedOnce(ctx, e, r.err)
	}
	if err != nil {
		return verdict{}, err
	}
	if attempts >= c.cfg.MaxAttempts {
		return c.toDeadLetter(ctx, e, attempts, reasonAttempts, r.err)
	}
	wait := jitter(grow(c.cfg.MinBackoff, c.cfg.MaxBackoff, attempts-1))
	if retry, ok := errors.AsType[*retryError](r.err); ok {
		wait = retry.after
	}
	c.log.WarnContext(ctx, "event failed and is tried again", slog.String("event_id", e.ID), slog.String("event_type", e.Type),
		slog.Uint64("sequence", e.Sequence), slog.Int("attempt", attempts), slog.Duration("after", wait), slog.Any("err", r.err))
	return verdict{retry: wait}, nil
}

// policy decides about a message that no handler can be given.
func (c *Consumer) policy(ctx context.Context, e *entry, cause error) (v verdict, err error, ok bool) {
	if untrusted, is := errors.AsType[*untrustedError](cause); is {
		v, err := c.toDeadLetter(ctx, e, 1, untrusted.reason(), cause)
		return v, err, true
	}
	policy, reason := c.cfg.Unreadable, reasonUnreadable
	if unknown, is := errors.AsType[*unknownError](cause); is {
		policy, reason = c.cfg.Unknown, reasonUnknown
		c.mentionUnknown(ctx, unknown.eventType)
	}
	switch policy {
	case Fail:
		return verdict{}, nil, false
	case DeadLetter:
		v, err := c.toDeadLetter(ctx, e, 1, reason, cause)
		return v, err, true
	case Skip, Default:
	}
	return verdict{outcome: Skipped}, nil, true
}

// mentionUnknown logs a type without a handler, once.
func (c *Consumer) mentionUnknown(ctx context.Context, eventType string) {
	const most = 1000
	c.mu.Lock()
	known := c.unknown[eventType] || len(c.unknown) >= most
	if !known {
		c.unknown[eventType] = true
	}
	c.mu.Unlock()
	if !known {
		c.log.InfoContext(ctx, "events of a type without a handler", slog.String("event_type", eventType))
	}
}

func (c *Consumer) toDeadLetter(ctx context.Context, e *entry, attempts int, reason string, cause error) (verdict, error) {
	if err := c.bury(ctx, e, attempts, reason, cause); err != nil {
		return verdict{}, err
	}
	return verdict{outcome: DeadLettered, reason: reason}, nil
}

// tried gives the number of failed attempts of e.
func (c *Consumer) tried(ctx context.Context, e *entry) (attempts int, err error) {
	err = c.read(ctx, c.sql.tried, []any{c.cfg.Name, e.ID}, func(scan func(...any) error) error { return scan(&attempts) })
	return attempts, err
}

// failedOnce counts a failed attempt of e, and gives their number.
func (c *Consumer) failedOnce(ctx context.Context, e *entry, cause error) (attempts int, err error) {
	args := []any{c.cfg.Name, e.ID, e.Stream, int64(e.Sequence), int64(e.Deliveries), errorText(cause)} //nolint:gosec // far below 2^63
	err = c.read(ctx, c.sql.failed, args, func(scan func(...any) error) error { return scan(&attempts) })
	return attempts, err
}

func (c *Consumer) uncount(ctx context.Context, e *entry) error {
	return c.within(ctx, func(u unit) error {
		_, err := u.exec(ctx, c.sql.uncount, c.cfg.Name, e.ID)
		return err
	})
}
