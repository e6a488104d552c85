package walrelay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/retention"
	"github.com/walrelay/walrelay/internal/router"
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
	// Dropped counts the partitions dropped since then; their rows are among
	// those deleted.
	Dropped uint64 `json:"dropped_partitions,omitempty"`
	// PartitionsUntil is up to when partitions of the outbox are there, made
	// ahead; zero where the outbox has none of ours.
	PartitionsUntil time.Time `json:"partitions_until,omitzero"`
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
		run.Dropped += r.status.Dropped
		news = run.Error != r.status.Error
	} else {
		news = run.Error != ""
	}
	r.status = &run
	return news
}

// retainLoop deletes old rows and makes partitions ahead from time to time until
// ctx ends. That it cannot is no reason to deliver nothing: it is said, and tried
// again.
func (s *session) retainLoop(ctx context.Context) error {
	every := retainEvery
	if s.cfg.Retention > 0 {
		every = max(min(every, s.cfg.Retention/10), time.Second)
	}
	tick := time.NewTicker(every)
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
		status := RetentionStatus{LookedAt: s.r.now(), Deleted: uint64(run.Deleted), Seconds: time.Since(began).Seconds(), Kept: run.Kept} //nolint:gosec // a count
		status.Dropped, status.PartitionsUntil = uint64(len(run.Partitions)), run.until
		status.BacklogSeconds = run.backlog.Seconds()
		if err != nil && ctx.Err() == nil {
			status.Error = err.Error()
		}
		switch news := s.r.count.retained.add(status); {
		case news && status.Error != "":
			s.log.WarnContext(ctx, "retention is not done; it is tried again", slog.String("err", status.Error))
		case run.Deleted > 0 || len(run.Partitions) > 0:
			s.log.InfoContext(ctx, "old rows deleted", slog.Int64("rows", run.Deleted), slog.Int("dropped_partitions", len(run.Partitions)),
				slog.Duration("took", time.Since(began)), slog.Bool("busy", run.Busy))
		}
	}
}

// A retainRun is one run and what it left.
type retainRun struct {
	retention.Result
	backlog time.Duration
	until   time.Time
}

func (s *session) retain(ctx context.Context) (run retainRun, err error) {
	conn, err := s.cfg.open(ctx, roleCleanup)
	if err != nil {
		return run, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	c := s.cfg.cleaner(conn)
	c.Fence, c.DropWait = s.fence, s.dropWait
	defer func() { s.dropWait = c.DropWait }()
	_, early := c.Ahead(ctx) // that none can be made is no reason to delete nothing
	if errors.Is(early, witness.ErrSessionLost) {
		return run, early
	}
	if s.cfg.Retention > 0 {
		if run.Result, err = c.Run(ctx); err != nil {
			return run, errors.Join(early, err)
		}
		run.backlog, err = c.Backlog(ctx)
	}
	parts, looked := retention.Look(ctx, conn, c.Tables)
	for i := range parts {
		if run.until.IsZero() || parts[i].Until.Before(run.until) {
			run.until = parts[i].Until
		}
	}
	return run, errors.Join(early, err, looked)
}

func (c *Config) cleaner(conn *pgx.Conn) *retention.Cleaner {
	return &retention.Cleaner{Conn: conn, Schema: c.Schema, Source: c.Source, Retention: c.Retention, Tables: c.routerTables()}
}

func (c *Config) routerTables() (list []router.Table) {
	for _, t := range c.Tables {
		list = append(list, routerTable(t))
	}
	return list
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
	// Deleted counts the rows, those of dropped partitions among them.
	Deleted int64
	// Dropped are the partitions that were dropped, or would be, and Made those
	// that were made ahead.
	Dropped, Made []string
	// Busy says that another cleaner, such as that of a running relay, was at
	// it and does the rest.
	Busy bool
	// Kept says why rows stay that are old enough.
	Kept []string
}

// Cleanup deletes the rows that are older than Retention and proven to be
// stored, once, and makes the partitions of a partitioned outbox that are to be
// there ahead. It needs no relay, but what no relay has proven stays.
func Cleanup(ctx context.Context, cfg Config, how Cleaning) (CleanupReport, error) {
	cfg.NATS = or(cfg.NATS, "nats://127.0.0.1:4222") // it is not asked
	conn, err := openVerb(ctx, &cfg, roleCleanup)
	if err != nil {
		return CleanupReport{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	if _, err := checkSchema(ctx, conn, cfg.Schema); err != nil {
		return CleanupReport{}, err
	}
	c := cfg.cleaner(conn)
	c.Progress, c.Patience = how.Progress, how.Patience
	var made []string
	var early error
	run := c.Count
	if !how.DryRun {
		run = c.Run
		made, early = c.Ahead(ctx)
	}
	if cfg.Retention < 0 {
		return CleanupReport{Made: made, Kept: []string{"retention is off: rows are kept for ever"}}, early
	}
	done, err := run(ctx)
	return CleanupReport{Deleted: done.Deleted, Dropped: done.Partitions, Made: made, Busy: done.Busy, Kept: done.Kept}, errors.Join(early, err)
}
