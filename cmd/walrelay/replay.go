package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/job"
)

type replayCmd struct {
	database `embed:""`
	broker   `embed:""`
	routing  `embed:""`
	signing  `embed:""`

	Since     string   `help:"Events written since: a duration such as 2h (ago) or a time such as 2026-01-02T15:04:05Z." placeholder:"TIME"`
	Until     string   `help:"Events written before; likewise (default with --since: now)." placeholder:"TIME"`
	ID        []string `name:"id" help:"The event of this id, as the table or a message has it; may come several times." placeholder:"ID"`
	Aggregate string   `help:"The events of one aggregate." placeholder:"TYPE/ID"`
	Missing   bool     `help:"What is missing: the rows of the gaps that status shows, whatever --heal-limit and --on-gap say."`
	Discard   bool     `help:"With --missing: let the open gaps be. Their rows are not sent, and no audit finds them again."`

	NewID  bool   `name:"new-id" help:"A new message id for each, so that a stream stores it though it remembers the event. Receipts know the event all the same."`
	Why    string `help:"Why; recorded." placeholder:"TEXT"`
	By     string `help:"Who; recorded (default: the user of this machine)." placeholder:"NAME"`
	DryRun bool   `help:"Say what would be sent, and where; change nothing."`
	Yes    bool   `help:"Do it without being asked."`
	NoWait bool   `help:"Ask the relay for it and do not wait."`
	JSON   bool   `name:"json" help:"One JSON object at the end: the job, or with --dry-run the plan."`
}

func (c *replayCmd) config() walrelay.Config {
	cfg := walrelay.Config{
		DatabaseURL: c.DatabaseURL, DatabasePassword: c.password(), NATS: c.NATS, NATSOptions: c.options, NATSDomain: c.NATSDomain, NATSInboxPrefix: c.NATSInboxPrefix,
		Source: c.Source, Slot: c.Slot, Publication: c.Publication, Schema: c.Schema,
	}
	c.routing.into(&cfg)
	c.signing.into(&cfg)
	return cfg
}

// check finds all that is wrong without a server.
func (c *replayCmd) check() error {
	_, err := walrelay.New(c.config())
	_, which := c.which(time.Now())
	rows := c.Since != "" || c.Until != "" || len(c.ID) > 0 || c.Aggregate != ""
	switch {
	case c.Missing && (rows || c.NewID):
		which = errors.Join(which, errors.New("--missing knows its rows by itself; leave out --since, --until, --id, --aggregate and --new-id"))
	case c.Discard && !c.Missing:
		which = errors.Join(which, errors.New("--discard is for --missing"))
	case c.Discard && strings.TrimSpace(c.Why) == "":
		which = errors.Join(which, &walrelay.ConfigError{Field: "Why", Reason: "is not set; say why the missing events are let be, it is recorded"})
	case !c.Missing && !rows:
		which = errors.Join(which, errors.New("which events: give --since or --until, --id, --aggregate, or --missing"))
	}
	return errors.Join(err, which, c.checkDatabase(), c.checkNATS(), c.checkTables(), c.checkSigning())
}

// which reads the flags that choose rows.
func (c *replayCmd) which(now time.Time) (walrelay.Replay, error) {
	since, err := sinceTime(c.Since, now)
	until, bad := sinceTime(c.Until, now)
	if bad != nil {
		err = errors.Join(err, &walrelay.ConfigError{Field: "Until", Value: c.Until, Reason: "use a duration such as 10m (ago), or a time such as 2026-01-02T15:04:05Z"})
	}
	r := walrelay.Replay{Since: since, Until: until, IDs: c.ID}
	if !since.IsZero() && until.IsZero() {
		r.Until = now
	}
	if !r.Until.IsZero() && !since.Before(r.Until) {
		err = errors.Join(err, &walrelay.ConfigError{Field: "Until", Value: c.Until, Reason: "lies before --since"})
	}
	if c.Aggregate != "" {
		kind, id, ok := strings.Cut(c.Aggregate, "/")
		if r.AggregateType, r.AggregateID = kind, id; !ok || kind == "" || id == "" {
			err = errors.Join(err, &walrelay.ConfigError{Field: "Aggregate", Value: c.Aggregate, Reason: "use TYPE/ID, such as order/42"})
		}
	}
	return r, err
}

// usualReceipts is how long consumers keep receipts unless set otherwise.
const usualReceipts = 30 * 24 * time.Hour

// Run asks the relay for a job and watches it.
func (c *replayCmd) Run(e *env) error {
	conn, err := c.open(e.ctx, "walrelay replay")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	if c.Missing {
		return c.missing(e, conn)
	}
	which, err := c.which(time.Now())
	if err != nil {
		return &usageError{err}
	}
	plan, err := walrelay.PlanReplay(e.ctx, c.config(), which)
	if err != nil {
		return err
	}
	if c.JSON && c.DryRun {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(plan)
	}
	c.tell(e, plan)
	if c.DryRun || plan.Rows == plan.Skipped {
		return nil
	}
	return c.askFor(e, conn, job.Replay, job.Arguments{
		Since: which.Since, Until: which.Until, IDs: which.IDs, AggregateType: which.AggregateType, AggregateID: which.AggregateID,
		NewID: c.NewID, Reason: c.Why,
	}, "Send them again?")
}

// tell says what a replay is about to do; where the answer is JSON, beside it.
func (c *replayCmd) tell(e *env, plan *walrelay.ReplayPlan) {
	out := e.stdout
	if c.JSON {
		out = e.stderr
	}
	fmt.Fprintf(out, "%d rows are chosen\n", plan.Rows)
	for _, stream := range slices.Sorted(maps.Keys(plan.Streams)) {
		fmt.Fprintf(out, "  %d go to stream %s\n", plan.Streams[stream], stream)
	}
	if plan.Refused > 0 {
		fmt.Fprintf(out, "  %d would be refused and become dead letters\n", plan.Refused)
	}
	if plan.Skipped > 0 {
		fmt.Fprintf(out, "  %d are passed over: no route publishes them, or they are dead letters (walrelay deadletters requeue)\n", plan.Skipped)
	}
	if age := time.Since(plan.Oldest); !plan.Oldest.IsZero() && age > usualReceipts {
		fmt.Fprintf(out, "warning: the oldest was written %d days ago; consumers keep receipts for 30 days unless set otherwise, and one whose receipt is gone applies its event again\n",
			int(age.Hours()/24))
	}
	if !c.NewID && len(plan.Streams) > 0 {
		fmt.Fprintln(out, "an event that its stream still remembers by its id is not stored twice; one that was removed since waits until the stream's duplicate window has passed, and what is live behind it (--new-id does not wait)")
	}
}

// askFor enters the job and watches it.
func (c *replayCmd) askFor(e *env, conn *pgx.Conn, kind string, a job.Arguments, question string) error {
	if !c.Yes {
		if yes, err := ask(e, question); err != nil || !yes {
			return err
		}
	}
	id, err := job.Ask(e.ctx, conn, c.Schema, c.Source, kind, a, who(c.By))
	if err != nil {
		return err
	}
	w := watcher{database: &c.database, conn: conn, id: id, json: c.JSON}
	if c.NoWait {
		return w.leave(e)
	}
	return w.watch(e)
}
