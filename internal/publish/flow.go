package publish

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// Ranks of failures: what names the cause beats what follows from it.
const (
	rankConsequence = iota
	rankCause
	rankDenied
)

// maxControlLine is below the 4096 bytes of subject, reply and sizes over which
// the server hangs up and the client closes for good.
const maxControlLine = 4000

var errControlLine = fmt.Errorf("subject and reply subject are over %d bytes: the server would hang up", maxControlLine)

// pump sends what waits, as far as the window goes.
func (s *Stream) pump() {
	for s.sending() && s.w.next < s.w.tail && s.w.inFlight() < s.limit {
		switch n := s.together(); n {
		case 0:
			return
		case 1:
			s.publishNext()
		default:
			s.publishBatch(n)
		}
	}
}

func (s *Stream) publishNext() {
	i := s.w.next
	e := s.w.at(i)
	s.seqBuf = strconv.AppendUint(s.seqBuf[:0], s.w.seq(i)-1, 10)
	if s.w.inFlight() == 0 {
		s.headSince = time.Now()
	}
	err := s.transmit(e, text(s.seqBuf), s.w.number(i))
	s.w.sent()
	s.w.groups++
	s.pace.sent(i, s.w.inFlight())
	if err != nil {
		s.notSent(e, err)
	}
}

// transmit hands e to the client as the attempt with that number; last is the
// sequence that a chain expects.
func (s *publisher) transmit(e *entry, last string, number uint64) error {
	s.replyTo = append(s.replyTo[:0], s.inbox...)
	s.replyTo = strconv.AppendUint(s.replyTo, number, 10)
	e.fill(&s.msg, last) // the client copies all of it before it returns
	s.msg.Reply = text(s.replyTo)
	if len(s.msg.Subject)+len(s.msg.Reply) >= maxControlLine {
		return errControlLine
	}
	return s.nc.PublishMsg(&s.msg)
}

// notSent judges an error of the client itself.
func (s *Stream) notSent(e *entry, err error) {
	f, sent := s.clientFailure(e, err)
	if !sent {
		s.w.answer(e)
		s.w.groups--
		s.cut = s.cut || f.class == ClassResync
	}
	e.fail = f
	s.fail(f)
}

// clientFailure judges an error of the client itself, and says whether the
// message may have been sent all the same.
func (s *publisher) clientFailure(e *entry, err error) (f *failure, sent bool) {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return s.overPayload(e), false
	case errors.Is(err, errControlLine), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg):
		// The router should have refused it; the client did.
		return &failure{class: ClassPermanent, rank: rankCause, permanent: ReasonIllegal, reason: err.Error()}, false
	}
	f = &failure{class: ClassResync, rank: rankConsequence, scope: scopeStream, reason: "connection to NATS lost: " + err.Error()}
	if errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionClosed) {
		s.count.Disconnects++
		return f, false
	}
	return f, true
}

// overPayload tells an event that is too large for good from a server whose
// limit has become smaller than it was.
func (s *publisher) overPayload(e *entry) *failure {
	limit, largest := s.conn.MaxPayload(), s.conn.largestPayload()
	if e.bodyLen > largest || limit >= largest {
		return &failure{
			class: ClassPermanent, rank: rankCause, permanent: ReasonTooLarge,
			reason: fmt.Sprintf("body of %d bytes and its headers are over the server's max_payload of %d", e.bodyLen, limit),
		}
	}
	return &failure{
		class: ClassEnvironment, rank: rankCause,
		reason: fmt.Sprintf("body of %d bytes and its headers are over the server's max_payload of %d, which was %d before: raise it again", e.bodyLen, limit, largest),
	}
}

// onAcks takes answers that came together.
func (s *Stream) onAcks(inbox string, answers []answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, a := range answers {
		s.onAck(inbox, a, now)
	}
	s.pump()
	if s.changed != nil && s.worthWaking() {
		s.wake()
	}
	s.deliver()
}

func (s *Stream) onAck(inbox string, a answer, now time.Time) {
	i, current := s.w.index(a.number)
	if !current || s.stopErr != nil || s.inbox != inbox || s.w.at(i).answered {
		s.count.Stale++
		return
	}
	e := s.w.at(i)
	s.w.groups--
	stored := false
	if e.batch > 0 {
		stored = s.onBatchAck(i, e.batch, a.ack)
	} else {
		s.w.answer(e)
		if f := s.read(i, e, a.ack); f != nil {
			e.fail = f
			s.fail(f)
		} else {
			e.acked, stored = true, true
			s.acked = max(s.acked, s.w.seq(i))
			s.batches.judge(s.pace.answered(i, now.Sub(s.headSince), s.w.inFlight()-1, now))
		}
	}
	if stored {
		s.advance(now)
	}
	s.answeredAt = now
}

// worthWaking keeps a sender that waits for room from being woken for each ack.
func (s *Stream) worthWaking() bool {
	if !s.sending() {
		return s.w.unanswered == 0
	}
	window := s.window()
	return s.w.held() <= window-window/8 && s.w.bytes <= s.cfg.MaxBytes-s.cfg.MaxBytes/8
}

