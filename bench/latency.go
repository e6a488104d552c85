package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// A latency is the time from the start of a commit of one row to its storing,
// by the stream's own clock, so that no subscriber takes part; for handled to
// the commit of its effect, by PostgreSQL's.
type latency struct {
	Candidate string  `json:"candidate"`
	Rate      int     `json:"commits_per_second"`
	Commits   int     `json:"commits"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Most      float64 `json:"max_ms"`
	Late      float64 `json:"writers_behind_ms"` // how far the writers themselves fell behind
}

const latencyWriters = 4

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

// measureLatency lets prototype and relay follow commits at the same rate, and
// then a relay with a consumer.
func measureLatency(ctx context.Context, at given, rate int, lasts time.Duration) ([]latency, error) {
	say("latency at %d commits a second", rate)
	w := base("latency")
	w.Rows, w.PerTx = 1, 1 // something for the slot to begin with
	g, err := newGround(ctx, w, at)
	if err != nil {
		return nil, err
	}
	defer g.close()
	var all []latency
	for _, name := range []string{proto, relay, handled} {
		l, err := g.latency(ctx, name, rate, lasts)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, l)
		say("  %-7s p50 %.2f ms, p99 %.2f ms", name, l.P50, l.P99)
	}
	return all, nil
}

func (g *ground) latency(ctx context.Context, name string, rate int, lasts time.Duration) (l latency, err error) {
	source := prefix + "latency_" + name
	candidate := name
	if name == handled {
		candidate = relay
	}
	stream, stop, err := g.follow(ctx, job{Candidate: candidate, Source: source})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var h *handling
	if name == handled {
		if h, err = g.handle(ctx, stream, rate); err != nil {
			return l, err
		}
		defer func() { err = errors.Join(err, h.end(context.WithoutCancel(ctx))) }()
		if err := h.await(ctx, warming); err != nil {
			return l, err
		}
	}
	n := max(1, int(float64(rate)*lasts.Seconds()))
	wrote, err := g.write(ctx, warming, n, rate)
	if err != nil {
		return l, err
	}
	if err := g.await(ctx, stream, warming+n); err != nil {
		return l, err
	}
	var took []float64
	if h != nil {
		took, err = h.times(ctx, warming, wrote)
	} else {
		took, err = g.took(ctx, stream, wrote)
	}
	if err != nil {
		return l, err
	}
	slices.Sort(took)
	at := func(q float64) float64 { return took[int(q*float64(len(took)-1))] }
	return latency{
		Candidate: name, Rate: rate, Commits: n, Late: wrote.late.Seconds() * 1e3, P50: at(0.5), P99: at(0.99), Most: at(1),
	}, nil
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

// took gives for each message behind the first ones how long after the begin of
// its commit it was stored.
func (g *ground) took(ctx context.Context, stream string, wrote writing) (took []float64, err error) {
	consumer, err := g.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", stream, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", stream, err)
	}
	defer messages.Stop()
	for range warming + len(wrote.at) {
		m, err := messages.Next()
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", stream, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", stream, err)
		}
		row, err := rowOf(m.Data())
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", stream, err)
		}
		if row >= warming {
			took = append(took, meta.Timestamp.Sub(wrote.at[row-warming]).Seconds()*1e3)
		}
	}
	return took, nil
}

func printLatency(w io.Writer, all []latency) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "\nlatency from the begin of a commit to its storing; handled: to the commit of a consumer's effect\n%-10s %10s %10s %10s %10s %12s\n", "candidate", "commits/s", "p50 ms", "p99 ms", "max ms", "writers late")
	for _, l := range all {
		fmt.Fprintf(w, "%-10s %10d %10.2f %10.2f %10.2f %12.2f\n", l.Candidate, l.Rate, l.P50, l.P99, l.Most, l.Late)
	}
}
