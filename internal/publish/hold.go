package publish

import (
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// A hold is one trouble that not all events have to wait for: with one event,
// or with all events of one subject. One lane at a time is tried again; when
// its message is stored, the others follow.
type hold struct {
	subject string // "" where the trouble is not a subject's
	reason  string
	lanes   laneList // those that wait
	probe   *lane    // the one that is tried, nil between attempts
	pause   *backoff.ExponentialBackOff
	due     time.Time // of the next attempt
	since   time.Time
}

// holds are the troubles of now.
type holds struct {
	all       map[*hold]struct{}
	bySubject map[string]*hold
	reading   *hold // lanes whose outcome cannot be read
	shown     *hold // the oldest, nil if there is none
}

func newHolds() holds {
	return holds{all: map[*hold]struct{}{}, bySubject: map[string]*hold{}}
}

func (hs *holds) add(most time.Duration, now time.Time) *hold {
	h := &hold{pause: newBackOff(50*time.Millisecond, most), since: now}
	h.due = now.Add(h.pause.NextBackOff())
	hs.all[h] = struct{}{}
	if hs.shown == nil {
		hs.shown = h
	}
	return h
}

func (hs *holds) remove(h *hold) {
	delete(hs.all, h)
	if h.subject != "" {
		delete(hs.bySubject, h.subject)
	}
	if hs.reading == h {
		hs.reading = nil
	}
	if hs.shown == h {
		hs.shown = hs.oldest()
	}
}

func (hs *holds) oldest() *hold {
	var old *hold
	for h := range hs.all {
		if old == nil || h.since.Before(old.since) {
			old = h
		}
	}
	return old
}

// due gives the time of the next attempt, zero if there is none.
func (hs *holds) due() time.Time {
	var due time.Time
	for h := range hs.all {
		if h.probe == nil && (due.IsZero() || h.due.Before(due)) {
			due = h.due
		}
	}
	return due
}

// holdSubject makes ln wait with all lanes whose first message has its subject.
func (l *Lanes) holdSubject(ln *lane, reason string) {
	subject := ln.first.subject()
	h := l.holds.bySubject[subject]
	if h == nil {
		h = l.holds.add(l.cfg.RetryMost, time.Now())
		h.subject = string(append([]byte{}, subject...))
		l.holds.bySubject[h.subject] = h
	}
	l.join(ln, h, reason)
}

// holdAlone makes ln wait by itself.
func (l *Lanes) holdAlone(ln *lane, reason string) {
	h := ln.hold
	if h == nil || h.subject != "" || h == l.holds.reading {
		h = l.holds.add(l.cfg.RetryMost, time.Now())
	}
	l.join(ln, h, reason)
}

// holdReading makes ln wait until the stream can be read.
func (l *Lanes) holdReading(ln *lane, reason string) {
	if l.holds.reading == nil {
		l.holds.reading = l.holds.add(l.cfg.RetryMost, time.Now())
	}
	l.join(ln, l.holds.reading, reason)
}

func (l *Lanes) join(ln *lane, h *hold, reason string) {
	if ln.hold != h {
		l.leave(ln)
		ln.hold = h
	}
	if h.probe == ln {
		h.probe = nil
		h.due = time.Now().Add(h.pause.NextBackOff())
	}
	h.reason = reason
	ln.phase = laneHeld
	h.lanes.pushBack(ln)
	l.setStuck(ln, true)
	l.poke()
}

// leave takes a lane that is not in the list out of its hold, which goes on
// with another one.
func (l *Lanes) leave(ln *lane) {
	h := ln.hold
	if h == nil {
		return
	}
	ln.hold = nil
	l.setStuck(ln, false)
	if h.probe == ln {
		h.probe = nil
		h.due = time.Now()
	}
	if h.probe == nil && h.lanes.n == 0 {
		l.holds.remove(h)
	}
	l.poke()
}

// release ends the hold that ln was the probe of: its message is stored.
func (l *Lanes) release(ln *lane) {
	h := ln.hold
	if h == nil {
		return
	}
	l.leave(ln)
	for other := h.lanes.pop(); other != nil; other = h.lanes.pop() {
		other.hold = nil
		l.setStuck(other, false)
		l.setReady(other)
	}
	l.holds.remove(h)
}

// retry makes a probe of each hold whose time has come ready.
func (l *Lanes) retry(now time.Time) {
	for h := range l.holds.all {
		if h.probe != nil || h.due.After(now) {
			continue
		}
		ln := h.lanes.pop()
		if ln == nil {
			continue
		}
		h.probe = ln
		ln.phase = laneReady
		l.ready.pushFront(ln)
	}
}

// setStuck keeps count of what waits for more than its turn.
func (l *Lanes) setStuck(ln *lane, stuck bool) {
	if ln.stuck == stuck {
		return
	}
	ln.stuck = stuck
	if stuck {
		l.stuckLanes++
		l.stuckHeld += ln.n
	} else {
		l.stuckLanes--
		l.stuckHeld -= ln.n
	}
}

// stuckReason tells how many wait, and for what.
func (l *Lanes) stuckReason(cause string) string {
	text := fmt.Sprintf("%d of %d aggregates with waiting events are held back: %s", l.stuckLanes, len(l.lanes), cause)
	if n := len(l.holds.all) - 1; n > 0 {
		text += fmt.Sprintf("; and %d other causes", n)
	}
	return text
}
