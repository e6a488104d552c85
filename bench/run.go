package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
)

// measure runs one candidate as a process of its own.
func (g *ground) measure(ctx context.Context, name string, round int) (m measurement, err error) {
	source := fmt.Sprintf("%s%d_%s", prefix, round, strings.ReplaceAll(name, "-", "_"))
	rows := g.w.rows(name)
	if _, err := g.db.Exec(ctx, `SELECT pg_copy_logical_replication_slot($1, $2)`, baseSlot, source); err != nil {
		return m, fmt.Errorf("copy the slot: %w", err)
	}
	after := context.WithoutCancel(ctx)
	defer func() {
		err = errors.Join(err, g.dropSlot(after, source))
	}()
	streams, types := g.w.streams(source)
	for i, stream := range streams {
		if _, err := g.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: stream, Subjects: []string{"outbox." + source + ".*." + types[i]}, Duplicates: 2 * time.Minute, MaxMsgs: -1, Replicas: g.w.Replicas,
			AllowAtomicPublish: true,
		}); err != nil {
			return m, fmt.Errorf("make stream %s: %w", stream, err)
		}
		defer func() { err = errors.Join(err, g.js.DeleteStream(after, stream)) }()
	}
	if name == poll || name == pollBatch {
		if err := g.fillPoll(ctx, rows); err != nil {
			return m, err
		}
	}
	end, err := envelope.ParseLSN(g.end)
	if err != nil {
		return m, err
	}
	before := g.serversCPU()
	started := time.Now()
	cmd, err := g.launch(ctx, job{
		Candidate: name, Source: source, Rows: rows, Size: g.w.Size, End: end, Lanes: g.w.Lanes, Batches: g.w.Batches, Streams: streams, Types: types,
	})
	if err != nil {
		return m, err
	}
	took, err := g.finish(ctx, cmd, name, streams, rows, started)
	if err != nil {
		return m, err
	}
	m = measured(cmd, rows, took, g.serversCPU()-before)
	if name == reader || name == recv || name == single {
		return m, nil
	}
	for k, stream := range streams {
		if err := g.check(ctx, stream, k, rows); err != nil {
			return m, err
		}
	}
	return m, nil
}

func measured(cmd *exec.Cmd, rows int, took, servers time.Duration) measurement {
	n := float64(rows)
	m := measurement{
		rate:   n / took.Seconds(),
		cpu:    float64((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Microseconds()) / n,
		server: float64(servers.Microseconds()) / n,
	}
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		m.rss = float64(usage.Maxrss) / 1024
	}
	return m
}

// finish waits until the streams hold everything (those who only read: until they end),
// then ends the candidate.
func (g *ground) finish(ctx context.Context, cmd *exec.Cmd, name string, streams []string, rows int, started time.Time) (time.Duration, error) {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if name == reader || name == recv {
		select {
		case err := <-ended:
			return time.Since(started), err
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return 0, errors.Join(ctx.Err(), <-ended)
		}
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var took time.Duration
	for took == 0 {
		select {
		case err := <-ended:
			return 0, fmt.Errorf("the candidate ended too early: %w", err)
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return 0, errors.Join(ctx.Err(), <-ended)
		case <-tick.C:
			if n, last := g.stored(ctx, streams); n >= uint64(rows) {
				took = last.Sub(started)
			}
		}
	}
	_ = cmd.Process.Signal(os.Interrupt)
	if err := <-ended; err != nil {
		return 0, fmt.Errorf("the candidate ended: %w", err)
	}
	return took, nil
}

// stored is how many messages the streams hold, and when the last one came.
func (g *ground) stored(ctx context.Context, streams []string) (n uint64, last time.Time) {
	for _, name := range streams {
		s, err := g.js.Stream(ctx, name)
		if err != nil {
			return 0, last
		}
		state := s.CachedInfo().State
		n += state.Msgs
		if state.LastTime.After(last) {
			last = state.LastTime
		}
	}
	return n, last
}

// check reads stream k: every row of it once, in order, with an id. Lanes keep
// the order of each aggregate; there is one row of each in a round of them.
func (g *ground) check(ctx context.Context, stream string, k, rows int) error {
	consumer, err := g.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(5000))
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	defer messages.Stop()
	chains := g.w.Streams // each a row sequence of its own; the rows go to them in turn
	if g.w.Lanes {
		chains = g.w.Aggregates
	}
	next := make([]int, chains)
	for n := range next {
		next[n] = n
	}
	for i := range (rows - k + g.w.Streams - 1) / g.w.Streams {
		msg, err := messages.Next()
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		n, err := rowOf(msg.Data())
		if err != nil || n%g.w.Streams != k || n != next[n%chains] || msg.Headers().Get(envelope.HeaderMsgID) == "" {
			return fmt.Errorf("message %d of stream %s is row %d, out of order or without an id: %w", i+1, stream, n, err)
		}
		next[n%chains] += chains
	}
	return nil
}

// rowOf reads the number of the row from the beginning of its payload.
func rowOf(payload []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimPrefix(string(payload), `{"n": `), ",")
	return strconv.Atoi(text)
}

// serversCPU is what our PostgreSQL with its children and NATS have used so
// far; nothing where the servers are given.
func (g *ground) serversCPU() (sum time.Duration) {
	for _, pid := range g.pids {
		sum += treeCPU(pid)
	}
	return sum
}

// treeCPU adds what a process has used to what its children have, the ended
// ones included.
func treeCPU(pid int) time.Duration {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	const ticksPerSecond = 100 // USER_HZ on every Linux that Go knows
	var total int64
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended meanwhile
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		if id != pid && parent != pid {
			continue
		}
		last := 13
		if id == pid {
			last = 15 // children that have ended count too
		}
		for _, f := range fields[11:last] {
			v, _ := strconv.ParseInt(f, 10, 64)
			total += v
		}
	}
	return time.Duration(total) * time.Second / ticksPerSecond
}