// advance takes from the head what is acknowledged without a hole.
func (s *Stream) advance(now time.Time) {
	for s.w.head < s.w.next && s.w.at(s.w.head).acked {
		s.headStored(now)
		s.count.Acks++
	}
	if s.state == StateProbing {
		s.setState(StateFlowing, "")
	}
	s.attempts = 0
	s.limit = min(s.window(), 2*s.limit)
}

// window is how many messages may be held while they flow. Batches want some of
// them to gather behind those in flight.
func (s *Stream) window() int {
	if s.pace.fixed || !s.batches.wanted(s.facts) {
		return s.pace.window
	}
	return max(s.pace.window, (groupsMost+1)*batchMost)
}

// read gives nil if the answer says that entry i is stored in its place.
func (s *Stream) read(i uint64, e *entry, a ack) *failure {
	switch a.kind {
	case ackStored:
		if a.seq == s.w.seq(i) {
			return nil
		}
		return &failure{class: ClassResync, rank: rankCause, reason: fmt.Sprintf("stored at sequence %d instead of %d", a.seq, s.w.seq(i))}
	case ackDuplicate:
		s.count.Duplicates++
		if e.tried && e.maybe && a.seq == s.w.seq(i) {
			return nil // the attempt before this one was stored
		}
		return &failure{
			class: ClassResync, rank: rankCause, duplicate: a.seq,
			reason: fmt.Sprintf("the id of an event was seen before, at sequence %d", a.seq),
		}
	case ackNoResponders, ackError, ackOther:
	}
	return s.failureOf(e, a)
}

// failureOf judges an answer that stored nothing and is no duplicate's.
func (s *publisher) failureOf(e *entry, a ack) *failure {
	switch a.kind {
	case ackNoResponders:
		s.count.NoResponders++
		scope := scopeStream
		if !s.facts.Covers(e.subject()) {
			scope = scopeSubject
		}
		return &failure{class: ClassEnvironment, rank: rankCause, scope: scope, reason: s.nobodyAnswers(e)}
	case ackError:
		return s.refusal(a.err)
	case ackStored, ackDuplicate, ackOther:
	}
	s.count.Environment++
	return &failure{
		class: ClassEnvironment, rank: rankCause, scope: scopeSubject,
		reason: fmt.Sprintf("subject %q was answered by stream %q instead of %q: correct the streams' subjects", e.subject(), a.stream, s.cfg.Stream),
	}
}

func (s *publisher) nobodyAnswers(e *entry) string {
	if !s.facts.Covers(e.subject()) {
		return s.notCovered(e.subject())
	}
	return fmt.Sprintf("nobody answers on subject %q: stream %q has no leader, or JetStream is not enabled", e.subject(), s.cfg.Stream)
}

func (s *publisher) notCovered(subject string) string {
	return fmt.Sprintf("no stream covers subject %q: stream %q has subjects %q; add it there, or change the route", subject, s.cfg.Stream, s.facts.Subjects)
}

func (s *publisher) refusal(err *APIError) *failure {
	f := &failure{class: Classify(err.Code), rank: rankCause, scope: scopeOf(err), code: err.Code, reason: explain(s.cfg.Stream, err)}
	switch f.class {
	case ClassResync:
		f.rank = rankConsequence
		s.count.WrongSequence++
	case ClassEnvironment:
		s.count.Environment++
	case ClassPermanent:
		f.permanent = permanentReason(err.Code)
	}
	return f
}

// fail stops sending. The first failure says why, unless a later one knows
// better.
func (s *Stream) fail(f *failure) {
	s.blame(f)
	if s.sending() {
		s.whyAt = time.Now()
		s.setState(StateSettling, s.why.reason)
	}
	s.poke()
}

// blame makes f the reason why sending stopped, unless a better one is known.
func (s *publisher) blame(f *failure) {
	if f.rank > rankConsequence || s.why == nil {
		s.lastError, s.lastErrorAt = f.reason, time.Now()
	}
	if s.why == nil || f.rank > s.why.rank {
		s.why = f
	}
}

func (s *publisher) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// onDisconnect is told by the connection: answers to what is in flight will not
// come.
func (s *Stream) onDisconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopErr != nil {
		return
	}
	s.cut = true
	if s.sending() {
		s.count.Disconnects++
		s.fail(&failure{class: ClassResync, rank: rankConsequence, reason: "connection to NATS lost"})
	}
	s.wake()
}

// onDenied is told by the connection that the server let something not through.
// It is the only answer that a publish without permission gets.
func (s *Stream) onDenied(verb, subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inbox := verb != "publish" && s.inbox != "" && subject == s.inbox+"*"
	hit := inbox
	for i := s.w.head; i < s.w.next; i++ {
		e := s.w.at(i)
		if !inbox && (verb != "publish" || e.subject() != subject) {
			continue
		}
		hit = true
		if !e.answered && !inbox {
			s.w.answer(e)
			e.maybe = true // one violation is not each message's own answer
		}
	}
	if !hit {
		return
	}
	s.count.Denied++
	s.fail(&failure{class: ClassEnvironment, rank: rankDenied, reason: notPermitted(verb, subject)})
	s.wake()
}
