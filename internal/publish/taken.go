package publish

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

// A leader gives a message its place when it takes it, and stores it when a
// majority of the replicas has it. In between nobody can read it, for as long
// as there is no majority, and its id is forgotten when the duplicate window has
// passed since it was taken, stored or not. So that the stream, read to its end,
// does not have a message says nothing of an older attempt for it; that one may
// be stored later, and the stream would store the next attempt beside it.
//
// What tells is the sequence that the next attempt expects to be the last one:
// the leader compares it with what it has taken. An attempt that expects the end
// that was read is stored only if nothing else is on its way, and otherwise the
// answer tells how far the leader has taken messages. When the stream was read
// up to there, a message that is not in it can no longer come from an attempt
// before that answer, and the next attempt expects nothing. A new leader has
// stored all that it can have of the old one's before it takes anything.
//
// The same is asked with the first messages of a session, for what the process
// before us has sent.

// bound notes what is known of an attempt that starts at now.
func (l *Lanes) bound(p *parcel, now time.Time) {
	if p.maybe {
		return
	}
	p.since, p.floor, p.only = now, l.end, false
	if !l.sure {
		p.floor, p.only = l.read, true
	}
}

// expected is the header's value for the attempt, "" for none.
func (p *parcel) expected() string {
	if !p.only {
		return ""
	}
	return strconv.FormatUint(p.floor, 10)
}

// overtaken notes that the first message of ln was refused because the leader
// has taken others behind the end that was read.
func (l *Lanes) overtaken(ln *lane, err *APIError) {
	l.count.WrongSequence++
	p := ln.first
	p.maybe = true // as far as is known: the process before us may have sent it
	p.taken = lastTaken(err)
	l.doubt(ln)
}

// lastTaken gives the sequence in the text of such an answer, "wrong last
// sequence: 17"; 0 if there is none.
func lastTaken(err *APIError) uint64 {
	_, number, _ := strings.Cut(err.Description, ": ")
	seq, _ := parseDigits(number)
	return seq
}

// cameBehind notes what was found of our source behind the tail.
func (l *Lanes) cameBehind(s *search) {
	if s.arrived == nil || l.sure {
		return
	}
	if l.arrived == nil {
		l.arrived = map[string]uint64{}
	}
	maps.Copy(l.arrived, s.arrived)
	l.read = max(l.read, s.read)
}

// notFound decides how the first message of ln goes on, which the stream does
// not have up to sequence read. asked is when the reading began.
func (l *Lanes) notFound(ln *lane, read uint64, asked time.Time) {
	p := ln.first
	taken := p.taken
	p.floor, p.taken = read, 0
	switch {
	case p.fail != nil && p.fail.class == ClassPermanent:
		l.refuse(ln)
		return
	case taken > read:
		// Another leader may never store it, so it is asked for anew.
		l.holdAlone(ln, fmt.Sprintf(
			"stream %q has taken messages up to sequence %d and stored those up to %d: whether the event at position %s is among the others shows when they are stored",
			l.cfg.Stream, taken, read, p.pos,
		))
		return
	case taken > 0:
		l.sure = true
		p.since, p.only = asked, false
	default:
		p.only = true
	}
	p.clear = true
	ln.phase = laneReady
	l.ready.pushFront(ln)
}
