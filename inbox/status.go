package inbox

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A Status is what a consumer has done since its process started, and what it
// is doing now.
type Status struct {
	// Applied counts events whose effect was committed.
	Applied uint64
	// Duplicates counts messages whose event was applied before.
	Duplicates uint64
	// Skipped counts messages passed over by a policy.
	Skipped uint64
	// Failed counts attempts that failed.
	Failed uint64
	// DeadLettered counts events that went into the dead letters.
	DeadLettered uint64
	// Requeued counts dead letters that were applied after all.
	Requeued uint64
	// Recovered counts events that were acknowledged, and that the database
	// had then forgotten.
	Recovered uint64
	// Parked counts events that were stored behind a failing one.
	Parked uint64
	// Gaps counts events that may be lost to this consumer: acknowledged,
	// forgotten by the database, and gone from the stream.
	Gaps uint64
	// Holding is how many messages are in this process now, and Waiting how
	// many of them stand behind an event that failed.
	Holding, Waiting int
	// Trouble says what keeps the consumer from applying events; empty
	// while nothing does.
	Trouble string
	// Standby is true while another process has the partition.
	Standby bool
}

type counts struct {
	applied, duplicates, skipped, failed, deadLettered, requeued, recovered, parked, gaps atomic.Uint64
	holding, waiting                                                                      atomic.Int64
	standby                                                                               atomic.Bool
}

// Status tells what the consumer has done and does. It may be called at any
// time, from any goroutine.
func (c *Consumer) Status() Status {
	n := &c.count
	return Status{
		Applied: n.applied.Load(), Duplicates: n.duplicates.Load(), Skipped: n.skipped.Load(),
		Failed: n.failed.Load(), DeadLettered: n.deadLettered.Load(), Requeued: n.requeued.Load(),
		Recovered: n.recovered.Load(), Parked: n.parked.Load(), Gaps: n.gaps.Load(),
		Holding: int(n.holding.Load()), Waiting: int(n.waiting.Load()),
		Trouble: cmp.Or(c.trouble.text(), c.fetches.text(), c.checks.text()), Standby: n.standby.Load(),
	}
}

// trouble is what keeps a consumer from going on. It is logged when it begins,
// then once a minute with a count, and when it ends.
type trouble struct {
	log  *slog.Logger
	what slog.Attr // that cannot go on

	now    atomic.Bool // whether err is set
	mu     sync.Mutex
	err    error
	since  time.Time
	logged time.Time
	times  int
}

const troubleEvery = time.Minute

func (t *trouble) is(ctx context.Context, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.times++
	now := time.Now()
	if t.err == nil {
		t.since = now
		t.logged = time.Time{}
	}
	t.err = err
	t.now.Store(true)
	if now.Sub(t.logged) < troubleEvery {
		return
	}
	t.logged = now
	t.log.WarnContext(ctx, "consumer cannot go on and keeps trying", t.what, slog.Any("err", err), slog.Int("times", t.times),
		slog.Duration("for", now.Sub(t.since)))
}

func (t *trouble) over(ctx context.Context) {
	if !t.now.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		return
	}
	t.log.InfoContext(ctx, "consumer goes on", t.what, slog.Int("times", t.times), slog.Duration("after", time.Since(t.since)))
	t.err, t.times = nil, 0
	t.now.Store(false)
}

func (t *trouble) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		return ""
	}
	return t.err.Error()
}
