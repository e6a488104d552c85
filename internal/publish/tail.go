package publish

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// A Tail is the end of a stream as its leader told it.
type Tail struct {
	// Created is when the stream was made.
	Created time.Time
	// FirstSeq and LastSeq are its sequences. Empty says that no message
	// was ever stored (LastSeq 0).
	FirstSeq, LastSeq uint64
	Empty             bool
	// Gone says that the last message is no longer there: consumed,
	// expired, purged or deleted. Its number still counts.
	Gone bool
	// Ours says that the last message carries our source; OtherSource is
	// the source it carries otherwise, "" for a writer that is no relay.
	Ours        bool
	OtherSource string
	// Position is the mark: Walrelay-Mark of the last message, else its
	// Walrelay-Position. Zero unless Ours.
	Position envelope.Position
	// MsgID, EventID and Subject are the last message's. EventID equals
	// MsgID unless it says otherwise.
	MsgID, EventID, Subject string
	// Origin is <kind>/<job> if the last message is not live: then MsgID is
	// not the id of the event at Position.
	Origin string
	// Facts is the stream's configuration.
	Facts StreamFacts

	last identity
}

// Tail asks, for as long as it takes, for the stream's end; what it waits for
// is in Status. Only the end of ctx ends it.
func (s *publisher) Tail(ctx context.Context) (Tail, error) {
	pause := newBackOff(100*time.Millisecond, s.cfg.RetryMost)
	for {
		s.show(StateTail)
		t, err := s.tailOnce(ctx)
		if err == nil {
			return t, nil
		}
		if ctx.Err() != nil {
			return Tail{}, context.Cause(ctx)
		}
		s.trouble(ctx, err, pause.NextBackOff())
		if ctx.Err() != nil {
			return Tail{}, context.Cause(ctx)
		}
	}
}

func (s *publisher) tailOnce(ctx context.Context) (Tail, error) {
	info, err := s.conn.StreamInfo(ctx, s.cfg.Stream)
	if err != nil {
		return Tail{}, err
	}
	t := Tail{Created: info.Created, FirstSeq: info.FirstSeq, LastSeq: info.LastSeq, Empty: info.LastSeq == 0, Facts: info.Facts}
	if t.Empty {
		return t, nil
	}
	p, err := s.place(ctx, info.LastSeq)
	if err != nil {
		return Tail{}, err
	}
	if !p.found {
		t.Gone = true
		return t, nil
	}
	h := p.msg.Header
	t.last = p.identity()
	t.MsgID, t.EventID, t.Subject = t.last.msgID, h.Get(envelope.HeaderEventID), p.msg.Subject
	if t.EventID == "" {
		t.EventID = t.MsgID
	}
	if t.last.source != s.cfg.Source {
		t.OtherSource = t.last.source
		return t, nil
	}
	t.Ours = true
	t.Origin = h.Get(envelope.HeaderOrigin)
	t.Position = t.last.pos
	if mark := h.Get(envelope.HeaderMark); mark != "" {
		if t.Position, err = envelope.ParsePosition(mark); err != nil {
			return Tail{}, err
		}
	}
	return t, nil
}

// place reads one sequence. That a message is gone is believed only if the
// leader has it behind its end both before and after: a leader that was just
// elected may not have applied it yet.
func (s *publisher) place(ctx context.Context, seq uint64) (place, error) {
	m, found, err := s.conn.GetFromLeader(ctx, s.cfg.Stream, seq)
	if err != nil || found {
		return place{found: found, msg: m}, err
	}
	info, err := s.conn.StreamInfo(ctx, s.cfg.Stream)
	if err != nil {
		return place{}, err
	}
	if info.LastSeq < seq {
		return place{}, errLagging
	}
	m, found, err = s.conn.GetFromLeader(ctx, s.cfg.Stream, seq)
	return place{found: found, msg: m}, err
}

var errLagging = errors.New("the stream's leader has not caught up yet")

// show sets the state from outside the mutex; the reason stays.
func (s *publisher) show(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setState(state, s.reason)
}

// report logs why nothing is stored: a new reason at once, the same one once a
// minute.
func (s *publisher) report(ctx context.Context, reason string) {
	s.mu.Lock()
	due := reason != s.reported || time.Since(s.reportedAt) >= time.Minute
	if due {
		s.reported, s.reportedAt = reason, time.Now()
	}
	attempts := s.attempts
	s.mu.Unlock()
	if due {
		s.log.WarnContext(ctx, "publishing waits", slog.String("cause", reason), slog.Int("attempt", attempts))
	}
}

// resumed logs that what was reported is over.
func (s *publisher) resumed(ctx context.Context) {
	s.mu.Lock()
	over := s.reported != "" && s.state == StateFlowing
	if over {
		s.reported = ""
	}
	s.mu.Unlock()
	if over {
		s.log.InfoContext(ctx, "publishing goes on")
	}
}

// Wait shows reason as what the stream waits for, and waits d: for a caller who
// found something in the way between Tail and Begin.
func (s *publisher) Wait(ctx context.Context, reason string, d time.Duration) {
	s.trouble(ctx, errors.New(reason), d)
}

// trouble shows err as what is waited for, then waits d, or until there is a
// connection if that is what is missing.
func (s *publisher) trouble(ctx context.Context, err error, d time.Duration) {
	reason := err.Error()
	if api, ok := errors.AsType[*APIError](err); ok {
		reason = explain(s.cfg.Stream, api)
	}
	s.mu.Lock()
	s.lastError, s.lastErrorAt = reason, time.Now()
	s.setState(StateWaiting, reason)
	s.mu.Unlock()
	s.report(ctx, reason)
	if _, none := errors.AsType[*noConnectionError](err); none {
		// Once a second the reason is looked at again. The error is a
		// context's end; the caller looks at his own.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = s.conn.await(ctx)
		return
	}
	sleep(ctx, d)
}
