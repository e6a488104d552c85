package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// A fence keeps a consumer with an order to one process. Holding it is a matter
// of a lease, so that a process that died is followed by another; being safe
// is not: every transaction locks the row of the session that it believes in,
// and a takeover waits for those. A process that wakes from a pause commits
// nothing.
type fence struct {
	c       *Consumer
	stream  string
	session string
	// unclean says that the process before this one did not let go.
	unclean bool
}

// takeFence waits until this process may consume.
func (c *Consumer) takeFence(ctx context.Context, session string) (*fence, error) {
	f := &fence{c: c, stream: c.cfg.Stream, session: session}
	waiting := false
	defer c.count.standby.Store(false)
	for {
		taken, before, err := f.take(ctx)
		if err != nil {
			return nil, fmt.Errorf("take over consumer %q: %w", c.cfg.durable(), err)
		}
		if taken {
			f.unclean = before != "" && before != session
			if waiting || f.unclean {
				c.log.InfoContext(ctx, "consumer taken over from another process", slog.Bool("unclean", f.unclean))
			}
			return f, nil
		}
		if !waiting {
			waiting = true
			c.count.standby.Store(true)
			c.trouble.over(ctx)
			c.log.InfoContext(ctx, "another process applies events in order; waiting to take over")
		}
		if err := pause(ctx, jitter(min(c.cfg.Lease/3, time.Second))); err != nil {
			return nil, err
		}
	}
}

func (f *fence) take(ctx context.Context) (taken bool, before string, err error) {
	c := f.c
	err = c.within(ctx, func(u unit) error {
		err := u.query(ctx, c.sql.holder, []any{c.cfg.durable(), f.stream, f.session}, func(scan func(...any) error) error {
			taken = true
			return scan(&before)
		})
		if err != nil || !taken {
			return err
		}
		if _, err := u.exec(ctx, c.sql.takeOver, c.cfg.durable(), f.stream, f.session, c.cfg.Lease.Milliseconds()); err != nil {
			return err
		}
		if _, err := u.exec(ctx, c.sql.lockWorkers, c.cfg.durable(), f.stream); err != nil {
			return err
		}
		_, err = u.exec(ctx, c.sql.takeWorkers, c.cfg.durable(), f.stream, f.session, c.cfg.Concurrency)
		return err
	})
	return taken && err == nil, before, err
}

// keep renews the lease until ctx ends.
func (f *fence) keep(ctx context.Context) error {
	c := f.c
	t := time.NewTicker(c.cfg.Lease / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		var n int64
		err := c.within(ctx, func(u unit) (err error) {
			n, err = u.exec(ctx, c.sql.renew, c.cfg.durable(), f.stream, f.session, c.cfg.Lease.Milliseconds())
			return err
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("renew the lease of consumer %q: %w", c.cfg.durable(), err)
		case n == 0:
			return errFenced
		}
	}
}

// release lets the next process in at once.
func (f *fence) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	err := f.c.within(ctx, func(u unit) error {
		_, err := u.exec(ctx, f.c.sql.release, f.c.cfg.durable(), f.stream, f.session)
		return err
	})
	if err != nil {
		f.c.log.DebugContext(ctx, "lease not given up; it ends by itself", slog.Any("err", err))
	}
}
