package faults_test

import (
	"context"
	"fmt"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
)

func relayFaults() []fault {
	return []fault{
		{
			name: "relay killed", fits: everywhere, on: []string{"relay"},
			inject: func(_ context.Context, s *stage) error { s.withRelay((*fixture.Relay).Kill); return nil },
			mend:   func(_ context.Context, s *stage) error { s.startRelay(); return nil },
		},
		{
			name: "relay frozen", fits: everywhere, on: []string{"relay"},
			inject: func(_ context.Context, s *stage) error { s.withRelay((*fixture.Relay).Freeze); return nil },
			mend:   func(_ context.Context, s *stage) error { s.withRelay((*fixture.Relay).Thaw); return nil },
		},
		{
			name: "relay overtaken", fits: everywhere, on: []string{"relay", "slot"},
			inject: overtake, mend: wake,
		},
		{name: "relay restarted", fits: everywhere, on: []string{"relay"}, inject: restartOften},
	}
}

// overtake freezes the relay and has another one take over. Mended, the first
// one wakes beside it.
func overtake(ctx context.Context, s *stage) error {
	w := s.now()
	var holder int
	err := s.persist(ctx, func(ctx context.Context) error {
		return w.Pool.QueryRow(ctx, "SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE slot_name = $1", w.Source).Scan(&holder)
	})
	if err != nil {
		return err
	}
	s.withRelay((*fixture.Relay).Freeze)
	// Its connection fills up: the more it finds when it wakes, the more it
	// would do.
	rest(ctx, 2*time.Second)
	second := s.startBeside()
	return s.persist(ctx, func(ctx context.Context) error {
		// The frozen relay's connection lives until the server notices.
		if _, err := w.Pool.Exec(ctx, "SELECT pg_terminate_backend($1)", holder); err != nil {
			return err
		}
		if state, reason := second.State(); state != "relaying" {
			return fmt.Errorf("the second relay is in state %q (%s)", state, reason)
		}
		return nil
	})
}

// wake lets the relay go on that was overtaken, and ends it after a while.
func wake(ctx context.Context, s *stage) error {
	s.mu.Lock()
	old := s.relays[:len(s.relays)-1]
	for _, r := range old {
		r.Thaw()
	}
	s.mu.Unlock()
	rest(ctx, 3*time.Second)
	for _, r := range old {
		r.Kill()
	}
	return nil
}

// restartOften stops the relay in order and starts it again, again and again.
func restartOften(ctx context.Context, s *stage) error {
	for range s.restarts() {
		s.withRelay((*fixture.Relay).Terminate)
		s.awaitExit(ctx)
		s.startRelay()
		rest(ctx, time.Second)
	}
	return nil
}

// rest lets time pass.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
