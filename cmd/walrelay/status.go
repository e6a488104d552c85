package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
)

type statusCmd struct {
	database `embed:""`
	listener `embed:""`

	JSON  bool          `name:"json" help:"One JSON object, or one a line with --watch."`
	Watch bool          `help:"Show it again and again until stopped."`
	Every time.Duration `help:"How often --watch shows it." default:"2s"`
}

// statusAnswer is what could be found out, and from whom.
type statusAnswer struct {
	From string `json:"from"` // admin or postgresql
	// Ready says whether events are known to be delivered, or would be if
	// there were any.
	Ready bool `json:"ready"`
	// NoRelay says why no relay was asked; empty when one was.
	NoRelay  string          `json:"no_relay,omitempty"`
	Relay    *admin.Report   `json:"relay,omitempty"`
	Database *databaseStatus `json:"database,omitempty"`
}

func (c *statusCmd) check() error {
	err := c.checkAdmin()
	if c.Every <= 0 {
		err = errors.Join(err, &walrelay.ConfigError{Field: "Every", Value: c.Every.String(), Reason: "use a positive duration such as 2s"})
	}
	if c.DatabaseURL != "" {
		_, unreadable := c.connection("")
		err = errors.Join(err, unreadable)
	}
	return errors.Join(err, c.checkDatabase())
}

// Run shows the status once, or again and again.
func (c *statusCmd) Run(e *env) error {
	if c.Watch {
		return c.watch(e)
	}
	answer, err := c.ask(e.ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(answer)
	} else {
		err = answer.print(e.stdout, time.Now(), nil)
	}
	if err == nil && !answer.Ready {
		return errCheckFailed
	}
	return err
}

// ask asks the relay, or else PostgreSQL.
func (c *statusCmd) ask(ctx context.Context) (*statusAnswer, error) {
	noRelay := "--admin is off"
	if c.Admin != "off" {
		report, err := c.askAdmin(ctx)
		switch {
		case err == nil && report.Source == c.Source:
			return &statusAnswer{From: "admin", Ready: report.Ready, Relay: report}, nil
		case err == nil:
			noRelay = fmt.Sprintf("the relay on %s is of source %q, not %q", c.Admin, report.Source, c.Source)
		default:
			noRelay = fmt.Sprintf("no relay answers on %s: %v", c.Admin, err)
		}
	}
	if c.DatabaseURL == "" {
		return nil, fmt.Errorf("%s; with --database-url PostgreSQL is asked instead", noRelay)
	}
	found, err := c.askDatabase(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s; PostgreSQL instead: %w", noRelay, err)
	}
	return &statusAnswer{From: "postgresql", NoRelay: noRelay, Database: found}, nil
}
