package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
)

// A page writes lines of a name and a text.
type page struct {
	w   *tabwriter.Writer
	now time.Time
}

func (p *page) line(name, format string, args ...any) {
	_, _ = fmt.Fprintf(p.w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) // Flush tells
}

// print writes it for people; past is the last hour, where it is wanted.
func (s *statusAnswer) print(out io.Writer, now time.Time, past []admin.Point) error {
	p := &page{w: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), now: now}
	if s.Relay != nil {
		p.relay(&s.Relay.Status, s.Relay.NotReady)
		p.way(s.Relay.Parts)
		p.hour(past, now)
		p.advice(s.Relay.Advice)
	} else {
		p.line("note", "%s; this is what PostgreSQL knows", s.NoRelay)
		p.database(s.Database)
	}
	return p.w.Flush()
}

func (p *page) relay(s *walrelay.Status, notReady string) {
	p.line("source", "%s, slot %s, publication %s", s.Source, s.Slot, s.Publication)
	p.line("state", "%s since %s", s.State, p.ago(s.Since))
	if s.Reason != "" {
		p.line("because", "%s", s.Reason)
	}
	if notReady == "" {
		p.line("ready", "yes")
	} else {
		p.line("ready", "no: %s", notReady)
	}
	if t := s.SlotState; t != nil {
		held := "held"
		if !t.Active {
			held = "not held"
		}
		p.line("slot", "%s, WAL %s, %s retained, %s", held, t.WALStatus, admin.Size(t.RetainedBytes), room(t.SafeBytes))
	} else {
		p.line("slot", "not known now")
	}
	p.line("lag", "%s", lag(s))
	if s.ReceivedLSN != "" || s.ConfirmedLSN != "" {
		p.line("LSN", "received %s, confirmed %s", firstOf(s.ReceivedLSN, "none"), firstOf(s.ConfirmedLSN, "none"))
	}
	p.nats(&s.NATS)
	for i := range s.Streams {
		p.stream(&s.Streams[i])
	}
	n := s.Counters
	p.line("events", "%d stored, %d there already, %d refused, %d skipped, in %d sessions", n.Stored, n.Passed, n.Refused, n.Skipped, n.Sessions)
	if d := s.DeadLetters; d != nil {
		p.letters(d.ByReason)
	} else {
		p.line("dead letters", "not known now")
	}
	p.gaps(s.Gaps)
	p.jobs(s.Jobs)
	p.retention(s.Retention)
	if s.LastError != "" {
		p.line("last error", "%s (%s)", s.LastError, p.ago(s.LastErrorAt))
	}
}

func (p *page) retention(r *walrelay.RetentionStatus) {
	if r == nil {
		return
	}
	dropped := ""
	if !r.PartitionsUntil.IsZero() {
		dropped = fmt.Sprintf(", %d partitions dropped, others made until %s", r.Dropped, r.PartitionsUntil.UTC().Format(time.RFC3339))
	}
	p.line("retention", "%d rows deleted%s, oldest row %s over it", r.Deleted, dropped, time.Duration(r.BacklogSeconds*float64(time.Second)).Round(time.Second))
	for _, why := range r.Kept {
		p.line("", "%s", why)
	}
	if r.Error != "" {
		p.line("", "last error: %s", r.Error)
	}
}

func (p *page) nats(n *walrelay.NATSStatus) {
	switch {
	case n.Connected:
		p.line("NATS", "connected to %s since %s", n.Server, p.ago(n.Since))
	case n.LastError != "":
		p.line("NATS", "not connected since %s: %s", p.ago(n.Since), n.LastError)
	default:
		p.line("NATS", "not connected")
	}
}

func (p *page) stream(s *walrelay.StreamStatus) {
	at := "last sequence not known"
	if s.LastSequence > 0 {
		at = fmt.Sprintf("last sequence %d", s.LastSequence)
	}
	if s.Position != "" {
		at += " at position " + s.Position
	}
	p.line("stream "+s.Name, "%s, %s, %s; %d in flight, %d waiting, %s", s.Mechanism, s.State, at, s.InFlight, s.Queued, admin.Size(int64(s.Bytes)))
	if s.Limit != "" {
		p.line("", "%s", s.Limit)
	}
	if s.Reason != "" {
		p.line("", "waits since %s: %s", p.ago(s.TroubleSince), s.Reason)
	}
	if !s.UnacknowledgedSince.IsZero() {
		p.line("", "oldest message in flight since %s", p.ago(s.UnacknowledgedSince))
	}
	if s.LastError != "" && s.LastError != s.Reason {
		p.line("", "last error %s: %s", p.ago(s.LastErrorAt), s.LastError)
	}
}

func (p *page) letters(byReason map[string]int) {
	total := 0
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		total += byReason[reason]
		parts = append(parts, fmt.Sprintf("%d %s", byReason[reason], reason))
	}
	if total == 0 {
		p.line("dead letters", "none open")
		return
	}
	p.line("dead letters", "%d open: %s", total, strings.Join(parts, ", "))
}

func (p *page) database(d *databaseStatus) {
	p.line("verdict", "%s", d.Verdict)
	if s := d.Slot; s != nil {
		p.line("slot", "%s, WAL %s, %s retained, %s", s.Name, s.WALStatus, admin.Size(s.RetainedBytes), room(s.SafeBytes))
		p.line("lag", "%s behind, confirmed LSN %s", admin.Size(s.LagBytes), s.ConfirmedLSN)
	}
	if w := d.Witness; w != nil {
		p.line("witness", "written %s by pid %d on %s, epoch %d, confirmed LSN %s", p.ago(w.UpdatedAt), w.PID, firstOf(w.Host, "an unknown host"), w.Epoch, w.ConfirmedLSN)
		for _, name := range slices.Sorted(maps.Keys(w.Streams)) {
			p.line("stream "+name, "last sequence %d at position %s", w.Streams[name].LastSeq, w.Streams[name].Position)
		}
	} else if d.Problems["witness"] == "" {
		p.line("witness", "none: this source has never run")
	}
	if d.DeadLetters != nil {
		p.letters(d.DeadLetters)
	}
	if d.Problems["gaps"] == "" {
		p.gaps(d.Gaps)
		p.jobs(d.Jobs)
	}
	for _, what := range slices.Sorted(maps.Keys(d.Problems)) {
		p.line("problem", "%s", d.Problems[what])
	}
}

// ago gives a moment and how long it was ago.
func (p *page) ago(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), p.now.Sub(t).Round(time.Second))
}

func lag(s *walrelay.Status) string {
	bytes, seconds := "bytes not known", "age of the oldest event not known"
	if s.LagBytes != nil {
		bytes = admin.Size(*s.LagBytes)
	}
	if s.LagSeconds != nil {
		seconds = fmt.Sprintf("%.1f s (oldest event that is not stored)", *s.LagSeconds)
		if *s.LagSeconds == 0 {
			seconds = "0 s (every event that was received is stored)"
		}
	}
	return bytes + ", " + seconds
}

// room says how much WAL may come before the slot is lost.
func room(safe *int64) string {
	if safe == nil {
		return "no limit set"
	}
	return admin.Size(*safe) + " before it is lost"
}
