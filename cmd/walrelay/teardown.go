package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
)

type teardownCmd struct {
	database `embed:""`
	outboxes `embed:""`

	DryRun bool `help:"Show what would be dropped and change nothing."`
	Yes    bool `help:"Do it without being asked."`
	JSON   bool `name:"json" help:"One JSON object; needs --yes or --dry-run."`
}

func (c *teardownCmd) check() error {
	_, err := c.connection("")
	if c.JSON && !c.Yes && !c.DryRun {
		err = errors.Join(err, &walrelay.ConfigError{Field: "JSON", Reason: "needs --yes or --dry-run: nobody can be asked in the middle of it"})
	}
	return errors.Join(err, c.checkDatabase(), c.checkTables())
}

// Run shows what is undelivered, asks, and drops slot and publication.
func (c *teardownCmd) Run(e *env) error {
	cfg := walrelay.Config{
		DatabaseURL: c.DatabaseURL, DatabasePassword: c.password(), Source: c.Source, Slot: c.Slot, Publication: c.Publication, Schema: c.Schema,
		Tables: c.tables(c.Schema),
	}
	report, err := walrelay.Teardown(e.ctx, cfg, func(t walrelay.TeardownReport) (bool, error) {
		if !c.JSON {
			printTeardown(e.stdout, c.Source, &t)
		}
		switch {
		case c.DryRun, t.Nothing():
			return false, nil
		case c.Yes:
			return true, nil
		}
		return ask(e, "Drop them?")
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(report)
	}
	if report.Dropped {
		fmt.Fprintln(e.stdout, "dropped; tables, rows and dead letters stay. walrelay migrate and walrelay run begin again, and deliver what was not")
	}
	return nil
}

func printTeardown(out io.Writer, source string, t *walrelay.TeardownReport) {
	if t.ConfirmedLSN == "" {
		fmt.Fprintf(out, "source %s has no slot %s\n", oneLine(source), oneLine(t.Slot))
	} else {
		fmt.Fprintf(out, "slot %s, delivered up to %s, is dropped; the server keeps %s of WAL for it\n", oneLine(t.Slot), t.ConfirmedLSN, admin.Size(t.RetainedBytes))
	}
	switch {
	case t.PublicationOurs:
		fmt.Fprintf(out, "publication %s is dropped\n", oneLine(t.Publication))
	case t.Publication != "":
		fmt.Fprintf(out, "publication %s was not made by walrelay migrate and stays\n", oneLine(t.Publication))
	}
	fmt.Fprintf(out, "%d rows of the outbox tables are not known to be delivered\n", t.Unproven)
	for _, open := range []struct {
		n    int
		what string
	}{{t.Letters, "dead letters"}, {t.Gaps, "gaps"}, {t.Jobs, "jobs"}} {
		if open.n > 0 {
			fmt.Fprintf(out, "%d %s are open\n", open.n, open.what)
		}
	}
}
