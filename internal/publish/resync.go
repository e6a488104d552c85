package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/walrelay/walrelay/envelope"
)

// readers is how many places are read at a time. Each answer holds a whole
// message.
const readers = 16

var errLoss = errors.New("the stream has less than it acknowledged")

// resync reads the stream's end from its leader, settles which messages are
// stored, and begins a new round behind them.
func (r *recovery) resync(ctx context.Context) error {
	r.show(StateResync)
	fresh, err := r.subscribe(r.onAcks)
	if err != nil {
		return err
	}
	roundTrip, err := r.roundTrip(ctx)
	if err != nil {
		return err
	}
	acked := r.promised()
	info, err := r.conn.StreamInfo(ctx, r.cfg.Stream)
	if err != nil {
		return err
	}
	if err := r.checkLoss(acked, end{created: info.Created, lastSeq: info.LastSeq}); err != nil {
		return err
	}
	r.mu.Lock()
	r.facts = info.Facts
	r.maxPayload = r.conn.MaxPayload()
	r.pace.measured(roundTrip)
	if fresh {
		r.batches.fresh()
	}
	r.w.close()
	seqs := r.w.unproven(info.LastSeq)
	r.mu.Unlock()

	places, err := r.places(ctx, seqs)
	if err != nil {
		return err
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.w.judge(r.cfg.Source, r.known(), info.LastSeq, places)
	now := time.Now()
	for range v.stored {
		r.headStored(now)
		r.count.Found++
	}
	r.deliver()
	if v.foreign > 0 {
		return r.otherWriter(v)
	}
	if r.w.held() > 0 {
		if subject := r.w.at(r.w.head).subject(); !r.facts.Covers(subject) {
			return errors.New(r.notCovered(subject))
		}
	}
	r.begin()
	return nil
}

// begin starts a round of sending with one message in flight; each ack doubles
// that, so that trouble which lasts costs one message an attempt.
func (s *Stream) begin() {
	s.w.rewind()
	s.limit = 1
	s.why, s.cut = nil, false
	s.count.Resyncs++
	if s.w.held() > 0 {
		s.setState(StateProbing, s.reason)
	} else {
		s.setState(StateFlowing, "")
		s.attempts = 0
	}
	s.pump()
}

func (s *Stream) otherWriter(v verdict) error {
	if v.foreign > s.w.base && s.w.held() > 0 {
		s.w.at(s.w.head).maybe = false // its place is seen to be another's, also if that one is deleted later
	}
	e := &SecondWriterError{Stream: s.cfg.Stream, Seq: v.foreign, Missing: v.missing}
	if v.place.found {
		e.Subject, e.Source = v.place.msg.Subject, v.place.msg.Header.Get(envelope.HeaderSource)
		e.SameSource = e.Source == s.cfg.Source
	}
	return e
}

// roundTrip measures the way to the server and back, with nothing in flight.
func (s *publisher) roundTrip(ctx context.Context) (time.Duration, error) {
	nc, err := s.conn.client()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.conn.cfg.RequestTimeout)
	defer cancel()
	asked := time.Now()
	if err := nc.FlushWithContext(ctx); err != nil {
		return 0, fmt.Errorf("no answer from NATS to a ping: %w", err)
	}
	return max(time.Since(asked), 1), nil
}

