package faults_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
)

func historyFaults() []fault {
	return []fault{{
		name: "older copy of PostgreSQL for a while", loses: true, fits: []kind{single},
		on:     []string{"database", "relay", "slot", "publication", "stream", "broker", "job"},
		inject: copyDatabase, mend: showCopy,
	}}
}

// outgrow has the write-ahead log of the database that is there go well beyond
// end, segment by segment. It is an error until it has.
func (s *stage) outgrow(ctx context.Context, end string) error {
	var now string
	var beyond bool
	err := s.now().Pool.QueryRow(ctx, `SELECT l::text, l > $1::text::pg_lsn + 16777216 FROM pg_current_wal_insert_lsn() AS l`, end).Scan(&now, &beyond)
	if err != nil || beyond {
		return err
	}
	if _, err := s.now().Pool.Exec(ctx, "SELECT pg_switch_wal()"); err != nil {
		return err
	}
	return fmt.Errorf("the write-ahead log ends at %s, not well beyond %s", now, end)
}

// awaitHalt waits until the relay has halted and gives the reason, or waits for as
// long as that takes where nothing keeps it from its servers.
func (s *stage) awaitHalt(ctx context.Context) (reason string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for halted := false; !halted && ctx.Err() == nil; rest(ctx, 100*time.Millisecond) {
		s.withRelay(func(r *fixture.Relay) {
			var state string
			state, reason = r.State()
			halted = state == "halted"
		})
	}
	return reason
}

// copyDatabase copies the files of the database.
func copyDatabase(ctx context.Context, s *stage) error {
	if err := s.primary.Stop(ctx, testenv.Fast); err != nil {
		return err
	}
	s.copied = s.t.TempDir() + "/data"
	// The files are another user's.
	if out, err := exec.CommandContext(ctx, "cp", "-a", s.primary.DataDir(), s.copied).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the database's files: %w: %s", err, out)
	}
	if err := s.primary.Start(ctx); err != nil {
		return err
	}
	// The streams have to hold what the copy lacks, each of them, or nothing
	// tells it from the true one.
	before := s.load.Committed()
	err := s.persist(ctx, func(context.Context) error { return s.load.Reached(before + 60) })
	if err != nil {
		return err
	}
	return s.now().Settled(ctx)
}

// showCopy has the relay, and the writers, see that copy for a while: another
// history, which takes more writes than the true one since. Nothing of it may be
// published, and nothing be confirmed to the true one for it. In lanes, which
// store in no order, an event that stands before the first one that differs can
// be of the true history and not stored yet: there it may slip through, as
// docs/guarantees.md says.
func showCopy(ctx context.Context, s *stage) error {
	data := s.primary.DataDir()
	swap := func(away, back string) error {
		if err := s.primary.Stop(ctx, testenv.Fast); err != nil {
			return err
		}
		if err := os.Rename(data, away); err != nil {
			return err
		}
		if out, err := exec.CommandContext(ctx, "mv", back, data).CombinedOutput(); err != nil {
			return fmt.Errorf("move the database's files: %w: %s", err, out)
		}
		if err := s.primary.Start(ctx); err != nil {
			return err
		}
		// One that has halted looks again after a minute.
		s.withRelay((*fixture.Relay).Kill)
		s.startRelay()
		return nil
	}
	return s.now().Hands(ctx, func() error {
		var end string // of the true history, give or take what is written until it is stopped
		err := s.persist(ctx, func(ctx context.Context) error {
			return s.now().Pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end)
		})
		if err != nil {
			return err
		}
		if err := swap(data+".true", s.copied); err != nil {
			return err
		}
		before := s.load.Committed()
		if err := s.persist(ctx, func(context.Context) error { return s.load.Reached(before + 200) }); err != nil {
			return err
		}
		if err := s.persist(ctx, func(ctx context.Context) error { return s.outgrow(ctx, end) }); err != nil {
			return err
		}
		before = s.load.Committed()
		if err := s.persist(ctx, func(context.Context) error { return s.load.Reached(before + 60) }); err != nil {
			return err
		}
		// Now its write-ahead log ends behind what the streams hold: that it
		// ends before is not all that a relay can tell the copy by.
		s.withRelay((*fixture.Relay).Kill)
		s.startRelay()
		if reason := s.awaitHalt(ctx); strings.Contains(reason, "write-ahead log ends before") {
			return fmt.Errorf("the copy did not outgrow the true history: %s", reason)
		}
		rows, err := s.now().Rows(ctx)
		if err != nil {
			return err
		}
		for _, r := range rows {
			s.ofCopy = append(s.ofCopy, r.ID)
		}
		return swap(data+".other", data+".true")
	})
}
