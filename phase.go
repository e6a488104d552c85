package walrelay

import (
	"fmt"
	"time"
)

// NotReady says why the relay delivers nothing now; empty when it does, or
// would if there were events. A standby is not ready: it delivers nothing until
// the slot is released.
func (s *Status) NotReady() string {
	if s.State != StateRelaying {
		why := reasoned(string(s.State), s.Reason)
		if obstacle := s.obstacle(); obstacle != "" {
			why += "; " + obstacle
		}
		return why
	}
	for i := range s.Streams {
		if st := &s.Streams[i]; !st.Flowing {
			return fmt.Sprintf("stream %q: %s", st.Name, reasoned(st.State, st.Reason))
		}
	}
	if s.Withheld != "" {
		return "waiting: " + s.Withheld
	}
	if !s.StalledSince.IsZero() {
		return fmt.Sprintf("stalled: nothing was received, stored or confirmed for %v, though there is something to do; "+
			"look at what the walsender of slot %q does in pg_stat_activity", s.At.Sub(s.StalledSince).Round(time.Second), s.Slot)
	}
	return ""
}

// A Phase says in a word what an operator is to make of a status.
type Phase string

// Five phases are the states of those names. PhaseWaiting is that state too, a
// stream that waits while the others flow, and PostgreSQL that waits for a
// standby before it sends more.
const (
	PhaseStarting Phase = "starting"
	PhaseStandby  Phase = "standby"
	PhaseHalted   Phase = "halted"
	PhaseStopping Phase = "stopping"
	PhaseStopped  Phase = "stopped"
	PhaseWaiting  Phase = "waiting"
	// PhaseStalled says that nothing moves, and that the relay does not know why.
	PhaseStalled Phase = "stalled"
	// PhaseDelivering says that events are stored, PhaseIdle that there are none
	// and that everything is in place. Only these two are ready.
	PhaseDelivering Phase = "delivering"
	PhaseIdle       Phase = "idle"
)

// idleAfter is how long after its last event a relay with nothing to do is
// idle.
const idleAfter = 10 * time.Second

// Phase gives it.
func (s *Status) Phase() Phase {
	phase, _ := s.PhaseSince()
	return phase
}

// PhaseSince gives the phase, and since when it holds: a relay is idle since its
// last event was stored, and waits since the first of its streams does. The time
// is zero while events are delivered, which nothing marks the begin of.
func (s *Status) PhaseSince() (phase Phase, since time.Time) {
	if s.State != StateRelaying {
		return Phase(s.State), s.Since
	}
	var newest, trouble time.Time
	busy := s.LagSeconds != nil && *s.LagSeconds > 0
	for i := range s.Streams {
		st := &s.Streams[i]
		if !st.Flowing && (phase != PhaseWaiting || st.TroubleSince.Before(trouble)) {
			phase, trouble = PhaseWaiting, st.TroubleSince
		}
		busy = busy || st.InFlight > 0 || st.Queued > 0
		if st.StoredAt.After(newest) {
			newest = st.StoredAt
		}
	}
	switch {
	case phase == PhaseWaiting:
		return phase, trouble
	case s.Withheld != "":
		return PhaseWaiting, s.WithheldSince
	case !s.StalledSince.IsZero():
		return PhaseStalled, s.StalledSince
	case busy || s.At.Sub(newest) < idleAfter:
		return PhaseDelivering, time.Time{}
	}
	if newest.Before(s.Since) {
		newest = s.Since
	}
	return PhaseIdle, newest
}

// obstacle is what NATS has to do with it: a relay that waits for the end of its
// streams does not know why it has to.
func (s *Status) obstacle() string {
	if s.State != StateWaiting {
		return ""
	}
	for i := range s.Streams {
		if st := &s.Streams[i]; st.Reason != "" {
			return fmt.Sprintf("stream %q: %s", st.Name, st.Reason)
		}
	}
	if !s.NATS.Connected {
		return reasoned("no connection to NATS", s.NATS.LastError)
	}
	return ""
}

func reasoned(state, reason string) string {
	if reason == "" {
		return state
	}
	return state + ": " + reason
}
