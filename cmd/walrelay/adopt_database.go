package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/walrelay/walrelay"
)

// adoptDatabase shows both histories, asks, and declares.
func (c *adoptCmd) adoptDatabase(e *env) error {
	report, err := walrelay.AdoptDatabase(e.ctx, c.config(), whoAmI(), func(a walrelay.DatabaseAdoption) (bool, error) {
		if !c.JSON {
			printDatabaseAdoption(e.stdout, &a)
		}
		switch {
		case c.DryRun:
			return false, nil
		case c.Yes:
			return true, nil
		}
		return ask(e, "Let this database continue the source?")
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(report)
	}
	if report.Adopted {
		fmt.Fprintf(e.stdout, "adopted: epoch %d has begun; a relay that has halted goes on when it looks again, within a minute\n", report.Epoch)
	}
	return nil
}

func printDatabaseAdoption(out io.Writer, a *walrelay.DatabaseAdoption) {
	history := func(h walrelay.History) string { return fmt.Sprintf("system %s, timeline %d", h.SystemID, h.Timeline) }
	switch {
	case a.Known == nil:
		fmt.Fprintln(out, "this database has never been a source of this name")
	case a.Known.SystemID == a.Now.SystemID && a.Known.Timeline == a.Now.Timeline:
		fmt.Fprintf(out, "this database remembers itself as the source, in epoch %d (%s); adopt it if it was restored to an earlier time\n", a.Known.Epoch, history(*a.Known))
	default:
		fmt.Fprintf(out, "the source as this database remembers it: epoch %d, %s\n", a.Known.Epoch, history(*a.Known))
	}
	fmt.Fprintf(out, "this database: %s; its write-ahead log ends at %s\n", history(a.Now), a.WALEnd)
	for _, s := range a.Streams {
		fmt.Fprintf(out, "stream %s as this database remembers it: %s\n", oneLine(s.Stream), streamEnd(s.Known))
		fmt.Fprintf(out, "stream %s as it is now: %s\n", oneLine(s.Stream), streamEnd(s.Now))
	}
	if a.ConfirmedLSN != "" {
		fmt.Fprintf(out, "the slot stands at %s; what was committed from there up to now is not sent\n", a.ConfirmedLSN)
	} else {
		fmt.Fprintln(out, "there is no slot that can go on; the relay makes one")
	}
	for _, g := range a.Gaps {
		fmt.Fprintln(out, acceptedGap(g))
	}
	fmt.Fprintf(out, "%d rows of the outbox tables are not known to be delivered; adopting sends none of them: "+
		"walrelay verify names those that are in no stream, walrelay replay sends rows\n", a.Unproven)
	fmt.Fprintf(out, "epoch %d begins: what is committed from now on is sent\n", a.Epoch)
}
