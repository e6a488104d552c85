package walrelay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/job"
)

// listenEvery is how long the listener waits before it asks for a sign of life.
const listenEvery = 20 * time.Second

// listenLoop keeps one SQL session waiting: a server that shuts down tells it
// at once (SQLSTATE 57P01), also while the reader stands behind a full window
// and sees nothing of the replication connection.
func (s *session) listenLoop(ctx context.Context) error {
	channel := pgx.Identifier{job.Channel(s.cfg.Source)}.Sanitize()
	if _, err := s.listen.Exec(ctx, "LISTEN "+channel); err != nil {
		return ended(ctx, "listen on channel "+channel, err)
	}
	for {
		wait, cancel := context.WithTimeout(ctx, listenEvery)
		_, err := s.listen.WaitForNotification(wait)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the wait was told to end
		case err == nil:
			select {
			case s.jobsNow <- struct{}{}:
			default:
			}
		case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
			ping, cancel := context.WithTimeout(ctx, queryTimeout)
			err := s.listen.Ping(ping)
			cancel()
			if err != nil {
				return ended(ctx, "ask PostgreSQL for a sign of life", err)
			}
		default:
			return ended(ctx, "wait for notifications", err)
		}
	}
}

// ended is nil when the goroutine was told to end, else what went wrong.
func ended(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the goroutine was told to end
	}
	return fmt.Errorf("%s: %w", doing, err)
}
