package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/deadletter"
)

// chosen are the flags that say which dead letters a change is for, who makes
// it and why.
type chosen struct {
	IDs    []int64 `arg:"" optional:"" name:"id" help:"As in deadletters list; or --all."`
	All    bool    `help:"All open ones, or those that --reason and --since leave."`
	Reason string  `help:"Only those with this reason." placeholder:"REASON"`
	Since  string  `help:"Only those recorded since: a duration such as 10m (ago) or a time such as 2026-01-02T15:04:05Z." placeholder:"TIME"`
	Why    string  `help:"Why; recorded." placeholder:"TEXT"`
	By     string  `help:"Who; recorded (default: the user of this machine)." placeholder:"NAME"`
	DryRun bool    `help:"Say what would be done and change nothing."`
	Yes    bool    `help:"Do it without being asked."`
}

type deadlettersRequeueCmd struct {
	database `embed:""`
	chosen   `embed:""`

	Wait   time.Duration `help:"Wait that long for the outcome, and end with exit code 1 unless all were applied. Without it a consumer's are not waited for, and the relay's own until they are done." placeholder:"DURATION"`
	NoWait bool          `help:"Ask for the relay's own and do not wait."`
}

type deadlettersDiscardCmd struct {
	database `embed:""`
	chosen   `embed:""`
}

func (c *chosen) check() error {
	var which, why error
	switch {
	case len(c.IDs) == 0 && !c.All:
		which = errors.New("which dead letters: give ids as in deadletters list, or --all")
	case len(c.IDs) > 0 && (c.All || c.Reason != "" || c.Since != ""):
		which = errors.New("which dead letters: give ids, or --all with --reason and --since; not both")
	}
	if strings.TrimSpace(c.Why) == "" {
		why = &walrelay.ConfigError{Field: "Why", Reason: "is not set; say why, it is recorded"}
	}
	_, since := sinceTime(c.Since, time.Now())
	return errors.Join(which, why, since)
}

func (c *chosen) filter() (deadletter.ConsumerFilter, error) {
	since, err := sinceTime(c.Since, time.Now())
	if err != nil {
		return deadletter.ConsumerFilter{}, &usageError{err}
	}
	return deadletter.ConsumerFilter{IDs: c.IDs, Reason: c.Reason, Since: since}, nil
}

// confirmed says what is to be done and asks. It is false on a dry run.
func (c *chosen) confirmed(e *env, question string) (bool, error) {
	if c.DryRun || c.Yes {
		return !c.DryRun, nil
	}
	return ask(e, question)
}

func (c *chosen) request() deadletter.Request {
	return deadletter.Request{By: who(c.By), Why: c.Why}
}

// who is the one that an audit trail names.
func who(given string) string {
	if u, err := user.Current(); given == "" && err == nil {
		return u.Username
	}
	return given
}

func (c *deadlettersRequeueCmd) check() error {
	_, noURL := c.connection("")
	var wait error
	if c.Wait < 0 {
		wait = &walrelay.ConfigError{Field: "Wait", Value: c.Wait.String(), Reason: "use a duration such as 30s"}
	}
	return errors.Join(c.chosen.check(), wait, noURL, c.checkDatabase())
}

func (c *deadlettersDiscardCmd) check() error {
	_, noURL := c.connection("")
	return errors.Join(c.chosen.check(), noURL, c.checkDatabase())
}

// Run asks for another try. Who has the handler makes it: the running service.
func (c *deadlettersRequeueCmd) Run(e *env, of *deadlettersCmd) error {
	conn, err := c.open(e.ctx, "walrelay deadletters")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	if of.Consumer == "" {
		return c.own(e, conn)
	}
	box := consumerBox{conn: conn, schema: c.Schema, consumer: of.Consumer}
	ids, done, err := box.ask(e, &c.chosen, "To be tried again", "Try %d again?", func(q deadletter.Querier, ids []int64) ([]int64, error) {
		return deadletter.RequeueConsumer(e.ctx, q, c.Schema, of.Consumer, ids, c.request())
	})
	if err != nil || len(ids) == 0 {
		return err
	}
	fmt.Fprintf(e.stdout, "asked for: %d; the running service tries them within its CheckInterval (5 s unless set), or when it starts\n", done)
	if c.Wait == 0 {
		return nil
	}
	return box.await(e, ids, c.Wait)
}

// Run discards.
func (c *deadlettersDiscardCmd) Run(e *env, of *deadlettersCmd) error {
	conn, err := c.open(e.ctx, "walrelay deadletters")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	if of.Consumer == "" {
		return c.own(e, conn)
	}
	box := consumerBox{conn: conn, schema: c.Schema, consumer: of.Consumer}
	const what = "To be given up: their events will have no effect in this consumer, also if they come again"
	ids, done, err := box.ask(e, &c.chosen, what, "Discard %d?", func(q deadletter.Querier, ids []int64) ([]int64, error) {
		return deadletter.DiscardConsumer(e.ctx, q, c.Schema, of.Consumer, ids, c.request())
	})
	if err != nil || len(ids) == 0 {
		return err
	}
	fmt.Fprintf(e.stdout, "discarded: %d\n", done)
	return nil
}
