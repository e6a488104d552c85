package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/job"
)

// chooseOwn finds the relay's open letters that a change is for, and says which
// they are.
func (c *chosen) chooseOwn(e *env, conn *pgx.Conn, d *database, what string) ([]int64, error) {
	since, err := sinceTime(c.Since, time.Now())
	if err != nil {
		return nil, &usageError{err}
	}
	filter := deadletter.Filter{Source: d.Source, IDs: c.IDs, Reason: c.Reason, Since: since, Limit: 1000}
	var ids []int64
	table := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
	for {
		letters, err := deadletter.List(e.ctx, conn, d.Schema, filter)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42P01" {
			return nil, &usageError{fmt.Errorf("schema %q has no dead letters of a relay; give --consumer NAME for those of a consumer: %w", d.Schema, err)}
		}
		if err != nil {
			return nil, err
		}
		for i := range letters {
			l := &letters[i]
			if ids = append(ids, l.ID); len(ids) == 1 {
				_, _ = fmt.Fprintf(table, "%s:\n", what) // Flush tells
			}
			if len(ids) <= mostShown {
				_, _ = fmt.Fprintf(table, "  %d\t%s\t%s/%s\t%s\t%s\n", l.ID, l.Reason, oneLine(l.AggregateType), oneLine(l.AggregateID), oneLine(l.EventType), oneLine(l.EventID))
			}
		}
		if len(letters) < filter.Limit {
			break
		}
		filter.After = letters[len(letters)-1].ID
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	var none []int64
	for _, id := range c.IDs {
		if !slices.Contains(ids, id) {
			none = append(none, id)
		}
	}
	switch {
	case len(none) > 0:
		return nil, fmt.Errorf("no open dead letter of source %q has the id %s; walrelay deadletters list shows which there are",
			d.Source, strings.Trim(fmt.Sprint(none), "[]"))
	case len(ids) == 0:
		fmt.Fprintln(e.stdout, "no open dead letter")
	case len(ids) > mostShown:
		fmt.Fprintf(e.stdout, "  and %d more\n", len(ids)-mostShown)
	}
	return ids, nil
}

// own asks the relay to publish its own dead letters after all.
func (c *deadlettersRequeueCmd) own(e *env, conn *pgx.Conn) error {
	ids, err := c.chooseOwn(e, conn, &c.database, "To be routed with the relay's configuration of now and published")
	if err != nil || len(ids) == 0 {
		return err
	}
	if yes, err := c.confirmed(e, fmt.Sprintf("Publish %d?", len(ids))); err != nil || !yes {
		return err
	}
	id, err := job.Ask(e.ctx, conn, c.Schema, c.Source, job.Requeue, job.Arguments{Letters: ids, Reason: c.Why}, who(c.By))
	if err != nil {
		return err
	}
	w := watcher{conn: conn, database: &c.database, id: id}
	if c.NoWait {
		return w.leave(e)
	}
	if c.Wait > 0 {
		ctx, cancel := context.WithTimeout(e.ctx, c.Wait)
		defer cancel()
		bounded := *e
		bounded.ctx = ctx
		e = &bounded
	}
	return w.watch(e)
}

// own gives the relay's own dead letters up. The record of it is a job that is
// done.
func (c *deadlettersDiscardCmd) own(e *env, conn *pgx.Conn) error {
	ids, err := c.chooseOwn(e, conn, &c.database, "To be given up: these events will not be published")
	if err != nil || len(ids) == 0 {
		return err
	}
	if yes, err := c.confirmed(e, fmt.Sprintf("Discard %d?", len(ids))); err != nil || !yes {
		return err
	}
	var done []int64
	err = pgx.BeginFunc(e.ctx, conn, func(tx pgx.Tx) (err error) {
		if done, err = deadletter.Discard(e.ctx, tx, c.Schema, c.Source, ids, who(c.By)); err != nil || len(done) == 0 {
			return err
		}
		return job.Record(e.ctx, tx, c.Schema, c.Source, job.Discard, job.Arguments{Letters: done, Reason: c.Why}, who(c.By))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(e.stdout, "discarded: %d\n", len(done))
	return nil
}
