package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// verify notes from time to time how far all is decided. At a start, and when
// the database server has changed, it first compares what was delivered until
// then with the receipts: a server that was promoted may have forgotten
// commits whose messages are acknowledged. What was delivered since then was
// committed by the server that is asked.
func (s *session) verify(ctx context.Context) error {
	c := s.c
	t := time.NewTicker(c.cfg.CheckInterval)
	defer t.Stop()
	suspectTo := s.info.Delivered.Stream
	for {
		var err error
		suspectTo, err = s.verifyOnce(ctx, suspectTo)
		switch {
		case ctx.Err() != nil:
			return nil
		case s.fence != nil && errors.Is(err, errOtherServer):
			return err
		case err != nil:
			c.checks.is(ctx, err)
		default:
			c.checks.over(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		case <-c.recheck:
			if s.fence != nil {
				continue // the session ends where it matters
			}
			if suspectTo, err = s.again(ctx, suspectTo); err != nil {
				c.askRecheck()
				if pause(ctx, jitter(min(time.Second, c.cfg.CheckInterval))) != nil {
					return nil
				}
			}
		}
	}
}

// again begins the comparison anew, for a server that may have forgotten.
func (s *session) again(ctx context.Context, suspectTo uint64) (uint64, error) {
	st, err := s.readState(ctx)
	if err != nil {
		return suspectTo, err
	}
	// Only now: what the old server committed was delivered before.
	info, err := s.source.Info(ctx)
	if err != nil {
		return suspectTo, err
	}
	s.verified, s.server = st.verified, st.server
	s.c.server.Store(&st.server)
	return max(suspectTo, info.Delivered.Stream), nil
}

// verifyOnce compares up to the ack floor, and notes what is decided.
func (s *session) verifyOnce(ctx context.Context, suspectTo uint64) (uint64, error) {
	c := s.c
	info, err := s.source.Info(ctx)
	if err != nil {
		return suspectTo, fmt.Errorf("read the state of JetStream consumer %q: %w", c.cfg.durable(), err)
	}
	floor := info.AckFloor.Stream
	switch {
	case s.fence != nil:
		// All was compared at the start, and is here until it is done.
		if !s.recovered.Load() {
			return suspectTo, nil
		}
		if lowest := s.lanes.lowestReplayed(); lowest != 0 {
			floor = min(floor, lowest-1)
		}
	case s.verified < suspectTo:
		floor = min(floor, suspectTo)
		missing := 0
		err := s.undecided(ctx, s.verified, floor, func(p place) {
			missing++
			s.lanes.add(&entry{seq: p.seq, recovered: true, replayed: true}, p.key)
		})
		if err != nil {
			return suspectTo, err
		}
		if missing > 0 {
			c.log.WarnContext(ctx, "the database has forgotten events whose messages are acknowledged; they are applied again",
				slog.Int("count", missing), slog.Uint64("after", s.verified), slog.Uint64("up_to", floor))
			return suspectTo, nil
		}
	}
	if floor <= s.verified {
		return suspectTo, nil
	}
	session := ""
	if s.fence != nil {
		session = s.fence.session
	}
	var n int64
	args := []any{c.cfg.durable(), c.cfg.Stream, int64(floor), stamp(s.created), s.server, session} //nolint:gosec // sequences stay below 2^63
	err = c.read(ctx, c.sql.verify, args, func(scan func(...any) error) error { return scan(&n) })
	if err != nil {
		return suspectTo, fmt.Errorf("note how far consumer %q is: %w", c.cfg.durable(), err)
	}
	if n == 0 {
		c.askRecheck()
		return suspectTo, errOtherServer
	}
	s.verified = floor
	return suspectTo, nil
}
