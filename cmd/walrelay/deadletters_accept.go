package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/deadletter"
)

type deadlettersAcceptCmd struct {
	database `embed:""`

	Reason string `help:"The reason that status names, such as too_large." placeholder:"REASON"`
	By     string `help:"Who accepts; recorded (default: the user of this machine)." placeholder:"NAME"`
	DryRun bool   `help:"Say what would be accepted and change nothing."`
	Yes    bool   `help:"Accept without being asked."`
}

func (c *deadlettersAcceptCmd) check() error {
	var reason error
	if c.Reason == "" {
		reason = &walrelay.ConfigError{Field: "Reason", Reason: "is not set; give the one that walrelay status names"}
	}
	_, noURL := c.connection("")
	return errors.Join(reason, noURL, c.checkDatabase())
}

// Run records the acceptance. The relay sees it within two seconds.
func (c *deadlettersAcceptCmd) Run(e *env) error {
	conn, err := c.open(e.ctx, "walrelay deadletters")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	fmt.Fprintf(e.stdout, "For the next %v events of source %q that are refused for %s become dead letters, however many they are.\n", deadletter.AcceptFor, c.Source, c.Reason)
	if c.DryRun {
		return nil
	}
	if !c.Yes {
		if yes, err := ask(e, "Accept?"); err != nil || !yes {
			return err
		}
	}
	if err := deadletter.Accept(e.ctx, conn, c.Schema, c.Source, c.Reason, who(c.By)); err != nil {
		return err
	}
	fmt.Fprintln(e.stdout, "accepted")
	return nil
}
