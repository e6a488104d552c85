// The command drill runs drill after drill of package faults, each in a process
// of its own with a fresh seed, for as long as it is told to. It prints a line
// for each, and at the end the account; it ends with code 1 if a drill failed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// drillTimeout is how long one drill may take before it counts as one that
// hangs.
const drillTimeout = 20 * time.Minute

// A verdict is what a drill says of itself, see package faults.
type verdict struct {
	Plan       string   `json:"plan"`
	Injected   []string `json:"injected"`
	Committed  int      `json:"committed"`
	Lost       int      `json:"lost"`
	Twice      int      `json:"twice"`
	OutOfOrder int      `json:"out_of_order"`
	Faults     []string `json:"faults"`
	Failed     bool     `json:"failed"`
	Seconds    float64  `json:"seconds"`
}

// An account is the sum of all drills.
type account struct {
	drills, failed, faults, committed, lost, twice, outOfOrder int
}

func main() {
	length := flag.Duration("time", 30*time.Minute, "how long drills are run")
	seed := flag.Uint64("seed", 0, "run the one drill of this seed")
	logs := flag.String("logs", "", "folder for the logs of drills that failed (default: a new one among the temporary files)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Stdout, *length, *seed, *logs)
	stop()
	os.Exit(code) //nolint:forbidigo // this is main
}

func run(ctx context.Context, out io.Writer, length time.Duration, seed uint64, logs string) int {
	dir, err := os.MkdirTemp("", "walrelay-drills-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "drill:", err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is temporary
	if logs == "" {
		logs = filepath.Join(os.TempDir(), "walrelay-drills-failed")
	}
	d := &driller{dir: dir, logs: logs}
	if err := d.build(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "drill:", err)
		return 1
	}
	var sum account
	for end := time.Now().Add(length); ctx.Err() == nil && (sum.drills == 0 || time.Now().Before(end)); {
		n := seed
		if n == 0 {
			n = rand.Uint64()
		}
		v, err := d.drill(ctx, n)
		if ctx.Err() != nil {
			break
		}
		sum.add(v)
		fmt.Fprintln(out, line(n, v))
		if v.Failed {
			fmt.Fprintf(out, "  logs: %s\n  again: make drill DRILL_SEED=%d\n", d.logsOf(n), n)
		}
		if err != nil {
			fmt.Fprintf(out, "  %v\n", err)
		}
		if seed != 0 {
			break
		}
	}
	fmt.Fprintln(out, sum)
	if sum.failed > 0 || sum.drills == 0 {
		return 1
	}
	return 0
}

func (a *account) add(v *verdict) {
	a.drills++
	if v.Failed {
		a.failed++
	}
	a.faults += len(v.Injected)
	a.committed += v.Committed
	a.lost += v.Lost
	a.twice += v.Twice
	a.outOfOrder += v.OutOfOrder
}

// String is the account in a line.
func (a account) String() string {
	s := fmt.Sprintf("drills run %d, faults injected %d, events committed %d, lost %d, stored twice %d, out of order %d",
		a.drills, a.faults, a.committed, a.lost, a.twice, a.outOfOrder)
	if a.failed > 0 {
		s += fmt.Sprintf("; %d drills FAILED", a.failed)
	}
	return s
}

func line(seed uint64, v *verdict) string {
	word := "all is well"
	if v.Failed {
		word = "FAILED: " + strings.Join(v.Faults, "; ")
	}
	return fmt.Sprintf("seed %d, %s, faults at [%s], %.0f s, %d events committed: %s",
		seed, v.Plan, strings.Join(v.Injected, ", "), v.Seconds, v.Committed, word)
}

// A driller has the programs.
type driller struct{ dir, logs string }

func (d *driller) test() string  { return filepath.Join(d.dir, "faults.test") }
func (d *driller) relay() string { return filepath.Join(d.dir, "walrelay") }

func (d *driller) logsOf(seed uint64) string { return filepath.Join(d.logs, fmt.Sprint(seed)) }

// build builds drills and relay once, both with the race detector.
func (d *driller) build(ctx context.Context) error {
	for _, args := range [][]string{
		{"test", "-race", "-c", "-o", d.test(), "./e2e/faults"},
		{"build", "-race", "-o", d.relay(), "./cmd/walrelay"},
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}

// drill runs one drill and gives its verdict, which is that of a failure where
// it left none.
func (d *driller) drill(ctx context.Context, seed uint64) (*verdict, error) {
	report := filepath.Join(d.dir, "report.json")
	_ = os.Remove(report) // of the drill before
	logs := d.logsOf(seed)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return &verdict{Failed: true}, err
	}
	ctx, cancel := context.WithTimeout(ctx, drillTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.test(), "-test.run", "^TestDrill$", "-test.v", "-test.timeout", "0")
	cmd.Dir = filepath.Join("e2e", "faults")
	cmd.Env = append(os.Environ(), fmt.Sprintf("WALRELAY_SEED=%d", seed), "WALRELAY_BINARY="+d.relay(), "DRILL_REPORT="+report, "DRILL_LOGS="+logs)
	out, failed := cmd.CombinedOutput()
	text, err := os.ReadFile(report)
	v := new(verdict)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if !v.Failed && failed != nil && err == nil { // while all was being taken down
		v.Faults = append(v.Faults, "it failed after its verdict, see drill.log")
	}
	v.Failed = v.Failed || failed != nil || err != nil
	if v.Failed {
		return v, errors.Join(err, os.WriteFile(filepath.Join(logs, "drill.log"), out, 0o600))
	}
	return v, os.RemoveAll(logs)
}
