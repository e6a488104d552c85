package walrelay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/router"
)

// waitEvery is how often a reader that waits for an operator looks again.
const waitEvery = 2 * time.Second

// hold keeps the reader where it is until ok says that it may go on. The
// session stays: status goes to PostgreSQL, and what was sent before is
// confirmed.
func (r *reader) hold(ctx context.Context, reason string, ok func(context.Context) (bool, error)) error {
	s := r.s
	s.r.state.set(ctx, StateWaiting, reason)
	if s.paused.Load() == nil {
		s.holding.Store(&reason)
		defer s.holding.Store(nil)
	}
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	for {
		done, err := ok(ctx)
		if err != nil {
			return err
		}
		if done {
			s.r.state.set(ctx, StateRelaying, "")
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// accepted asks whether an operator lets the refusals of a reason through.
func (s *session) accepted(ctx context.Context, reason string) (bool, error) {
	accepted := false
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		accepted, err = deadletter.Accepted(ctx, conn, s.cfg.Schema, s.cfg.Source, reason)
		return err
	})
	return accepted, err
}

// allow lets one more refusal be recorded, or holds delivery while they are
// too many.
func (r *reader) allow(ctx context.Context, reason string) error {
	s := r.s
	if !r.flood.refused(reason, r.routed.Event.ID, time.Now()) {
		return nil
	}
	if ok, err := s.accepted(ctx, reason); ok || err != nil {
		return err
	}
	return r.hold(ctx, r.flood.describe(reason), func(ctx context.Context) (bool, error) { return s.accepted(ctx, reason) })
}

// recall tells the flood of what earlier sessions refused, so that a restart
// does not let another hundred through, and reads what they parked and recorded.
func (r *reader) recall(ctx context.Context) error {
	s := r.s
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := deadletter.Refusals(ctx, conn, s.cfg.Schema, s.cfg.Source, time.Now().Add(-floodWindow), r.flood.recent); err != nil {
			return err
		}
		if err := s.recallParked(ctx, conn); err != nil {
			return err
		}
		return r.recallRecorded(ctx, conn)
	})
}

// covered says whether the stream takes the subject now. What the relay knows
// of the stream's subjects may be old, so a no is asked again.
func (r *reader) covered(ctx context.Context, st *stream, subject string) (bool, error) {
	if st.facts.Covers(subject) {
		return true, nil
	}
	info, err := r.s.nats.StreamInfo(ctx, st.name)
	if err != nil {
		return false, fmt.Errorf("look whether stream %q covers subject %q: %w", st.name, subject, err)
	}
	st.facts = info.Facts
	return st.facts.Covers(subject), nil
}

// grown asks, before a row is refused for its size, whether its stream takes
// larger messages by now. Where the stream cannot be asked what was known of it
// stays true.
func (r *reader) grown(ctx context.Context) bool {
	if r.routed.StreamIndex < 0 {
		return false
	}
	if why := r.routed.Refusal.Reason; why != router.ReasonTooLarge && why != router.ReasonHeadersTooLarge {
		return false
	}
	st := r.s.streams[r.routed.StreamIndex]
	info, err := r.s.nats.StreamInfo(ctx, st.name)
	if err != nil || info.Facts.Largest() == st.limits.MaxMsgSize {
		return false
	}
	st.facts, st.limits.MaxMsgSize = info.Facts, info.Facts.Largest()
	r.s.router.SetLimits(st.name, st.limits)
	return true
}
