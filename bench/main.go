// Command bench measures the relay against its two walls, side by side in one
// run: PostgreSQL alone draining a backlog through a slot, JetStream alone
// taking ready-made messages through our publisher, and the relay that joins
// them.
//
// It starts throw-away servers on loopback. Only ratios within one table carry
// over to another machine: each candidate drains the same backlog, several
// rounds in turn, and each round is checked (every row stored once, in order).
// BENCH_PROFILE names a folder for CPU profiles of the candidates.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/walrelay/walrelay/internal/testenv"
)

type settings struct {
	rows, perTx, size, rounds int
	only                      string
	json                      bool
}

func main() {
	testenv.Main()
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func start() error {
	if len(os.Args) > 1 && os.Args[1] == "candidate" {
		return candidate(os.Args[2:])
	}
	var s settings
	flag.IntVar(&s.rows, "rows", 200_000, "rows of the backlog")
	flag.IntVar(&s.perTx, "tx", 1000, "rows a transaction")
	flag.IntVar(&s.size, "size", 256, "bytes of a payload")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds, in each of which every candidate runs once")
	flag.StringVar(&s.only, "only", "", "candidates to run, separated by commas; empty means all")
	flag.BoolVar(&s.json, "json", false, "print JSON instead of a table")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return run(ctx, s)
}

func run(ctx context.Context, s settings) error {
	if s.rows < 1 || s.perTx < 1 || s.size < 1 || s.rounds < 1 {
		return fmt.Errorf("rows, tx, size and rounds must be at least 1")
	}
	fmt.Fprintf(os.Stderr, "making a backlog of %d rows, %d a transaction, %d bytes each\n", s.rows, s.perTx, s.size)
	g, err := newGround(ctx, s)
	if err != nil {
		return err
	}
	defer g.close()
	var results []result
	for _, name := range candidates() {
		if s.only == "" || strings.Contains(","+s.only+",", ","+name+",") {
			results = append(results, result{Name: name})
		}
	}
	for round := range s.rounds {
		for i := range results {
			m, err := g.measure(ctx, results[i].Name, round)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", results[i].Name, round+1, err)
			}
			results[i].add(m)
			fmt.Fprintf(os.Stderr, "round %d  %-10s %8.0f events/s  %5.2f us CPU\n", round+1, results[i].Name, m.rate, m.cpu)
		}
	}
	if s.json {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{
			"rows": s.rows, "rows_per_transaction": s.perTx, "payload_bytes": s.size, "rounds": s.rounds, "candidates": summaries(results),
		})
	}
	fmt.Fprintf(os.Stdout, "%d rows, %d a transaction, %d bytes, %d rounds\n", s.rows, s.perTx, s.size, s.rounds)
	printTable(os.Stdout, results)
	return nil
}
