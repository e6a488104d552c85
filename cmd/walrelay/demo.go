package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

type demoCmd struct {
	Orders int  `help:"Orders of the longer run." default:"3000"`
	JSON   bool `name:"json" help:"The same as data: one JSON object on standard output."`
	Keep   bool `help:"Keep the servers and their folder until Ctrl-C."`
	Page   bool `help:"In place of all that, a relay with its status page until Ctrl-C: busy, idle, and with NATS stopped in turn."`
}

// demoResult is what the demo found in the databases and streams.
type demoResult struct {
	Scenarios []demoScenario `json:"scenarios"`
	Run       demoAccount    `json:"run"`
}

type demoScenario struct {
	Name    string `json:"name"`
	Orders  int    `json:"orders"`
	Stored  int    `json:"stored"`
	Charges int    `json:"charges"`
	Verdict string `json:"verdict,omitempty"`
}

type demoAccount struct {
	Committed      int     `json:"committed"`
	Stored         int     `json:"stored"`
	Applied        int     `json:"applied"`
	Lost           int     `json:"lost"`
	AppliedTwice   int     `json:"applied_twice"`
	OutOfOrder     int     `json:"out_of_order"`
	StoredTwice    int     `json:"stored_twice"`
	RelayKills     int     `json:"relay_kills"`
	ConsumerKills  int     `json:"consumer_kills"`
	BrokerRestarts int     `json:"broker_restarts"`
	Seconds        float64 `json:"seconds"`
}

// Run plays the scenarios and the longer run, and prints what the servers
// really hold in the end.
func (c *demoCmd) Run(e *env) error {
	if c.Orders < 1000 {
		return &usageError{fmt.Errorf("--orders %d: use at least 1000, or the kills find nothing in flight", c.Orders)}
	}
	progress := e.stdout
	if c.JSON {
		progress = e.stderr
	}
	fmt.Fprintln(progress, "Starting a throw-away PostgreSQL and a JetStream server on loopback.")
	w, err := newWorld(e.ctx)
	if err != nil {
		return err
	}
	defer w.close()
	fmt.Fprintf(progress, "PostgreSQL %d and JetStream are up.", w.pg.Version())
	if c.Page {
		fmt.Fprint(progress, "\n\n")
		return c.page(e.ctx, progress, w)
	}
	fmt.Fprint(progress, " Every kill below is a SIGKILL of a process.\n\n")

	var result demoResult
	if !c.JSON {
		fmt.Fprintf(e.stdout, "%-52s %7s %7s %8s\n", "scenario", "orders", "stored", "charges")
	}
	for _, play := range scenarios() {
		s, err := play.run(e.ctx, w)
		if err != nil {
			return fmt.Errorf("scenario %q: %w", play.name, err)
		}
		result.Scenarios = append(result.Scenarios, s...)
		if !c.JSON {
			printScenarios(e.stdout, s)
		}
	}
	started := time.Now()
	result.Run, err = longRun(e.ctx, w, c.Orders, progress)
	if err != nil {
		return err
	}
	result.Run.Seconds = time.Since(started).Seconds()
	if c.JSON {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(result); err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
	} else {
		printAccount(e.stdout, result.Run)
	}
	if c.Keep && e.ctx.Err() == nil {
		fmt.Fprintf(progress, "\nPostgreSQL: %s\nNATS:       %s\nCtrl-C ends them.\n", w.pg.URL("run"), w.nats.URL())
		<-e.ctx.Done()
	}
	if result.Run.Lost > 0 || result.Run.AppliedTwice > 0 || result.Run.OutOfOrder > 0 {
		return errCheckFailed
	}
	return nil
}

func printScenarios(w io.Writer, scenarios []demoScenario) {
	for _, s := range scenarios {
		fmt.Fprintf(w, "%-52s %7d %7d %8d   %s\n", s.Name, s.Orders, s.Stored, s.Charges, s.Verdict)
	}
}

func printAccount(w io.Writer, a demoAccount) {
	fmt.Fprintf(w, `
The longer run: %d times a relay was killed, %d times a consumer, and the broker was restarted %d times.

  committed     %6d   orders in PostgreSQL
  stored        %6d   different events in the stream, %d of them more than once
  applied       %6d   charges in PostgreSQL
  lost          %6d   orders without a charge
  applied twice %6d   orders with more than one
  out of order  %6d   charges or messages before an earlier one of their customer
`, a.RelayKills, a.ConsumerKills, a.BrokerRestarts, a.Committed, a.Stored, a.StoredTwice, a.Applied, a.Lost, a.AppliedTwice, a.OutOfOrder)
}
