package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
)

// A reader turns what the slot sends into messages and hands them to the
// publishers, all in one goroutine: a full window makes it wait, and PostgreSQL
// with it. Rows are never gathered; a transaction may be of any size.
type reader struct {
	s       *session
	frame   slot.Frame
	decoder decode.Decoder
	message decode.Message
	row     router.Row
	routed  router.Routed
	out     publish.Message // of the row; the publisher copies it

	tx     uint64 // the ledger's number of the open transaction
	open   bool
	sent   bool   // it has an event that goes to a stream
	xid    uint32 // of the open transaction
	events int    // events of the open transaction that were handed to a publisher
	index  uint64
	unmet  int

	strangers map[uint64]bool // generations of relations that are no outbox

	healed bool

	visible  bool     // others see the open transaction
	snapshot snapshot // the newest that was asked for

	maxPayload int // the largest that the server has named
	flood      *flood
	recorded   recorded
}

func newReader(s *session) *reader {
	r := &reader{s: s, flood: newFlood(s.cfg.DeadLetterLimit)}
	r.limit()
	for _, st := range s.streams {
		if !st.met.Load() {
			r.unmet++
		}
	}
	return r
}

// run reads until ctx ends or something breaks, what is recalled being known. It
// returns nil when the reading was stopped.
func (r *reader) run(ctx context.Context) error {
	if err := r.s.lookPaused(ctx); err != nil {
		return err
	}
	if err := r.awaitResume(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the reading was stopped
		}
		return err
	}
	if err := r.heal(ctx); err != nil {
		return err
	}
	for {
		if err := r.s.repl.Next(&r.frame); err != nil {
			if errors.Is(err, slot.ErrStopped) {
				return nil
			}
			return err
		}
		r.s.frames.Add(1)
		if err := r.take(ctx); err != nil {
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return nil
			}
			return err
		}
	}
}

// heal publishes what earlier sessions could not, once: before anything new,
// and after the streams' marks are met, since in a chain what is published for
// a gap becomes the stream's end.
func (r *reader) heal(ctx context.Context) error {
	s := r.s
	if r.healed || r.unmet > 0 {
		return nil
	}
	r.healed = true
	for _, st := range s.streams {
		if !st.passed.IsZero() {
			st.pub.Passed(st.passed)
		}
	}
	if err := s.healOpen(ctx); err != nil {
		return err
	}
	s.r.state.set(ctx, StateRelaying, "")
	s.spawn(func() error { return s.proveLoop(ctx) })
	s.spawn(func() error { return s.releaseLoop(ctx) })
	s.spawn(func() error { return s.jobLoop(ctx) })
	s.spawn(func() error { return s.retainLoop(ctx) })
	return nil
}

func (r *reader) take(ctx context.Context) error {
	if r.frame.Data == nil {
		return r.keepalive(ctx)
	}
	if err := r.decoder.Decode(r.frame.Data, &r.message); err != nil {
		return &HaltError{
			Object: "slot " + r.s.cfg.Slot, Problem: "sent what walrelay cannot read: " + err.Error(),
			Fix: "this is a fault of walrelay or a setting of the slot that it does not know; nothing behind it was confirmed",
		}
	}
	m := &r.message
	switch m.Kind {
	case decode.KindBegin:
		return r.begin()
	case decode.KindInsert:
		return r.insert(ctx)
	case decode.KindCommit:
		return r.commit()
	case decode.KindUpdate:
		r.s.r.count.updates.Add(1)
	case decode.KindDelete:
		r.s.r.count.deletes.Add(1)
	case decode.KindTruncate:
		r.s.r.count.truncates.Add(1)
		r.s.log.InfoContext(ctx, "table truncated; a truncate is no event", slog.Int("tables", len(m.Relations)))
	case decode.KindRelation, decode.KindType, decode.KindOrigin, decode.KindMessage:
	}
	return nil
}

