package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/slot"
)

const (
	watchEvery = 250 * time.Millisecond
	// holderEvery is how often it is looked whether a relay is there.
	holderEvery = 5 * time.Second
)

// A watcher tells of a job that was asked for. The relay does the job, whether
// anybody watches or not.
type watcher struct {
	*database

	conn *pgx.Conn
	id   int64
	json bool
}

// leave says who does the job.
func (w *watcher) leave(e *env) error {
	if w.json {
		return json.NewEncoder(e.stdout).Encode(map[string]any{"id": w.id, "state": job.Asked})
	}
	fmt.Fprintf(e.stdout, "job %d is asked for; the relay that holds slot %q does it, walrelay status shows it\n", w.id, w.slotName())
	return nil
}

// watch waits for the end of the job. It is an error unless that is a good one.
func (w *watcher) watch(e *env) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var looked time.Time
	told, shown := false, isTerminal(e.stderr)
	for {
		j, some, err := job.Read(e.ctx, w.conn, w.Schema, w.Source, w.id)
		switch {
		case e.ctx.Err() != nil:
			return w.interrupted(e, shown)
		case err != nil:
			return err
		case !some:
			return fmt.Errorf("job %d is gone from schema %q", w.id, w.Schema)
		}
		if shown {
			fmt.Fprint(e.stderr, eraseLine+progressText(&j))
		}
		if !j.EndedAt.IsZero() {
			if shown {
				fmt.Fprint(e.stderr, eraseLine)
			}
			return w.ended(e, &j)
		}
		if j.State == job.Asked && !told && time.Since(looked) > holderEvery {
			looked = time.Now()
			if held, err := w.relayHolds(e.ctx); err == nil && !held {
				told = true
				fmt.Fprintf(e.stderr, "walrelay: no relay holds slot %q: job %d waits until walrelay run does\n", w.slotName(), w.id)
			}
		}
		select {
		case <-e.ctx.Done():
			return w.interrupted(e, shown)
		case <-tick.C:
		}
	}
}

func (w *watcher) interrupted(e *env, shown bool) error {
	if shown {
		fmt.Fprint(e.stderr, eraseLine)
	}
	fmt.Fprintf(e.stderr, "walrelay: job %d is not watched any more and goes on; walrelay status shows it\n", w.id)
	return errCheckFailed // how it ends is not known
}

func progressText(j *job.Job) string {
	p := j.Progress
	parts := []string{fmt.Sprintf("job %d %s: %d rows looked at, %d sent, %d stored", j.ID, j.State, p.Looked, p.Sent, p.Stored)}
	for _, more := range []struct {
		n    int64
		what string
	}{{p.Present, "there already"}, {p.Refused, "refused"}, {p.Skipped, "passed over"}} {
		if more.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", more.n, more.what))
		}
	}
	return strings.Join(parts, ", ")
}

func (w *watcher) ended(e *env, j *job.Job) error {
	if w.json {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(shownJob(j)); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(e.stdout, progressText(j))
	}
	if j.State != job.Failed {
		return nil
	}
	if w.json {
		return errCheckFailed
	}
	return fmt.Errorf("job %d failed: %s", j.ID, j.Error)
}

// A jobReport is a job as JSON.
type jobReport struct {
	ID        int64         `json:"id"`
	Kind      string        `json:"kind"`
	State     string        `json:"state"`
	Arguments job.Arguments `json:"arguments"`
	Progress  job.Progress  `json:"progress"`
	Error     string        `json:"error,omitempty"`
	AskedBy   string        `json:"asked_by,omitempty"`
	At        time.Time     `json:"at"`
	EndedAt   time.Time     `json:"ended_at,omitzero"`
}

func shownJob(j *job.Job) jobReport {
	return jobReport{
		ID: j.ID, Kind: j.Kind, State: j.State, Arguments: j.Arguments, Progress: j.Progress, Error: j.Error,
		AskedBy: j.AskedBy, At: j.At, EndedAt: j.EndedAt,
	}
}

// relayHolds says whether a process holds the slot.
func (w *watcher) relayHolds(ctx context.Context) (bool, error) {
	info, err := slot.Inspect(ctx, w.conn, w.slotName())
	return info.Active, err
}
