package walrelay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/witness"
)

// pauseEvery is how often it is looked whether a pause was asked for.
const pauseEvery = time.Second

// lookPaused asks PostgreSQL whether a pause was asked for.
func (s *session) lookPaused(ctx context.Context) error {
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		p, err := witness.Paused(ctx, conn, s.cfg.Schema, s.cfg.Source)
		if err != nil {
			return err
		}
		if p.At.IsZero() {
			s.paused.Store(nil)
			return nil
		}
		why := fmt.Sprintf("paused by %s since %s; the slot keeps the write-ahead log: go on with walrelay resume", p.By, p.At.UTC().Format(time.RFC3339))
		s.paused.Store(&why)
		return nil
	})
}

// pauseLoop looks until ctx ends, and says so where the reader, which has
// nothing to read, does not.
func (s *session) pauseLoop(ctx context.Context) error {
	tick := time.NewTicker(pauseEvery)
	defer tick.Stop()
	told := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !s.relayed.Load() {
			continue
		}
		if err := s.lookPaused(ctx); err != nil {
			return ended(ctx, "ask whether delivery is paused", err)
		}
		switch why := s.paused.Load(); {
		case why != nil:
			told = true
			s.r.state.set(ctx, StateWaiting, *why)
		case told:
			told = false
			if held := s.holding.Load(); held != nil {
				s.r.state.set(ctx, StateWaiting, *held)
			} else {
				s.r.state.set(ctx, StateRelaying, "")
			}
		}
	}
}

// awaitResume keeps the reader where it is while delivery is paused.
func (r *reader) awaitResume(ctx context.Context) error {
	why := r.s.paused.Load()
	if why == nil {
		return nil
	}
	return r.hold(ctx, *why, func(context.Context) (bool, error) { return r.s.paused.Load() == nil, nil })
}
