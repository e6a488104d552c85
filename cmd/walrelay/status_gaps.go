package main

import (
	"fmt"

	"github.com/walrelay/walrelay"
)

// gaps writes what is missing and what was healed last.
func (p *page) gaps(g *walrelay.GapsStatus) {
	if g == nil {
		p.line("gaps", "not known now")
		return
	}
	if len(g.Open) == 0 {
		p.line("gaps", "none open")
	}
	for i := range g.Open {
		p.gap("gap open", &g.Open[i])
	}
	if g.Newest != nil {
		p.gap("gap ended", g.Newest)
	}
}

func (p *page) gap(name string, g *walrelay.GapStatus) {
	events := "events not counted"
	if g.Events > 0 {
		events = fmt.Sprintf("%d events", g.Events)
	}
	text := fmt.Sprintf("%d (%s), %s, from %s to %s, found %s", g.ID, g.Kind, events, firstOf(g.From, "?"), firstOf(g.To, "?"), p.ago(g.FoundAt))
	if !g.EndedAt.IsZero() {
		text += fmt.Sprintf(", %s %s", g.State, p.ago(g.EndedAt))
	} else {
		text += "; walrelay replay --missing sends what is missing"
	}
	p.line(name, "%s", text)
}

// jobs writes what was asked for and has not ended.
func (p *page) jobs(jobs []walrelay.JobStatus) {
	for i := range jobs {
		j := &jobs[i]
		p.line(fmt.Sprintf("job %d", j.ID), "%s, %s since %s: %d looked at, %d sent, %d stored, %d there already, %d refused",
			j.Kind, j.State, p.ago(j.At), j.Looked, j.Sent, j.Stored, j.Present, j.Refused)
	}
}
