package admin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/walrelay/walrelay"
)

// An Advice is one thing that wants a person's attention, and what to do.
type Advice struct {
	Level Level  `json:"level"` // warn or bad
	Title string `json:"title"`
	Text  string `json:"text,omitempty"`
	// Command is what to type; empty where there is nothing to type.
	Command string `json:"command,omitempty"`
	// Runbook is the section of docs/runbook.md.
	Runbook string `json:"runbook,omitempty"`
}

// The thresholds are those of deploy/prometheus/alerts.yaml.
const (
	muchWAL       = 10 << 30
	littleRoom    = 1 << 30
	oldXmin       = 10_000_000
	lateSeconds   = 60
	behindSeconds = 300
	nearlyFull    = 0.9
	overdue       = 86400
)

func nearLoss(s *walrelay.SlotStatus) bool { return s.SafeBytes != nil && *s.SafeBytes < littleRoom }

// An adviser gathers advice about one status.
type adviser struct {
	st  *walrelay.Status
	all []Advice
}

// advise lists what wants attention, the worst first.
func advise(st *walrelay.Status) []Advice {
	a := &adviser{st: st}
	a.readiness()
	a.late()
	a.gaps()
	a.slot()
	a.letters()
	a.streams()
	a.retention()
	slices.SortStableFunc(a.all, func(x, y Advice) int { return cmp.Compare(x.Level, y.Level) }) // bad comes before warn
	return a.all
}

func (a *adviser) add(level Level, runbook, command, title, text string) {
	a.all = append(a.all, Advice{Level: level, Title: title, Text: text, Command: command, Runbook: strings.ToLower(runbook)})
}

// command adds the source where it is not the default.
func (a *adviser) command(text string) string {
	if a.st.Source == "" || a.st.Source == "walrelay" {
		return text
	}
	return text + " --source " + a.st.Source
}

func (a *adviser) readiness() {
	why := a.st.NotReady()
	switch phase := a.st.Phase(); phase {
	case walrelay.PhaseWaiting:
		if strings.HasPrefix(a.st.Reason, "paused by ") {
			a.add(LevelWarn, "WalrelayNotDelivering", a.command("walrelay resume"), "Delivery is paused", a.st.Reason)
			return
		}
		a.add(LevelBad, "WalrelayNotDelivering", a.command("walrelay doctor"),
			"Events wait; the relay goes on by itself when this is out of the way", why)
	case walrelay.PhaseHalted:
		command := "walrelay status"
		if _, after, some := strings.Cut(a.st.Reason, "with: walrelay "); some {
			after, _, _ = strings.Cut(after, ";")
			command = "walrelay " + strings.TrimSpace(after)
		}
		a.add(LevelBad, "WalrelayHalted", a.command(command), "The relay has halted and waits for a decision", why)
	case walrelay.PhaseStalled:
		a.add(LevelBad, "WalrelayStalled", "", "Nothing moves, and the relay does not know why", why)
	case walrelay.PhaseStandby, walrelay.PhaseStarting, walrelay.PhaseStopping, walrelay.PhaseStopped, walrelay.PhaseDelivering, walrelay.PhaseIdle:
	}
}

// late is said only where nothing else is said to be the cause.
func (a *adviser) late() {
	if a.st.NotReady() != "" {
		return
	}
	if lag := a.st.LagSeconds; lag != nil && *lag > lateSeconds {
		a.add(LevelBad, "WalrelayLate", "", "Events are late", fmt.Sprintf("The oldest committed event that is not stored has waited for %s.", Span(*lag)))
		return
	}
	if behind := a.st.BehindSeconds; behind != nil && *behind > behindSeconds {
		a.add(LevelBad, "WalrelayLate", "", "The relay is behind", fmt.Sprintf("It is not done with what PostgreSQL wrote %s ago.", Span(*behind)))
	}
}

