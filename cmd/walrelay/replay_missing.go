package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/witness"
)

// gapReport is a gap as JSON.
type gapReport struct {
	ID      int64     `json:"id"`
	Kind    string    `json:"kind"`
	State   string    `json:"state"`
	Stream  string    `json:"stream,omitempty"`
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`
	Events  int64     `json:"events,omitempty"` // 0: not known
	How     string    `json:"how,omitempty"`
	FoundAt time.Time `json:"found_at"`
	EndedAt time.Time `json:"ended_at,omitzero"`
}

func shownGap(g *witness.Gap) gapReport {
	return gapReport{
		ID: g.ID, Kind: g.Kind, State: g.State, Stream: g.Stream, From: g.From, To: g.To, Events: g.Events, How: g.Detail.How,
		FoundAt: g.FoundAt, EndedAt: g.EndedAt,
	}
}

// missing has the open gaps healed, or lets them be.
func (c *replayCmd) missing(e *env, conn *pgx.Conn) error {
	open, err := witness.OpenGaps(e.ctx, conn, c.Schema, c.Source)
	if err != nil {
		return err
	}
	if c.JSON && c.DryRun {
		list := []gapReport{}
		for i := range open {
			list = append(list, shownGap(&open[i]))
		}
		return json.NewEncoder(e.stdout).Encode(map[string]any{"gaps": list})
	}
	out := e.stdout
	if c.JSON {
		out = e.stderr
	}
	tellGaps(out, open)
	switch {
	case c.DryRun:
		return nil
	case c.Discard:
		return c.discard(e, conn, open)
	}
	return c.askFor(e, conn, job.Heal, job.Arguments{Reason: c.Why}, "Send what is missing?")
}

func tellGaps(out io.Writer, open []witness.Gap) {
	if len(open) == 0 {
		fmt.Fprintln(out, "no gap is open")
		return
	}
	for i := range open {
		g := &open[i]
		events := "how many events is not known"
		if g.Events > 0 {
			events = fmt.Sprintf("%d events", g.Events)
		}
		fmt.Fprintf(out, "gap %d (%s), found %s: %s, from %s to %s\n", g.ID, g.Kind, stamp(g.FoundAt), events, firstOf(g.From, "?"), firstOf(g.To, "?"))
		if g.Detail.How != "" {
			fmt.Fprintf(out, "  %s\n", printable(g.Detail.How))
		}
	}
}

// discard lets the open gaps be. A relay that was halted by them goes on.
func (c *replayCmd) discard(e *env, conn *pgx.Conn, open []witness.Gap) error {
	if len(open) == 0 {
		return nil
	}
	if !c.Yes {
		if yes, err := ask(e, "Let these gaps be, so that their events are never sent?"); err != nil || !yes {
			return err
		}
	}
	var accepted, left []int64
	var id int64
	err := pgx.BeginFunc(e.ctx, conn, func(tx pgx.Tx) (err error) {
		if accepted, left, err = witness.AcceptGaps(e.ctx, tx, c.Schema, c.Source); err != nil {
			return err
		}
		if len(accepted) == 0 {
			return nil
		}
		if err := job.Record(e.ctx, tx, c.Schema, c.Source, job.Discard, job.Arguments{Gaps: accepted, Reason: c.Why}, who(c.By)); err != nil {
			return err
		}
		// It wakes a relay that is halted, and has nothing left to heal.
		id, err = job.Ask(e.ctx, tx, c.Schema, c.Source, job.Heal, job.Arguments{Reason: "gaps were let be: " + c.Why}, who(c.By))
		return err
	})
	if err != nil {
		return err
	}
	for _, gap := range left {
		fmt.Fprintf(e.stderr, "walrelay: gap %d stays open: which rows it is about only the audit of a running relay tells, which ends it or finds another one\n", gap)
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(map[string]any{"accepted": accepted, "left": left, "job": id})
	}
	fmt.Fprintf(e.stdout, "let be: %d\n", len(accepted))
	return nil
}
