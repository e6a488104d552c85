package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/walrelay/walrelay"
)

// outbox deletes the old rows of the outbox tables, the way a running relay
// does.
func (c *cleanupCmd) outbox(e *env) error {
	cfg := walrelay.Config{
		DatabaseURL: c.DatabaseURL, DatabasePassword: c.password(), Source: c.Source, Slot: c.Slot, Publication: c.Publication, Schema: c.Schema,
		Tables: c.tables(c.Schema), Retention: time.Duration(c.Retention),
	}
	found, err := walrelay.Cleanup(e.ctx, cfg, walrelay.Cleaning{DryRun: true})
	if err != nil {
		return err
	}
	for _, why := range found.Kept {
		fmt.Fprintf(e.stdout, "%s.\n", why)
	}
	fmt.Fprintf(e.stdout, "%d rows of source %q are older than %v and proven to be stored.\n", found.Deleted, c.Source, c.Retention)
	for _, part := range found.Dropped {
		fmt.Fprintf(e.stdout, "partition %s is dropped with its rows.\n", part)
	}
	nothing := found.Deleted == 0 && len(found.Dropped) == 0
	switch {
	case c.DryRun:
		return nil
	case nothing:
		cfg.Retention = walrelay.KeepForever // what has come since was not asked about; partitions are made all the same
	case !c.Yes:
		if yes, err := ask(e, "Delete them?"); err != nil || !yes {
			return err
		}
	}
	bar := progress{out: e.stderr, total: found.Deleted}
	done, err := walrelay.Cleanup(e.ctx, cfg, walrelay.Cleaning{Progress: bar.show, Patience: cleanupPatience})
	bar.end()
	if !nothing {
		fmt.Fprintf(e.stdout, "deleted: %d rows\n", done.Deleted)
	}
	for _, part := range done.Dropped {
		fmt.Fprintf(e.stdout, "dropped: partition %s\n", part)
	}
	if len(done.Made) > 0 {
		fmt.Fprintf(e.stdout, "made: %d partitions ahead\n", len(done.Made))
	}
	switch {
	case e.ctx.Err() != nil:
		return errors.New("stopped before all were deleted; run it again for the rest")
	case err != nil:
		return err
	case done.Busy:
		return fmt.Errorf("another cleaner of source %q is at it, such as the running relay; it deletes the rest", c.Source)
	}
	return nil
}