func (a *adviser) gaps() {
	g := a.st.Gaps
	if g == nil {
		return
	}
	for i := range g.Open {
		open := &g.Open[i]
		events := "events that were not counted"
		if open.Events > 0 {
			events = Count(uint64(open.Events)) + " events"
		}
		text := fmt.Sprintf("%s, found %s ago", events, Span(a.st.At.Sub(open.FoundAt).Seconds()))
		if open.Stream != "" {
			text += ", stream " + open.Stream
		}
		a.add(LevelBad, "WalrelayGapOpen", a.command("walrelay replay --missing --dry-run"), fmt.Sprintf("Gap %d (%s) is open", open.ID, open.Kind), text+".")
	}
}

func (a *adviser) slot() {
	s := a.st.SlotState
	if s == nil || !fresh(a.st, s.LookedAt) {
		return
	}
	switch {
	case s.WALStatus == "lost":
		a.add(LevelBad, "WalrelaySlotNearLoss", a.command("walrelay doctor"), "The slot is lost", "PostgreSQL has removed WAL that it needed; what is missing comes from the outbox table.")
	case s.WALStatus == "unreserved" || nearLoss(s):
		text := "PostgreSQL may remove the WAL that it needs at the next checkpoint."
		if s.SafeBytes != nil && *s.SafeBytes >= 0 {
			text = fmt.Sprintf("%s of WAL may still be written until max_slot_wal_keep_size is reached.", Size(*s.SafeBytes))
		}
		a.add(LevelBad, "WalrelaySlotNearLoss", a.command("walrelay doctor"), "The slot is about to be lost", text)
	case s.RetainedBytes > muchWAL:
		a.add(LevelWarn, "WalrelaySlotRetainsWAL", "", "The slot keeps much WAL", Size(s.RetainedBytes)+" cannot be removed; watch PostgreSQL's disk.")
	}
	if s.CatalogXminAge != nil && *s.CatalogXminAge > oldXmin {
		a.add(LevelWarn, "WalrelaySlotHoldsVacuum", "", "The slot holds back vacuum", fmt.Sprintf("Of the system catalogues, for %s transactions.", Count(uint64(*s.CatalogXminAge))))
	}
}

func (a *adviser) letters() {
	d := a.st.DeadLetters
	if d == nil || d.Open == 0 {
		return
	}
	counts := few(d.ByReason)
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		reasons = append(reasons, fmt.Sprintf("%d %s", counts[reason], reason))
	}
	title := fmt.Sprintf("%s dead letters are open", Count(uint64(d.Open))) //nolint:gosec // a count
	if d.Open == 1 {
		title = "1 dead letter is open"
	}
	a.add(LevelWarn, "WalrelayDeadLetters", a.command("walrelay deadletters list"), title, strings.Join(reasons, ", ")+".")
}

func (a *adviser) streams() {
	for i := range a.st.Streams {
		s := &a.st.Streams[i]
		if s.Fill == nil || !s.Fill.Refuses || !fresh(a.st, s.Fill.LookedAt) {
			continue
		}
		if ratio, limited := s.Fill.Ratio(); limited && ratio > nearlyFull {
			a.add(LevelWarn, "WalrelayStreamNearlyFull", "", fmt.Sprintf("Stream %s is %.0f %% full", s.Name, 100*ratio), "When it is full it takes nothing more, and the relay waits.")
		}
	}
}

func (a *adviser) retention() {
	r := a.st.Retention
	if r == nil || r.BacklogSeconds <= overdue && r.Error == "" {
		return
	}
	text := "The oldest one is overdue by " + Span(r.BacklogSeconds) + "."
	if r.Error != "" {
		text += " " + r.Error
	}
	text = strings.Join(append([]string{text}, r.Kept...), " ")
	a.add(LevelWarn, "WalrelayRetentionBehind", a.command("walrelay cleanup --dry-run"), "Old rows of the outbox stay", text)
}
