package walrelay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/witness"
)

// A phantom is an event in a stream whose transaction the database never had:
// it was committed and sent on the old primary, and the standby that was
// promoted had not received it. It cannot be called back; it is listed.
type phantom struct {
	pos       envelope.Position
	id        string
	committed time.Time // zero: not known
}

// passPhantoms looks, where a chain ends beyond the point at which the
// database was promoted, for the last message below it, and makes that the mark:
// it must be met like any other. Where no such message is left the mark is the
// switch point itself.
func (s *session) passPhantoms(ctx context.Context, st *stream, tail *publish.Tail, at dedup.Slot) error {
	if !tail.Ours || !at.Never(tail.Position) {
		return nil
	}
	s.r.state.set(ctx, StateWaiting, fmt.Sprintf("looking for the events of stream %q that the promoted database never had", st.name))
	var found []phantom
	healed := 0
	for seq := tail.LastSeq; seq >= max(tail.FirstSeq, 1); seq-- {
		m, there, err := s.nats.GetFromLeader(ctx, st.name, seq)
		if err != nil {
			return fmt.Errorf("read message %d of stream %q: %w", seq, st.name, err)
		}
		if !there {
			continue
		}
		// What cannot be read has nothing of ours.
		e, _ := envelope.Read(m.Header.Get)
		if e.Source != s.cfg.Source {
			continue
		}
		pos, mark := e.Position, m.Header.Get(envelope.HeaderMark)
		if mark != "" {
			if pos, err = envelope.ParsePosition(mark); err != nil {
				return fmt.Errorf("read message %d of stream %q: %w", seq, st.name, err)
			}
		}
		if !at.Never(pos) {
			tail.Position, tail.MsgID, tail.Origin = pos, m.Header.Get(envelope.HeaderMsgID), m.Header.Get(envelope.HeaderOrigin)
			break
		}
		if mark != "" {
			healed++ // whose transaction was before the switch point, or was not: its message does not tell
			continue
		}
		found = append(found, phantom{pos: pos, id: e.ID, committed: e.CommittedAt})
		if err := s.fewPhantoms(st, found, at); err != nil {
			return err
		}
	}
	if healed > 0 {
		s.log.WarnContext(ctx, "healed or replayed messages stand among those that the database never had; walrelay verify tells which of them it has",
			slog.String("stream", st.name), slog.Int("messages", healed))
	}
	return s.listPhantoms(ctx, st, found, at)
}

// listSeen lists the phantoms of lanes.
func (s *session) listSeen(ctx context.Context, st *stream, seen map[envelope.Position]string, at dedup.Slot) error {
	var found []phantom
	for pos, id := range seen {
		if !at.Never(pos) {
			continue
		}
		found = append(found, phantom{pos: pos, id: id})
		if err := s.fewPhantoms(st, found, at); err != nil {
			return err
		}
	}
	return s.listPhantoms(ctx, st, found, at)
}

// fewPhantoms tells a failover, which loses the last moments, from a database
// that was restored to an earlier time: more than heal_limit events, or of
// more than heal_age, are nothing to go on after unasked. Of a chain they come
// newest first.
func (s *session) fewPhantoms(st *stream, found []phantom, at dedup.Slot) error {
	newest, oldest := found[0], found[len(found)-1]
	var reason string
	switch {
	case len(found) > s.cfg.HealLimit:
		reason = fmt.Sprintf("it lacks more than %d of the stream's events, the heal_limit", s.cfg.HealLimit)
	case !newest.committed.IsZero() && !oldest.committed.IsZero() && newest.committed.Sub(oldest.committed) > s.cfg.HealAge:
		reason = fmt.Sprintf("it lacks events of the stream from more than %v, the heal_age", s.cfg.HealAge)
	default:
		return nil
	}
	return &dedup.RewoundError{
		Stream: st.name, Mark: newest.pos, Seen: envelope.Position{Epoch: oldest.pos.Epoch, Commit: at.Left[oldest.pos.Epoch]},
		Reason: "it was restored to an earlier time, or promoted far behind: " + reason,
	}
}

// listPhantoms records them, once, and says so.
func (s *session) listPhantoms(ctx context.Context, st *stream, found []phantom, at dedup.Slot) error {
	if len(found) == 0 {
		return nil
	}
	slices.SortFunc(found, func(a, b phantom) int { return a.pos.Compare(b.pos) })
	first, last := found[0], found[len(found)-1]
	gap := witness.Gap{
		Epoch: s.epoch, Stream: st.name, From: first.pos.String(), To: last.pos.String(), Events: int64(len(found)),
		Detail: witness.GapDetail{
			Oldest: first.committed,
			How:    fmt.Sprintf("the database was promoted at LSN %v and never had these events, which the stream holds", at.Left[last.pos.Epoch]),
		},
	}
	for _, p := range found {
		gap.Detail.Positions = append(gap.Detail.Positions, p.pos.String())
		gap.Detail.Events = append(gap.Detail.Events, p.id)
	}
	var id int64
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		id, err = witness.ListPhantoms(ctx, conn, s.cfg.Schema, s.cfg.Source, s.id, gap)
		return err
	})
	if err != nil || id == 0 {
		return err
	}
	s.r.count.gap(witness.GapPhantom)
	const shown = 10
	s.log.ErrorContext(ctx, "the stream holds events that the promoted database never had; all of them are listed in walrelay.gap",
		slog.Int64("gap", id), slog.String("stream", st.name), slog.Int("events", len(found)), slog.String("from", gap.From), slog.String("to", gap.To),
		slog.Any("ids", gap.Detail.Events[:min(shown, len(found))]))
	return nil
}
