package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// operate is what an operator does who looks now and then: he asks for what the
// relay does not send unasked, gives up the slot when the relay says that it is
// of no use, and gives up what was refused, so that what is parked behind it goes
// on.
func (s *stage) operate(ctx context.Context) {
	for ; ctx.Err() == nil; rest(ctx, time.Second) {
		w := s.now()
		look, cancel := context.WithTimeout(ctx, 5*time.Second)
		var waits bool
		err := w.Pool.QueryRow(look, `SELECT EXISTS (SELECT FROM walrelay.gap WHERE state = 'open' AND found_at < clock_timestamp() - interval '3 s')
			AND NOT EXISTS (SELECT FROM walrelay.job WHERE kind = 'heal' AND ended_at IS NULL)`).Scan(&waits)
		_, _ = w.Pool.Exec(look, `UPDATE walrelay.dead_letter SET resolved_at = clock_timestamp(), resolved_by = 'drill', resolution = 'discarded'
			WHERE parked_behind = id AND resolved_at IS NULL AND at < clock_timestamp() - interval '1 s'`) // again a second later
		cancel()
		if s.says("pg_drop_replication_slot") {
			_ = w.Hands(ctx, func() error { // the relay goes on saying so
				_, err := w.Pool.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active", w.Source)
				return err
			})
		}
		if err == nil && waits {
			_ = s.verbOnce(ctx, 1, "replay", "--missing", "--yes", "--no-wait", "--nats", w.NATSURL)
		}
	}
}

// says tells whether the relay waits for something in whose explanation the
// words stand.
func (s *stage) says(words string) bool {
	s.mu.Lock()
	r := s.relay
	s.mu.Unlock()
	state, reason := r.State()
	return state == "waiting" && strings.Contains(reason, words)
}

// verb runs a verb of the command until it ends with a code up to most: the
// servers may be away.
func (s *stage) verb(ctx context.Context, most int, args ...string) error {
	return s.persist(ctx, func(ctx context.Context) error { return s.verbOnce(ctx, most, args...) })
}

func (s *stage) verbOnce(ctx context.Context, most int, args ...string) error {
	w := s.now()
	args = slices.Concat(args, []string{"--database-url", w.DatabaseURL, "--source", w.Source})
	if args[0] == "replay" {
		args = slices.Concat(args, s.routing())
	}
	cmd := exec.CommandContext(ctx, fixture.Binary(s.t), args...)
	cmd.Env = fixture.Environment()
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() >= 0 && exit.ExitCode() <= most {
		return nil
	}
	if err != nil {
		return fmt.Errorf("walrelay %s: %w: %s", args[0], err, out)
	}
	return nil
}

// routing are the flags that say where events go.
func (s *stage) routing() []string {
	return []string{"--tables", tables, "--routes", routes}
}
