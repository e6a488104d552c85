// Command bench measures the relay against its two walls, side by side in one
// run: PostgreSQL alone draining a backlog through a slot, JetStream alone
// taking ready-made messages through our publisher, a prototype that knows no
// failure, the relay, and what users write: polling one by one and in batches.
//
// It starts throw-away servers on loopback, or uses those of -database and
// -nats, where it keeps to a schema, slots and streams of its own, refuses to
// begin where they exist, and removes them again. Only ratios within one table
// carry over to another machine: each candidate drains the same backlog,
// several rounds in turn, and each round is checked (every row stored once, in
// order). BENCH_PROFILE names a folder for profiles of the candidates.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/walrelay/walrelay/internal/testenv"
)

// options are the flags.
type options struct {
	at                  given
	suite, out, compare string
	latency             string
	lasts, steady       time.Duration
	costs               int // transactions of each writer; 0 measures none
	w                   workload
}

func main() {
	testenv.Main()
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func start() error {
	if len(os.Args) == 3 && os.Args[1] == "candidate" {
		return candidate(os.Args[2])
	}
	o := options{w: base("one case")}
	var only string
	flag.StringVar(&o.at.database, "database", "", "PostgreSQL to measure at, instead of one of our own")
	flag.StringVar(&o.at.nats, "nats", "", "NATS to measure at, instead of one of our own")
	flag.StringVar(&o.suite, "suite", "", "a set of cases: quick or full; without it the one that the other flags describe")
	flag.StringVar(&o.out, "out", "", "folder to write results.json and results.svg to")
	flag.StringVar(&o.compare, "compare", "", "a file of ratios to compare with; fails where one is worse than its noise allows")
	flag.StringVar(&o.latency, "latency", "", "commits a second, separated by commas: measure the time from commit to stored at each")
	flag.BoolFunc("costs", "measure what an event costs the service that writes it, and no backlog", func(string) error {
		o.costs = costTransactions
		return nil
	})
	flag.DurationVar(&o.steady, "steady", 0, "for how long to look at the outbox's size under a steady load, and measure no backlog")
	flag.DurationVar(&o.lasts, "latency-time", 5*time.Second, "how long commits come at each of these rates")
	flag.IntVar(&o.w.Rows, "rows", o.w.Rows, "rows of the backlog")
	flag.IntVar(&o.w.PerTx, "tx", o.w.PerTx, "rows a transaction")
	flag.IntVar(&o.w.Size, "size", o.w.Size, "bytes of a payload")
	flag.IntVar(&o.w.Aggregates, "aggregates", o.w.Aggregates, "aggregates")
	flag.IntVar(&o.w.Streams, "streams", o.w.Streams, "streams that the rows go to in turn")
	flag.IntVar(&o.w.Rounds, "rounds", o.w.Rounds, "rounds, in each of which every candidate runs once")
	flag.IntVar(&o.w.Replicas, "replicas", o.w.Replicas, "replicas of the stream, 1 or 3")
	flag.BoolVar(&o.w.SyncAlways, "sync-always", false, "NATS syncs each write to disk")
	flag.BoolVar(&o.w.Lanes, "lanes", false, "write to the stream as to a shared one")
	flag.StringVar(&o.w.Batches, "batches", "", "the relay's --atomic-batches")
	flag.DurationVar(&o.w.RoundTrip, "round-trip", 0, "added on the way to NATS")
	flag.StringVar(&only, "only", "", "candidates, separated by commas; empty means all: "+strings.Join(candidates(), ", "))
	flag.Parse()
	o.w.Only = strings.FieldsFunc(only, func(r rune) bool { return r == ',' })
	if (o.at.database == "") != (o.at.nats == "") {
		return errors.New("-database and -nats go together")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return run(ctx, o)
}

// say shows progress, apart from the results.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func run(ctx context.Context, o options) error {
	cases := []workload{o.w}
	switch o.suite {
	case "":
		if o.costs > 0 || o.steady > 0 {
			cases = nil
		}
	case "quick":
		cases = quick()
	case "full":
		cases = full()
	default:
		return fmt.Errorf("no suite %q; there are quick and full", o.suite)
	}
	for i := range cases {
		if err := cases[i].problem(); err != nil {
			return err
		}
	}
	report := newReport()
	began := time.Now()
	for i, w := range cases {
		say("case %d of %d, after %v: %s (%s)", i+1, len(cases), time.Since(began).Round(time.Second), w.Name, w.String())
		results, err := measureCase(ctx, w, o.at)
		if err != nil {
			return fmt.Errorf("case %s: %w", w.Name, err)
		}
		report.add(w, results)
		fmt.Fprintf(os.Stdout, "\n%s: %s, %d rounds\n", w.Name, w.String(), w.Rounds)
		printTable(os.Stdout, summaries(results))
	}
	rates, err := ratesOf(o)
	if err != nil {
		return err
	}
	for _, rate := range rates {
		found, err := measureLatency(ctx, o.at, rate, o.lasts)
		if err != nil {
			return fmt.Errorf("latency at %d commits a second: %w", rate, err)
		}
		report.Latency = append(report.Latency, found...)
	}
	printLatency(os.Stdout, report.Latency)
	if o.suite == "full" {
		o.costs = costTransactions
	}
	if o.costs > 0 {
		say("what an event costs the service")
		if report.Costs, err = measureCosts(ctx, o.at, o.costs); err != nil {
			return fmt.Errorf("costs of the service: %w", err)
		}
		printCosts(os.Stdout, report.Costs)
	}
	if o.steady > 0 {
		say("%d rows a second for %v", steadyRate, o.steady)
		if report.Steady, err = measureSteady(ctx, o.at, o.steady); err != nil {
			return fmt.Errorf("steady load: %w", err)
		}
		printSteady(os.Stdout, report.Steady)
	}
	if o.out != "" {
		if err := report.write(o.out); err != nil {
			return err
		}
	}
	if o.compare != "" {
		return report.compare(o.compare, os.Stdout)
	}
	return nil
}

func measureCase(ctx context.Context, w workload, at given) ([]result, error) {
	g, err := newGround(ctx, w, at)
	if err != nil {
		return nil, err
	}
	defer g.close()
	var results []result
	for _, name := range candidates() {
		if w.wants(name) {
			results = append(results, result{Name: name})
		}
	}
	for round := range w.Rounds {
		for i := range results {
			m, err := g.measure(ctx, results[i].Name, round)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", results[i].Name, round+1, err)
			}
			results[i].add(m)
			say("  round %d  %-10s %8.0f events/s  %6.2f us CPU", round+1, results[i].Name, m.rate, m.cpu)
		}
	}
	return results, nil
}