func (r *reader) keepalive(ctx context.Context) error {
	s := r.s
	s.received.Store(max(s.received.Load(), uint64(r.frame.WALEnd)))
	if r.unmet > 0 {
		for _, st := range s.streams {
			if err := st.mark.Reached(r.frame.WALEnd); err != nil {
				return named(st.name, err)
			}
		}
		r.meet()
		if err := r.heal(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.ledger.Keepalive(r.frame.WALEnd)
	s.mu.Unlock()
	if r.frame.ReplyRequested {
		select {
		case s.reply <- struct{}{}:
		default:
		}
	}
	return nil
}

func (r *reader) begin() error {
	if r.open {
		return errors.New("the slot began a transaction inside another one")
	}
	r.open, r.events, r.index, r.sent, r.xid, r.visible = true, 0, 0, false, r.message.XID, false
	r.row.Position = r.s.position(r.message.CommitLSN)
	r.row.CommittedAt = r.message.CommitTime
	r.s.mu.Lock()
	r.tx = r.s.ledger.Begin()
	safe := r.s.ledger.Confirmed()
	r.s.mu.Unlock()
	r.s.r.count.ages.began(safe, r.message.CommitLSN, r.message.CommitTime)
	return nil
}

func (r *reader) commit() error {
	if !r.open {
		return errors.New("the slot ended a transaction that it had not begun")
	}
	if r.message.CommitLSN != r.row.Position.Commit {
		return fmt.Errorf("the slot ended the transaction of commit LSN %v as that of %v", r.row.Position.Commit, r.message.CommitLSN)
	}
	r.open = false
	s := r.s
	if r.sent {
		s.cover.sent(r.message.CommitLSN, r.xid)
	}
	s.received.Store(uint64(r.message.EndLSN))
	s.r.count.transactions.Add(1)
	s.mu.Lock()
	s.ledger.Commit(r.message.EndLSN, r.events)
	s.mu.Unlock()
	return nil
}

func (r *reader) insert(ctx context.Context) error {
	if !r.open {
		return errors.New("the slot sent a row outside a transaction")
	}
	s := r.s
	if err := r.awaitResume(ctx); err != nil {
		return err
	}
	s.r.count.rows.Add(1)
	r.row.Relation, r.row.Tuple = r.message.Relation, r.message.Tuple
	r.row.Position.Index = r.index
	r.index++
	if s.nats.MaxPayload() > r.maxPayload {
		r.limit()
	}
	if err := r.route(ctx); err != nil {
		return err
	}
	if r.routed.Verdict == router.Refused && r.grown(ctx) {
		if err := r.route(ctx); err != nil {
			return err
		}
	}
	if r.routed.Verdict == router.Publish {
		r.sent = true
		s.delivered.add(r.routed.Message.MsgID)
	}
	if r.unmet > 0 {
		passed, err := r.pass(ctx)
		if err != nil {
			return err
		}
		if passed {
			s.r.count.passed.Add(1)
		}
		if err := r.heal(ctx); err != nil {
			return err
		}
		if passed {
			return nil
		}
		if r.healed { // the router was used for other rows meanwhile
			if err := r.route(ctx); err != nil {
				return err
			}
		}
	}
	if recorded, err := r.recordedBefore(ctx); recorded || err != nil {
		s.r.count.passed.Add(1)
		return err
	}
	if r.routed.Verdict == router.Publish || r.routed.Verdict == router.Refused {
		if err := r.awaitVisible(ctx); err != nil {
			return err
		}
	}
	switch r.routed.Verdict {
	case router.Publish:
		if parked, err := r.follow(ctx); parked || err != nil {
			return err
		}
		return r.publish(ctx)
	case router.Refused:
		return r.refuse(ctx)
	case router.Skip:
		s.r.count.skipped.Add(1)
	case router.NotOutbox:
		s.r.count.notOutbox.Add(1)
	case router.Unrouted:
		return r.unrouted(ctx)
	}
	return nil
}

// route makes a message of the row.
func (r *reader) route(ctx context.Context) error {
	err := r.s.router.Route(&r.row, &r.routed)
	if err != nil || r.routed.Verdict != router.NotOutbox {
		return err
	}
	if again, err := r.adopt(ctx); err != nil || !again {
		return err
	}
	return r.s.router.Route(&r.row, &r.routed)
}

// unrouted is an event that no route takes. Waiting keeps its place in the
// order; it is the configuration that has to change, so a restart ends it.
func (r *reader) unrouted(ctx context.Context) error {
	detail := fmt.Sprintf("event type %q of table %s matches no route; add one for it, or set on_unrouted: dead-letter",
		r.routed.Event.EventType, r.row.Relation)
	if r.s.cfg.OnUnrouted == UnroutedDeadLetter {
		r.routed.Refusal = router.Refusal{Reason: reasonUnrouted, Detail: detail}
		return r.refuse(ctx)
	}
	return r.hold(ctx, detail, func(context.Context) (bool, error) { return false, nil })
}

// reasonUnrouted is the dead letters' word for events that nothing takes.
const reasonUnrouted router.Reason = "unrouted"

// limit follows a server that takes larger messages than before. One that takes
// smaller ones is waited for by the publisher: the row is not to blame.
func (r *reader) limit() {
	r.maxPayload = r.s.nats.MaxPayload()
	for _, st := range r.s.streams {
		st.limits.MaxPayload = r.maxPayload
		r.s.router.SetLimits(st.name, st.limits)
	}
}

func (r *reader) publish(ctx context.Context) error {
	s := r.s
	st := s.streams[r.routed.StreamIndex]
	if st.behind.Load() {
		s.owe(ctx, st)
		return nil
	}
	if s.cfg.OnUnrouted == UnroutedDeadLetter {
		ok, err := r.covered(ctx, st, r.routed.Message.Subject)
		if err != nil {
			return err
		}
		if !ok {
			r.routed.Refusal = router.Refusal{Reason: reasonUnrouted, Detail: fmt.Sprintf("stream %q does not cover subject %q", st.name, r.routed.Message.Subject)}
			return r.refuse(ctx)
		}
	}
	r.flood.published()
	// Counted first: the acknowledgement can be faster than this goroutine.
	r.events++
	s.r.count.published.Add(1)
	// The publisher writes the id itself; it stands first among the headers.
	routed := &r.routed.Message
	m := &r.out
	*m = publish.Message{Subject: routed.Subject, Headers: routed.Headers[1:], Body: routed.Body, MsgID: routed.MsgID, Table: r.routed.Event.Table, CommittedAt: r.row.CommittedAt}
	if st.Shared {
		m.Key = aggregateKey(&r.routed.Event)
	}
	late := r.markLate(ctx, st, m)
	s.traced(ctx, m, st.name, "", r.row.Position, r.row.CommittedAt)
	err := st.pub.Send(ctx, r.tx, r.row.Position, m)
	if errors.Is(err, publish.ErrNoRoom) {
		r.events--
		s.r.count.published.Add(^uint64(0))
		s.leaveBehind(ctx, st)
		s.owe(ctx, st)
		return nil
	}
	if late && err == nil {
		s.r.count.late.Add(1)
	}
	return err
}

// follow parks the row if its aggregate is parked.
func (r *reader) follow(ctx context.Context) (parked bool, err error) {
	return r.s.follow(ctx, &r.routed.Event, r.letter)
}

func (r *reader) letter() deadletter.Letter {
	l := letterOfRow(r.s.router, &r.row, &r.routed)
	l.Late = r.overtaken()
	return l
}

// refuse records a row that can never be published, before anything behind it
// is sent. When PostgreSQL is in the way, the session ends and the next one
// meets the same row again.
func (r *reader) refuse(ctx context.Context) error {
	s := r.s
	if parked, err := r.follow(ctx); parked || err != nil {
		return err
	}
	if s.cfg.OnPoison == PoisonHalt {
		return &HaltError{
			Object:  fmt.Sprintf("event %q of table %s at position %s", r.routed.Event.ID, r.row.Relation, r.row.Position),
			Problem: "can never be published: " + r.routed.Refusal.Detail,
			Fix:     "restart with --on-poison dead-letter or park to record it and go on",
		}
	}
	if err := r.allow(ctx, string(r.routed.Refusal.Reason)); err != nil {
		return err
	}
	if _, err := s.recordRefused(ctx, r.letter()); err != nil {
		return err
	}
	s.r.count.refused.Add(1)
	s.log.WarnContext(ctx, "event refused and recorded as a dead letter",
		slog.String("reason", string(r.routed.Refusal.Reason)), slog.String("detail", r.routed.Refusal.Detail),
		slog.String("table", r.row.Relation.String()), slog.String("position", r.row.Position.String()),
		slog.Time("committed_at", r.row.CommittedAt.Truncate(time.Millisecond)))
	return nil
}
