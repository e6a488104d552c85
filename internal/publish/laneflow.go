package publish

import (
	"fmt"
	"time"
)

// pump sends what is ready, as far as the window goes.
func (l *Lanes) pump() {
	for l.open && len(l.flight) < l.limit {
		ln := l.ready.pop()
		if ln == nil {
			return
		}
		l.start(ln)
	}
}

// start sends the first message of ln, or puts the lane where it has to go
// before that.
func (l *Lanes) start(ln *lane) {
	p := ln.first
	now := time.Now()
	final := p.fail != nil && p.fail.class == ClassPermanent
	switch {
	case p.dup > 0:
		l.judgeLater(ln)
		return
	case p.maybe && !p.clear && (final || now.Sub(p.since) >= l.facts.DuplicateWindow/2):
		l.doubt(ln)
		return
	case final:
		l.refuse(ln)
		return
	}
	if len(l.holds.bySubject) > 0 && ln.hold == nil {
		if h := l.holds.bySubject[p.subject()]; h != nil {
			l.join(ln, h, h.reason)
			return
		}
	}
	if seq := l.arrived[p.id()]; seq > 0 && !p.maybe {
		delete(l.arrived, p.id())
		p.dup = seq
		l.judgeLater(ln)
		return
	}
	l.bound(p, now)
	p.sentAt, p.clear, p.fail = now, false, nil
	l.number++
	number := l.number
	l.flight[number] = ln
	ln.phase = laneFlying
	if err := l.transmit(&p.entry, p.expected(), number); err != nil {
		f, sent := l.clientFailure(&p.entry, err)
		p.maybe = p.maybe || sent
		delete(l.flight, number)
		l.failed(ln, f)
	}
}

// onAcks takes answers that came together.
func (l *Lanes) onAcks(inbox string, answers []answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range answers {
		ln := l.flight[a.number]
		if ln == nil || l.stopErr != nil || l.inbox != inbox {
			l.count.Stale++
			continue
		}
		delete(l.flight, a.number)
		l.answer(ln, a.ack)
	}
	l.pump()
	if l.changed != nil && l.worthWaking() {
		l.wake()
	}
	l.deliver()
}

// worthWaking keeps a sender that waits for room from being woken for each ack.
// With nothing in flight no other ack may come: what is held back can fill the
// bound by itself.
func (l *Lanes) worthWaking() bool {
	ahead := aheadWindows * l.cfg.Window
	return !l.open || len(l.flight) == 0 || l.held-l.stuckHeld <= ahead-ahead/8 && l.bytes <= l.cfg.MaxBytes-l.cfg.MaxBytes/8
}

func (l *Lanes) answer(ln *lane, a ack) {
	p := ln.first
	switch {
	case a.kind == ackStored && a.seq > p.floor:
		l.count.Acks++
		l.sure = l.sure || p.only
		l.stored(ln, a.seq)
	case a.kind == ackStored:
		// Whether it may count at all is for the check on losses.
		l.unknown(ln)
		l.fail(&failure{
			class: ClassResync, rank: rankCause, scope: scopeStream,
			reason: fmt.Sprintf("stored at sequence %d, but the stream has had %d", a.seq, p.floor),
		})
		return
	case a.kind == ackDuplicate:
		l.count.Duplicates++
		p.dup = a.seq
		l.judgeLater(ln)
	case p.only && a.kind == ackError && a.err.Code == codeWrongLastSeq:
		l.overtaken(ln, a.err)
		return
	default:
		l.failed(ln, l.failureOf(&p.entry, a))
		return
	}
	if l.open {
		l.attempts, l.proven = 0, true
		l.limit = min(l.cfg.Window, 2*l.limit)
	}
	l.assess()
}

// failed notes that the attempt for the first message of ln has stored nothing.
func (l *Lanes) failed(ln *lane, f *failure) {
	ln.first.fail = f
	switch {
	case f.class == ClassPermanent:
		l.lastError, l.lastErrorAt = f.reason, time.Now()
		l.settle(ln)
		return
	case f.scope == scopeStream:
		ln.phase = laneReady
		l.ready.pushFront(ln)
		l.fail(f)
		return
	case f.scope == scopeSubject:
		l.holdSubject(ln, f.reason)
	case f.scope == scopeEvent:
		l.holdAlone(ln, f.reason)
	}
	l.lastError, l.lastErrorAt = f.reason, time.Now()
	l.assess()
}

// settle makes a dead letter of the first message of ln, once it is known not
// to be stored.
func (l *Lanes) settle(ln *lane) {
	if ln.first.maybe {
		l.doubt(ln)
		return
	}
	l.refuse(ln)
}

func (l *Lanes) refuse(ln *lane) {
	l.leave(ln)
	ln.phase = laneRefused
	l.setStuck(ln, true)
	l.refused.pushBack(ln)
	select {
	case l.toRefuse <- struct{}{}:
	default:
	}
	l.assess()
}

func (l *Lanes) judgeLater(ln *lane) {
	ln.phase = laneJudged
	l.judged.pushBack(ln)
	l.poke()
}

func (l *Lanes) doubt(ln *lane) {
	ln.phase = laneDoubted
	l.doubted.pushBack(ln)
	l.poke()
}

// unknown notes that the attempt for the first message of ln, which is taken
// out of flight, may have stored it.
func (l *Lanes) unknown(ln *lane) {
	ln.first.maybe = true
	ln.phase = laneReady
	l.ready.pushFront(ln)
}

// overdue takes out of flight what has waited for its answer too long, or all
// of it if no answer can come.
func (l *Lanes) overdue(now time.Time, all bool) (n int) {
	for number, ln := range l.flight {
		if all || now.Sub(ln.first.sentAt) >= l.cfg.AckTimeout {
			delete(l.flight, number)
			l.unknown(ln)
			n++
		}
	}
	return n
}

// fail stops sending: what is the matter is not one event's or one subject's.
func (l *Lanes) fail(f *failure) {
	l.blame(f)
	if l.open {
		l.open = false
		l.setState(StateSettling, l.why.reason)
	}
	l.poke()
}

// onDisconnect is told by the connection: answers to what is in flight will not
// come.
func (l *Lanes) onDisconnect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopErr != nil {
		return
	}
	l.cut = true
	if l.open {
		l.count.Disconnects++
		l.fail(&failure{class: ClassResync, rank: rankConsequence, scope: scopeStream, reason: "connection to NATS lost"})
	}
	l.wake()
}

// onDenied is told by the connection that the server let something not through.
// It is the only answer that a publish without permission gets.
func (l *Lanes) onDenied(verb, subject string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopErr != nil {
		return
	}
	if verb != "publish" {
		if l.inbox != "" && subject == l.inbox+"*" {
			l.count.Denied++
			l.overdue(time.Now(), true)
			l.fail(&failure{class: ClassEnvironment, rank: rankDenied, scope: scopeStream, reason: notPermitted(verb, subject)})
		}
		return
	}
	var denied []uint64
	for number, ln := range l.flight {
		if ln.first.subject() == subject {
			denied = append(denied, number)
		}
	}
	for _, number := range denied {
		ln := l.flight[number]
		delete(l.flight, number)
		// One violation is not the answer to each of several messages.
		ln.first.maybe = ln.first.maybe || len(denied) > 1
		l.count.Denied++
		l.failed(ln, &failure{class: ClassEnvironment, rank: rankDenied, scope: scopeSubject, reason: notPermitted(verb, subject)})
	}
	l.pump()
	l.wake()
}
