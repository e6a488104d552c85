package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
)

type adoptCmd struct {
	database `embed:""`
	broker   `embed:""`
	routing  `embed:""`

	Database bool       `help:"This database (restored, rebuilt, or another cluster) continues the source. What its tables hold now counts as delivered."`
	Shared   bool       `help:"Others write to --stream too."`
	Streams  streamList `help:"How streams of --routes are written to where the defaults do not fit." placeholder:"YAML" shape:"list"`
	DryRun   bool       `help:"Show what would be declared and change nothing."`
	Yes      bool       `help:"Do it without being asked."`
	JSON     bool       `name:"json" help:"One JSON object; needs --yes or --dry-run."`
}

func (c *adoptCmd) config() walrelay.Config {
	cfg := walrelay.Config{
		DatabaseURL: c.DatabaseURL, DatabasePassword: c.password(), NATS: c.NATS, NATSOptions: c.options, NATSDomain: c.NATSDomain, NATSInboxPrefix: c.NATSInboxPrefix,
		Source: c.Source, Slot: c.Slot, Publication: c.Publication, Schema: c.Schema, Streams: c.Streams.list,
	}
	if c.Shared && len(cfg.Streams) == 0 {
		cfg.Streams = []walrelay.Stream{{Name: firstOf(c.Stream, strings.ToUpper(c.Source)), Shared: true}}
	}
	if c.Database {
		c.into(&cfg)
	}
	return cfg
}

func (c *adoptCmd) check() error {
	_, err := walrelay.New(c.config())
	if c.Stream == "" && !c.Database {
		err = errors.Join(err, &walrelay.ConfigError{Field: "Stream", Reason: "is not set; name the stream that goes on, or give --database for the database"})
	}
	if strings.HasPrefix(c.NATS, embeddedPrefix) {
		err = errors.Join(err, &walrelay.ConfigError{
			Field: "NATS", Reason: "names a JetStream inside the relay; give the address where that listens (--embedded-listen of run), such as nats://127.0.0.1:4222",
		})
	}
	if c.JSON && !c.Yes && !c.DryRun {
		err = errors.Join(err, &walrelay.ConfigError{Field: "JSON", Reason: "needs --yes or --dry-run: nobody can be asked in the middle of it"})
	}
	return errors.Join(err, c.checkDatabase(), c.checkNATS(), c.checkTables())
}

// Run shows both ends, asks, and declares.
func (c *adoptCmd) Run(e *env) error {
	if c.Database {
		return c.adoptDatabase(e)
	}
	report, err := walrelay.Adopt(e.ctx, c.config(), c.Stream, whoAmI(), func(a walrelay.Adoption) (bool, error) {
		if !c.JSON {
			printAdoption(e.stdout, &a)
		}
		switch {
		case a.Nothing, c.DryRun:
			return false, nil
		case c.Yes:
			return true, nil
		}
		return ask(e, "Let the stream go on from there?")
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(report)
	}
	if report.Adopted {
		fmt.Fprintln(e.stdout, "adopted: a relay that has halted goes on when it looks again, within a minute")
	}
	return nil
}

func printAdoption(out io.Writer, a *walrelay.Adoption) {
	fmt.Fprintf(out, "stream %s as the relay knows it: %s\n", oneLine(a.Stream), streamEnd(a.Known))
	fmt.Fprintf(out, "stream %s as it is now: %s\n", oneLine(a.Stream), streamEnd(a.Now))
	if a.UndeliveredBytes != nil {
		fmt.Fprintf(out, "the slot goes on at %s; %s of WAL behind it are not delivered and will be\n", a.ConfirmedLSN, admin.Size(*a.UndeliveredBytes))
	} else {
		fmt.Fprintln(out, "there is no slot: what was written since the newest proof is published from the table when the relay makes it")
	}
	for _, g := range a.Gaps {
		fmt.Fprintln(out, acceptedGap(g))
	}
	switch {
	case a.Nothing:
		fmt.Fprintln(out, "the stream is the one that the relay knows: there is nothing to adopt")
	case a.ProvenAt.IsZero():
		fmt.Fprintln(out, "nothing was ever proven to be stored")
	default:
		fmt.Fprintf(out, "what was proven to be stored at %s is not sent again; walrelay replay can send it\n", a.ProvenAt.UTC().Format(time.RFC3339))
	}
}

func streamEnd(e walrelay.StreamEnd) string {
	if e.Created.IsZero() {
		return "not at all"
	}
	text := fmt.Sprintf("made at %s, last sequence %d", stamp(e.Created), e.Sequence)
	if e.Position != "" {
		text += ", position " + e.Position
	}
	return text
}

func acceptedGap(g walrelay.AdoptedGap) string {
	events := "an unknown number of events"
	if g.Events > 0 {
		events = fmt.Sprintf("%d events", g.Events)
	}
	return fmt.Sprintf("gap %d (%s, found at %s, %s) is accepted", g.ID, g.Kind, stamp(g.FoundAt), events)
}

// whoAmI names the person for the record.
func whoAmI() string {
	host, _ := os.Hostname() // a name for people; empty does no harm
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return name + "@" + host
}
