package walrelay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/retention"
	"github.com/walrelay/walrelay/internal/witness"
)

// KeepForever is the [Config.Retention] that deletes no row of an outbox table.
const KeepForever = time.Duration(-1)

// retainEvery is how often old rows are deleted, and more often where the
// retention is shorter than ten times that.
const retainEvery = time.Minute

// RetentionStatus is what the deletion of old rows has done.
type RetentionStatus struct {
	LookedAt time.Time `json:"looked_at"`
	// Deleted counts the rows deleted since the process started.
	Deleted uint64 `json:"deleted"`
	// Seconds is how long the last run took.
	Seconds float64 `json:"seconds"`
	// BacklogSeconds is by how much the oldest row that is still there has
	// passed the retention; 0 when none has.
	BacklogSeconds float64 `json:"backlog_seconds"`
	// Kept says why rows stay that are old enough.
	Kept []string `json:"kept,omitempty"`
	// Error is why the last run did not come to its end.
	Error string `json:"error,omitempty"`
}

// retained is the account of it, over all sessions.
type retained struct {
	mu     sync.Mutex
	status *RetentionStatus // replaced, never changed; nil before the first run
}

func (r *retained) read() *RetentionStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// add notes a run and says whether its trouble is news.
func (r *retained) add(run RetentionStatus) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status != nil {
		run.Deleted += r.status.Deleted
		news = run.Error != r.status.Error
	} else {
		news = run.Error != ""
	}
	r.status = &run
	return news
}

// retainLoop deletes old rows from time to time until ctx ends. That it cannot
// is no reason to deliver nothing: it is said, and tried again.
func (s *session) retainLoop(ctx context.Context) error {
	if s.cfg.Retention < 0 {
		return nil
	}
	tick := time.NewTicker(max(min(retainEvery, s.cfg.Retention/10), time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		began := time.Now()
		run, err := s.retain(ctx)
		if ctx.Err() == nil && errors.Is(err, witness.ErrSessionLost) {
			return err
		}
		status := RetentionStatus{LookedAt: time.Now(), Deleted: uint64(run.Deleted), Seconds: time.Since(began).Seconds(), Kept: run.Kept} //nolint:gosec // a count
		status.BacklogSeconds = run.backlog.Seconds()
		if err != nil && ctx.Err() == nil {
			status.Error = err.Error()
		}
		switch news := s.r.count.retained.add(status); {
		case news && status.Error != "":
			s.log.WarnContext(ctx, "old rows are not deleted; it is tried again", slog.String("err", status.Error))
		case run.Deleted > 0:
			s.log.InfoContext(ctx, "old rows deleted", slog.Int64("rows", run.Deleted), slog.Duration("took", time.Since(began)), slog.Bool("busy", run.Busy))
		}
	}
}

// A retainRun is one run and what it left.
type retainRun struct {
	retention.Result
	backlog time.Duration
}

func (s *session) retain(ctx context.Context) (run retainRun, err error) {
	cfg, err := s.cfg.postgres(s.cfg.DatabaseURL, roleCleanup)
	if err != nil {
		return run, err
	}
	conn, err := openSQL(ctx, cfg)
	if err != nil {
		return run, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	c := s.cfg.cleaner(conn)
	c.Fence = s.fence
	if run.Result, err = c.Run(ctx); err != nil {
		return run, err
	}
	run.backlog, err = c.Backlog(ctx)
	return run, err
}

func (c *Config) cleaner(conn *pgx.Conn) *retention.Cleaner {
	clean := &retention.Cleaner{Conn: conn, Schema: c.Schema, Source: c.Source, Retention: c.Retention}
	for _, t := range c.Tables {
		clean.Tables = append(clean.Tables, routerTable(t))
	}
	return clean
}

// A Cleaning says how [Cleanup] is to be done.
type Cleaning struct {
	// DryRun counts what would be deleted and deletes nothing.
	DryRun bool
	// Progress, if set, is told now and then how many rows were deleted.
	Progress func(deleted int64)
	// Patience is how long each portion waits for another cleaner, such as that
	// of a running relay. Zero leaves the rest to that one at once.
	Patience time.Duration
}

// A CleanupReport is what [Cleanup] has done, or would.
type CleanupReport struct {
	Deleted int64
	// Busy says that another cleaner, such as that of a running relay, was at
	// it and does the rest.
	Busy bool
	// Kept says why rows stay that are old enough.
	Kept []string
}

// Cleanup deletes the rows that are older than Retention and proven to be
// stored, once. It needs no relay, but what no relay has proven stays.
func Cleanup(ctx context.Context, cfg Config, how Cleaning) (CleanupReport, error) {
	cfg.NATS = or(cfg.NATS, "nats://127.0.0.1:4222") // it is not asked
	cfg, err := cfg.withDefaults()
	if err != nil {
		return CleanupReport{}, err
	}
	if cfg.Retention < 0 {
		return CleanupReport{Kept: []string{"retention is off: rows are kept for ever"}}, nil
	}
	connect, err := cfg.postgres(cfg.DatabaseURL, roleCleanup)
	if err != nil {
		return CleanupReport{}, err
	}
	conn, err := openSQL(ctx, connect)
	if err != nil {
		return CleanupReport{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	if _, err := checkSchema(ctx, conn, cfg.Schema); err != nil {
		return CleanupReport{}, err
	}
	c := cfg.cleaner(conn)
	c.Progress, c.Patience = how.Progress, how.Patience
	run := c.Run
	if how.DryRun {
		run = c.Count
	}
	done, err := run(ctx)
	return CleanupReport{Deleted: done.Deleted, Busy: done.Busy, Kept: done.Kept}, err
}
