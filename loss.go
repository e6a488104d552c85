package walrelay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/witness"
)

// checkLoss gives a *dedup.LostError where the stream does not hold what it
// acknowledged. Where others write too, the end alone says little: they fill up
// what was lost, so the last message of ours that was acknowledged is looked at.
func (s *session) checkLoss(ctx context.Context, st *stream, tail publish.Tail) error {
	known := st.base
	if err := dedup.CheckLoss(st.name, markTail(tail), known); err != nil || !st.Shared || known.MsgID == "" {
		return err
	}
	m, there, err := s.nats.GetFromLeader(ctx, st.name, known.LastSeq)
	if err != nil || !there { // what is gone was there
		return err
	}
	if m.Header.Get(envelope.HeaderSource) == s.cfg.Source && m.Header.Get(envelope.HeaderMsgID) == known.MsgID {
		return nil
	}
	return &dedup.LostError{Stream: st.name, Known: known, Tail: markTail(tail), Replaced: true}
}

// lastOwn is the sequence of the last message of ours in a stream that others
// have written to since it lost its end; 0 where there is none. It looks further
// and further back.
func (s *session) lastOwn(ctx context.Context, st *stream, tail publish.Tail) (last uint64, err error) {
	note := func(m publish.StoredMessage) error {
		if m.Header.Get(envelope.HeaderSource) == s.cfg.Source {
			last = max(last, m.Seq)
		}
		return nil
	}
	for span := uint64(1000); ; span *= 4 {
		from := tail.LastSeq - min(span, tail.LastSeq)
		if _, err := st.pub.EachHeader(ctx, from, note); err != nil {
			return 0, fmt.Errorf("look for the last message of this source in stream %q: %w", st.name, err)
		}
		if last > 0 || from < tail.FirstSeq || from == 0 {
			return last, nil
		}
	}
}

// provenBefore gives the newest proof, also where another stream that is not healed
// yet has lost its end and took that with it: a broker forgets in all its streams
// at once, and they are found one after the other. Each needs what was proven of
// it, as the first that is healed has that proven again for all.
func (s *session) provenBefore(ctx context.Context, conn *pgx.Conn) (newest witness.Proven, some bool, err error) {
	newest, some, err = witness.Newest(ctx, conn, s.cfg.Schema, s.cfg.Source)
	if err != nil {
		return newest, some, err
	}
	gaps, err := witness.OpenGaps(ctx, conn, s.cfg.Schema, s.cfg.Source)
	if err != nil {
		return newest, some, err
	}
	for _, g := range gaps {
		if g.Kind != witness.GapStream && g.Kind != witness.GapNewStream || g.Detail.Seen == "" || some && !g.Detail.Until.After(newest.At) {
			continue
		}
		at, err := envelope.ParseLSN(g.To)
		if err != nil {
			return newest, some, fmt.Errorf("gap %d: its end: %w", g.ID, err)
		}
		newest, some = witness.Proven{Epoch: g.Epoch, Snapshot: g.Detail.Seen, At: g.Detail.Until, LSN: at}, true
	}
	return newest, some, nil
}

// lossConfirm is the time between the two answers that prove a loss: a leader
// that was just elected may lag for a moment.
const lossConfirm = 10 * time.Second

// lostEnd records that a stream no longer has what it acknowledged. What the
// relay knew of its end is known no more, so that the next session goes on from
// the end that there is, once the gap is healed.
func (s *session) lostEnd(ctx context.Context, st *stream, tail publish.Tail, lost *dedup.LostError) error {
	s.r.state.set(ctx, StateWaiting, lost.Error()+"; asking its leader again")
	s.r.wait(ctx, lossConfirm)
	again, err := st.pub.Tail(ctx)
	if err != nil {
		return err
	}
	changed := again.LastSeq != tail.LastSeq
	if st.Shared {
		// Others write on; what matters is that ours is still not there.
		err := s.checkLoss(ctx, st, again)
		if _, still := errors.AsType[*dedup.LostError](err); err != nil && !still {
			return err
		}
		changed = err == nil
	}
	if !again.Created.Equal(tail.Created) || changed {
		return fmt.Errorf("stream %q: its end changed from sequence %d to %d while it was looked at", st.name, tail.LastSeq, again.LastSeq)
	}
	end := again.LastSeq
	if st.Shared {
		if end, err = s.lastOwn(ctx, st, again); err != nil {
			return err
		}
	}
	gap := witness.Gap{
		Kind: witness.GapStream, Epoch: s.epoch, Stream: st.name, From: lost.Known.Position.String(),
		Detail: witness.GapDetail{How: lost.Error(), From: map[string]uint64{}},
	}
	if !again.Created.Equal(lost.Known.Created) {
		gap.Kind = witness.GapNewStream
	}
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		newest, some, err := s.provenBefore(ctx, conn)
		if err != nil || !some {
			return err
		}
		gap.Detail.Seen, gap.Detail.Until, gap.To = newest.Snapshot, newest.At, newest.LSN.String()
		kept, some, err := witness.NewestWithin(ctx, conn, s.cfg.Schema, s.cfg.Source, st.name, again.Created, end)
		if err != nil || !some {
			return err
		}
		gap.Detail.NotSeen, gap.Detail.Since, gap.From = kept.Snapshot, kept.At, kept.LSN.String()
		for name, span := range kept.Streams {
			gap.Detail.From[name] = span.From
		}
		return nil
	})
	if err != nil {
		return err
	}
	if from, some := gap.Detail.From[st.name]; some {
		gap.Detail.From[st.name] = min(from, end)
	}
	known := markTail(again)
	if !again.Ours {
		known.MsgID = "" // another writer's
	}
	now := witness.StreamState{Created: again.Created, LastSeq: again.LastSeq, Position: known.Position, MsgID: known.MsgID, At: time.Now().UTC(), Epoch: s.epoch}
	if st.Shared && gap.Kind == witness.GapStream {
		// What was on its way when the stream was put back may be in it, behind
		// what is proven of that one; in a new one, any event may be the first.
		now.From = min(st.base.From, gap.Detail.From[st.name])
	}
	err = s.recordGap(ctx, gap, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := deadletter.Reopen(ctx, tx, s.cfg.Schema, s.cfg.Source, st.name, end); err != nil {
			return err
		}
		return witness.LostEnd(ctx, tx, s.cfg.Schema, s.cfg.Source, st.name, now)
	})
	if err != nil {
		return err
	}
	st.base = dedup.Known{Created: now.Created, LastSeq: now.LastSeq, Position: now.Position, MsgID: now.MsgID, From: now.From, Epoch: now.Epoch}
	lostBase := st.base
	st.told.Store(&lostBase)
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	delete(s.r.acked, st.name)
	return errRenew
}
