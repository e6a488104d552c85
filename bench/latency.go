package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// A latency is the time from the start of a commit of one row to its storing,
// by the stream's own clock, so that no subscriber takes part.
type latency struct {
	Candidate string  `json:"candidate"`
	Rate      int     `json:"commits_per_second"`
	Commits   int     `json:"commits"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Most      float64 `json:"max_ms"`
	Late      float64 `json:"writers_behind_ms"` // how far the writers themselves fell behind
}

const (
	latencyTime    = 5 * time.Second
	latencyWriters = 4
)

func ratesOf(o options) (rates []int, err error) {
	text := o.latency
	if o.suite == "full" && text == "" {
		text = "100,1000,10000"
	}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("latency: %q is no number of commits a second", part)
		}
		rates = append(rates, n)
	}
	return rates, nil
}

// measureLatency lets prototype and relay follow the same commits.
func measureLatency(ctx context.Context, at given, rate int) ([]latency, error) {
	say("latency at %d commits a second", rate)
	w := base("latency")
	w.Rows, w.PerTx = 1, 1 // something for the slot to begin with
	g, err := newGround(ctx, w, at)
	if err != nil {
		return nil, err
	}
	defer g.close()
	var all []latency
	for _, name := range []string{proto, relay} {
		l, err := g.latency(ctx, name, rate)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, l)
		say("  %-6s p50 %.2f ms, p99 %.2f ms", name, l.P50, l.P99)
	}
	return all, nil
}

func (g *ground) latency(ctx context.Context, name string, rate int) (l latency, err error) {
	source := prefix + "latency_" + name
	if _, err := g.db.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, source); err != nil {
		return l, fmt.Errorf("make the slot: %w", err)
	}
	stream := strings.ToUpper(source)
	if _, err := g.js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"outbox." + source + ".>"}}); err != nil {
		return l, fmt.Errorf("make stream %s: %w", stream, err)
	}
	after := context.WithoutCancel(ctx)
	defer func() {
		_, dropped := g.db.Exec(after, `SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = $1 AND active`, source)
		if dropped == nil {
			_, dropped = g.db.Exec(after, `SELECT pg_drop_replication_slot($1)`, source)
		}
		err = errors.Join(err, dropped, g.js.DeleteStream(after, stream))
	}()
	task, err := json.Marshal(job{Candidate: name, Database: g.url, NATS: g.nats, Source: source, Schema: schema})
	if err != nil {
		return l, fmt.Errorf("encode the candidate's task: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return l, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(after, exe, "candidate", string(task))
	cmd.Stderr = os.Stderr
	if err := g.launch(cmd); err != nil {
		return l, fmt.Errorf("start the candidate: %w", err)
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		err = errors.Join(err, cmd.Wait())
	}()
	// The first commits show that it is there.
	if _, err := g.write(ctx, 0, 100, 100); err != nil {
		return l, err
	}
	if err := g.await(ctx, stream, 100); err != nil {
		return l, err
	}
	n := rate * int(latencyTime/time.Second)
	wrote, err := g.write(ctx, 100, n, rate)
	if err != nil {
		return l, err
	}
	if err := g.await(ctx, stream, 100+n); err != nil {
		return l, err
	}
	return g.took(ctx, stream, name, rate, n, wrote)
}

// A writing is when each commit was begun, and how late at most.
type writing struct {
	at   []time.Time
	late time.Duration
}

// write commits n rows, numbered from first, at a rate.
func (g *ground) write(ctx context.Context, first, n, rate int) (writing, error) {
	w := writing{at: make([]time.Time, n)}
	late := make([]time.Duration, latencyWriters)
	began := time.Now()
	each, ctx := errgroup.WithContext(ctx)
	for k := range latencyWriters {
		each.Go(func() error {
			db, err := pgx.Connect(ctx, g.url)
			if err != nil {
				return fmt.Errorf("connect to PostgreSQL: %w", err)
			}
			defer db.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has done its work
			for i := k; i < n; i += latencyWriters {
				due := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
				if wait := time.Until(due); wait > 0 {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(wait):
					}
				} else {
					late[k] = max(late[k], -wait)
				}
				w.at[i] = time.Now()
				if _, err := db.Exec(ctx, `INSERT INTO `+schema+`.outbox (aggregate_type, aggregate_id, event_type, payload)
					VALUES ('order', 'k', 'placed', jsonb_build_object('n', $1::int, 'x', repeat('x', 236)))`, first+i); err != nil {
					return fmt.Errorf("insert: %w", err)
				}
			}
			return nil
		})
	}
	err := each.Wait()
	w.late = slices.Max(late)
	return w, err
}

func (g *ground) await(ctx context.Context, stream string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := g.js.Stream(ctx, stream)
		if err == nil && s.CachedInfo().State.Msgs >= uint64(n) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %d messages in stream %s: %w", n, stream, ctx.Err())
		case <-tick.C:
		}
	}
}

func (g *ground) took(ctx context.Context, stream, name string, rate, n int, wrote writing) (latency, error) {
	l := latency{Candidate: name, Rate: rate, Commits: n, Late: wrote.late.Seconds() * 1e3}
	consumer, err := g.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return l, fmt.Errorf("read stream %s: %w", stream, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return l, fmt.Errorf("read stream %s: %w", stream, err)
	}
	defer messages.Stop()
	var took []float64
	for range 100 + n {
		m, err := messages.Next()
		if err != nil {
			return l, fmt.Errorf("read stream %s: %w", stream, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return l, fmt.Errorf("read stream %s: %w", stream, err)
		}
		row, err := rowOf(m.Data())
		if err != nil {
			return l, fmt.Errorf("read stream %s: %w", stream, err)
		}
		if row >= 100 {
			took = append(took, meta.Timestamp.Sub(wrote.at[row-100]).Seconds()*1e3)
		}
	}
	slices.Sort(took)
	at := func(q float64) float64 { return took[int(q*float64(len(took)-1))] }
	l.P50, l.P99, l.Most = at(0.5), at(0.99), at(1)
	return l, nil
}

func printLatency(w io.Writer, all []latency) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "\nlatency from the begin of a commit to its storing\n%-10s %10s %10s %10s %10s %12s\n", "candidate", "commits/s", "p50 ms", "p99 ms", "max ms", "writers late")
	for _, l := range all {
		fmt.Fprintf(w, "%-10s %10d %10.2f %10.2f %10.2f %12.2f\n", l.Candidate, l.Rate, l.P50, l.P99, l.Most, l.Late)
	}
}
