package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// launch starts a candidate at our servers, as a process of its own. Where the
// servers are ours they see to it that it ends with us; else its own signal
// handling must do.
func (g *ground) launch(ctx context.Context, j job) (*exec.Cmd, error) {
	j.Database, j.NATS, j.Schema = g.url, g.nats, schema
	task, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("encode the task of %s: %w", j.Candidate, err)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), exe, "candidate", string(task))
	cmd.Stderr = os.Stderr
	start := cmd.Start
	if g.env != nil {
		start = func() error { return g.env.Child(cmd) }
	}
	if err := start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", j.Candidate, err)
	}
	return cmd, nil
}

// dropSlot removes a candidate's slot, which stays active until PostgreSQL has
// seen the candidate go.
func (g *ground) dropSlot(ctx context.Context, source string) error {
	_, err := g.db.Exec(ctx, `SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = $1 AND active`, source)
	if err == nil {
		_, err = g.db.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, source)
	}
	return err
}

// warming is how many commits show that a candidate is there.
const warming = 100

// follow makes a slot and a stream, and starts a candidate that follows what is
// written; the first rows have gone through it. It gives the stream's name.
func (g *ground) follow(ctx context.Context, j job) (stream string, stop func() error, err error) {
	if _, err := g.db.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, j.Source); err != nil {
		return "", nil, fmt.Errorf("make the slot: %w", err)
	}
	after := context.WithoutCancel(ctx)
	stream = strings.ToUpper(j.Source)
	if _, err := g.js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"outbox." + j.Source + ".>"}}); err != nil {
		return "", nil, errors.Join(fmt.Errorf("make stream %s: %w", stream, err), g.dropSlot(after, j.Source))
	}
	drop := func() error { return errors.Join(g.dropSlot(after, j.Source), g.js.DeleteStream(after, stream)) }
	cmd, err := g.launch(ctx, j)
	if err != nil {
		return "", nil, errors.Join(err, drop())
	}
	stop = func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		return errors.Join(cmd.Wait(), drop())
	}
	if _, err = g.write(ctx, 0, warming, warming); err == nil {
		err = g.await(ctx, stream, warming)
	}
	if err != nil {
		return "", nil, errors.Join(err, stop())
	}
	return stream, stop, nil
}