// subscribe makes sure that answers arrive on the present client. It says
// whether that is another one than before.
func (s *publisher) subscribe(take func(inbox string, answers []answer)) (fresh bool, err error) {
	nc, err := s.conn.client()
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	same := s.nc == nc && s.sub != nil && s.sub.IsValid()
	s.mu.Unlock()
	if same {
		return false, nil
	}
	inbox := nc.NewInbox() + "."
	as := &answers{inbox: inbox, parse: s.parse, take: take}
	sub, err := nc.Subscribe(inbox+"*", as.onMsg)
	if err != nil {
		return false, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil { // bounded by the window
		return false, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	s.mu.Lock()
	old := s.sub
	s.nc, s.sub, s.inbox = nc, sub, inbox
	s.mu.Unlock()
	if old != nil {
		_ = old.Unsubscribe() // of a client that is gone
	}
	return true, nil
}

// A suspicion is an end that looks like a loss, told once.
type suspicion struct {
	end *end
	at  time.Time
}

// promised is the highest sequence that was acknowledged up to now. It is asked
// for before the stream's end: later acknowledgements may go beyond that.
func (s *publisher) promised() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked
}

// checkLoss compares the stream's end with what was acknowledged before it was
// asked for. A leader that was just elected may lag, so only the same answer
// after a while is a gap.
func (s *publisher) checkLoss(acked uint64, now end) error {
	s.mu.Lock()
	created := s.created
	s.mu.Unlock()
	if !lost(created, acked, now) {
		s.suspect.end = nil
		return nil
	}
	gap := &GapError{Stream: s.cfg.Stream, Acked: acked, LastSeq: now.lastSeq, Created: created, CreatedNow: now.created}
	// Another stream stays another one while others write to it.
	anew := !now.created.Equal(created)
	if was := s.suspect.end; was != nil && was.created.Equal(now.created) && (anew || was.lastSeq == now.lastSeq) {
		if time.Since(s.suspect.at) >= s.cfg.LossConfirm {
			return gap
		}
	} else {
		s.suspect = suspicion{end: &now, at: time.Now()}
	}
	return fmt.Errorf("%w: %w; asking again after %v", errLoss, errors.New(gap.Error()), s.cfg.LossConfirm)
}

func (s *publisher) places(ctx context.Context, seqs []uint64) (map[uint64]place, error) {
	var mu sync.Mutex
	places := make(map[uint64]place, len(seqs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for _, seq := range seqs {
		g.Go(func() error {
			p, err := s.place(ctx, seq)
			mu.Lock()
			defer mu.Unlock()
			places[seq] = p
			return err
		})
	}
	return places, g.Wait()
}

// head deals with the first message that is not stored where its own answer
// calls for more than another attempt. It says whether to pause before that.
func (r *recovery) head(ctx context.Context, again bool) (bool, error) {
	r.mu.Lock()
	var f *failure
	if r.w.inFlight() > 0 {
		f = r.w.at(r.w.head).fail
	}
	r.mu.Unlock()
	switch {
	case f == nil:
		return again, nil
	case f.class == ClassPermanent:
		return false, r.refuse(ctx, f.permanent, f.reason)
	case f.duplicate > 0:
		return r.duplicate(ctx, f.duplicate, again)
	default:
		return again, nil
	}
}

// refusedError is what Refused gave.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return "dead letter: " + e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// refuse hands the head over as a dead letter and takes it out of the chain.
func (r *recovery) refuse(ctx context.Context, reason, detail string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setState(StateRefusing, fmt.Sprintf("%s: %s", reason, detail))
	if err := r.handOver(ctx, r.w.at(r.w.head), reason, detail); err != nil {
		return err
	}
	r.w.drop(false)
	r.attempts = 1 // it was progress
	return nil
}

// handOver tells Refused of e, once Stored was told what it is owed. The mutex
// is held by the caller and given up meanwhile.
func (s *publisher) handOver(ctx context.Context, e *entry, reason, detail string) error {
	s.deliver()
	if err := s.told(ctx); err != nil {
		return err
	}
	if s.cfg.Refused == nil {
		return &refusedError{err: errors.New("nobody takes dead letters")}
	}
	out := Refused{
		Stream: s.cfg.Stream, Tx: e.tx, Position: e.pos, Message: e.message(), Reason: reason, Detail: detail,
	}
	s.mu.Unlock()
	err := s.cfg.Refused(ctx, out)
	s.mu.Lock()
	if err != nil {
		return &refusedError{err: err}
	}
	s.log.WarnContext(ctx, "event refused for good", slog.String("position", out.Position.String()),
		slog.String("msg_id", out.Message.MsgID), slog.String("reason", reason))
	s.count.Refused++
	return nil
}

// duplicate finds out what a duplicate reply for the head means: the message at
// seq is the event itself, another one under the same id, or gone.
func (r *recovery) duplicate(ctx context.Context, seq uint64, again bool) (bool, error) {
	p, err := r.place(ctx, seq)
	if err != nil {
		return again, err
	}
	r.mu.Lock()
	e := r.w.at(r.w.head)
	pos, ours := e.pos, p.found && p.is(r.cfg.Source, e) || !p.found && e.once
	switch {
	case ours && p.found && seq > r.w.base:
		// In its place: the resync counts it.
		e.maybe = true
	case ours:
		r.foundBefore()
	case !p.found:
		r.why = &failure{
			class: ClassEnvironment, rank: rankCause,
			reason: r.goneReason(pos, seq),
		}
	}
	r.mu.Unlock()
	switch {
	case ours:
		return false, nil
	case p.found:
		return false, r.refuse(ctx, ReasonIDInUse, r.inUse(p, seq, pos))
	default:
		return true, nil
	}
}

func (s *publisher) goneReason(pos envelope.Position, seq uint64) string {
	return fmt.Sprintf("the event at position %s has an id that the stream saw within its duplicate window of %v, but the message at sequence %d is gone: it is sent again until that window has passed",
		pos, s.facts.DuplicateWindow, seq)
}

// inUse says who has the id of the event at pos.
func (s *publisher) inUse(p place, seq uint64, pos envelope.Position) string {
	other := p.identity()
	return fmt.Sprintf(
		"the message at sequence %d has the same id: subject %q, source %q, position %s; this event has source %q, position %s",
		seq, p.msg.Subject, other.source, other.pos, s.cfg.Source, pos,
	)
}

// foundBefore takes out the head, which is stored earlier in the stream.
func (s *Stream) foundBefore() {
	e := s.w.at(s.w.head)
	if s.cfg.Found != nil {
		s.cfg.Found(e.tx)
	}
	s.owe(e, time.Now())
	s.w.drop(true)
	s.count.Found++
	s.attempts = 1
	s.deliver()
}
