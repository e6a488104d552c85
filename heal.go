package walrelay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/witness"
)

// What to do about a gap.
const (
	// GapHeal publishes the rows of the outbox table that are missing, within
	// HealLimit and HealAge. The default.
	GapHeal = "heal"
	// GapHalt stops delivery until an operator asks for it.
	GapHalt = "halt"
)

// healOpen heals the open gaps and runs what was asked for before anything new
// is read from the slot, so that what was committed earlier stands earlier.
func (s *session) healOpen(ctx context.Context) error {
	var gaps []witness.Gap
	var jobs []job.Job
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if gaps, err = witness.OpenGaps(ctx, conn, s.cfg.Schema, s.cfg.Source); err != nil {
			return err
		}
		jobs, err = job.Open(ctx, conn, s.cfg.Schema, s.cfg.Source)
		return err
	})
	if err != nil {
		return err
	}
	for i := range jobs {
		s.seenJob = max(s.seenJob, jobs[i].ID)
		s.r.seenJob.Store(max(s.r.seenJob.Load(), jobs[i].ID))
		if jobs[i].Kind == job.Backfill {
			if err := s.backfill(ctx, &jobs[i]); err != nil {
				return err
			}
		}
	}
	s.gapOpen.Store(false) // also of one that this session has found
	s.untold = nil
	for i := range gaps {
		if err := s.healGap(ctx, &gaps[i], jobs); err != nil {
			return err
		}
	}
	s.letGo(ctx) // an open transaction holds back vacuum
	return s.endHeals(ctx, jobs)
}

// healGap publishes what is missing, if it may.
func (s *session) healGap(ctx context.Context, g *witness.Gap, jobs []job.Job) error {
	if g.Detail.Seen == "" {
		s.untold = append(s.untold, g.ID) // which rows it is about the audit will tell
		return nil
	}
	for _, st := range s.streams {
		if !st.started {
			s.gapOpen.Store(true) // the next session has all streams
			return nil
		}
	}
	if g.Kind == witness.GapStream || g.Kind == witness.GapNewStream {
		at, err := envelope.ParseLSN(g.To)
		if err != nil {
			return fmt.Errorf("gap %d: its end: %w", g.ID, err)
		}
		g.Detail.Stream, g.Detail.Before = g.Stream, envelope.Position{Epoch: g.Epoch, Commit: at}
	}
	s.r.state.set(ctx, StateWaiting, fmt.Sprintf("looking for the events of gap %d (%s)", g.ID, g.Kind))
	asked := healAsked(jobs, g.ID)
	limit := int64(s.cfg.HealLimit)
	if asked != nil {
		limit = 1 << 62
	}
	found, err := s.count(ctx, g.Detail, limit)
	if err != nil {
		return err
	}
	if asked == nil {
		if err := s.mayHeal(g, found); err != nil {
			// What a halted relay shows is what it saw last.
			_ = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error { s.lookAsked(ctx, conn); return nil })
			return err
		}
	}
	s.r.state.set(ctx, StateWaiting, fmt.Sprintf("healing gap %d (%s): %d events before anything new", g.ID, g.Kind, found.missing))
	r := s.newRepair(job.Heal, g.ID, g.Detail.Late)
	defer r.end()
	if err := s.publishMissing(ctx, r, g.Detail, nil); err != nil {
		return err
	}
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return witness.CloseGap(ctx, conn, s.cfg.Schema, s.cfg.Source, s.id, g.ID, witness.GapHealed, r.stored(), nil)
	})
	if err == nil && g.Detail.Stream != "" {
		err = s.proveAgain(ctx, g)
	}
	if err != nil {
		return err
	}
	s.lookSoon()
	s.r.count.healed.Add(uint64(r.stored())) //nolint:gosec // a count
	s.log.WarnContext(ctx, "gap healed", slog.Int64("gap", g.ID), slog.String("kind", g.Kind), slog.Int64("events", r.stored()))
	return nil
}

// proveAgain keeps what was proven before a stream lost its end, now that it has
// it back. The loss took the proof with it, and without it an audit would look
// for rows of that time in all streams, also where they were let go since.
func (s *session) proveAgain(ctx context.Context, g *witness.Gap) error {
	p := witness.Proven{Epoch: g.Epoch, Snapshot: g.Detail.Seen, LSN: g.Detail.Before.Commit, At: g.Detail.Until, Streams: map[string]witness.Span{}}
	ends := s.ends()
	for _, st := range s.streams {
		p.Streams[st.name] = witness.Span{Created: st.base.Created, From: g.Detail.From[st.name], To: ends[st.name]}
	}
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return witness.Prove(ctx, conn, s.cfg.Schema, s.cfg.Source, s.id, p)
	})
}

// mayHeal says why a gap is not healed unasked; nil when it is.
func (s *session) mayHeal(g *witness.Gap, found finding) error {
	var why string
	count := fmt.Sprintf("%d events", found.missing)
	switch {
	case found.missing == 0:
		return nil
	case s.cfg.OnGap == GapHalt:
		why = "on_gap is halt"
	case g.Kind == witness.GapNewStream:
		why = "a stream that was made anew is filled only when asked"
	case found.missing > int64(s.cfg.HealLimit):
		count = fmt.Sprintf("more than %d events", s.cfg.HealLimit)
		why = fmt.Sprintf("heal_limit is %d", s.cfg.HealLimit)
	case !found.oldest.IsZero() && g.FoundAt.Sub(found.oldest) > s.cfg.HealAge:
		why = fmt.Sprintf("heal_age is %v", s.cfg.HealAge)
	default:
		return nil
	}
	g.Detail.Oldest = found.oldest
	return openGap(g, count, "; they are not sent unasked, since "+why)
}

func healAsked(jobs []job.Job, gap int64) *job.Job {
	for i := range jobs {
		if j := &jobs[i]; j.Kind == job.Heal && (j.Arguments.Gap == 0 || j.Arguments.Gap == gap) {
			return j
		}
	}
	return nil
}

// endHeals says of the jobs that asked for heals that they are done, apart from
// those that ask for what the audit has yet to tell.
func (s *session) endHeals(ctx context.Context, jobs []job.Job) error {
	if s.gapOpen.Load() {
		return nil
	}
	var done []job.Job
	s.awaiting = nil
	for _, j := range jobs {
		switch {
		case j.Kind != job.Heal:
		case slices.ContainsFunc(s.untold, func(gap int64) bool { return healAsked([]job.Job{j}, gap) != nil }):
			// Were it done, it would be asked for again, and each time a new
			// session would begin before the audit's turn.
			s.awaiting = append(s.awaiting, j)
		default:
			done = append(done, j)
		}
	}
	return s.endJobs(ctx, done, nil)
}

// endJobs says how jobs have ended: nil for well.
func (s *session) endJobs(ctx context.Context, jobs []job.Job, why error) error {
	for i := range jobs {
		err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return job.End(ctx, conn, s.cfg.Schema, &jobs[i], why, s.fence)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fence is what every write of a relay sets first.
func (s *session) fence(ctx context.Context, tx pgx.Tx) error {
	return witness.Lock(ctx, tx, s.cfg.Schema, s.cfg.Source, s.id)
}

// publishMissing publishes the rows that a gap is about and that are nowhere,
// and waits until they are stored. Note is told how far it is, now and then.
func (s *session) publishMissing(ctx context.Context, r *repair, d witness.GapDetail, note func(finding) error) error {
	var found finding
	noted := time.Now()
	err := s.scan(ctx, func(tx pgx.Tx) error {
		have, err := s.present(ctx, tx, d)
		if err != nil {
			return err
		}
		routes, err := s.ownRouter(0)
		if err != nil {
			return err
		}
		return s.missing(ctx, tx, d, have, routes, &found, func(row *reconcile.Row, routed *router.Routed) error {
			if note != nil && time.Since(noted) > time.Second {
				noted = time.Now()
				if err := note(found); err != nil {
					return err
				}
			}
			late := r.late || have.mayBeLate(row, routed.Stream)
			if !late && !d.Before.IsZero() {
				late = s.streams[routed.StreamIndex].overtaken.has(&routed.Event, d.Before)
			}
			return r.publishAs(ctx, &row.Row, routed, late)
		})
	})
	if err != nil {
		return err
	}
	if err := r.drain(ctx); err != nil {
		return err
	}
	if note != nil {
		return note(found)
	}
	return nil
}

// recordGap notes a gap. Nothing is proven while one is open.
func (s *session) recordGap(ctx context.Context, g witness.Gap, with func(context.Context, pgx.Tx) error) error {
	s.gapOpen.Store(true)
	s.r.count.gap(g.Kind)
	s.log.ErrorContext(ctx, "gap found", slog.String("kind", g.Kind), slog.String("stream", g.Stream), slog.Int64("events", g.Events),
		slog.String("from", g.From), slog.String("to", g.To))
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := witness.RecordGap(ctx, conn, s.cfg.Schema, s.cfg.Source, s.id, g, with)
		return err
	})
}

// closeDisplaced ends the gaps whose rows only an audit could tell: it has
// found nothing missing any more.
func (s *session) closeDisplaced(ctx context.Context) error {
	var gaps []witness.Gap
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		gaps, err = witness.OpenGaps(ctx, conn, s.cfg.Schema, s.cfg.Source)
		return err
	})
	for _, g := range gaps {
		if err != nil || g.Detail.Seen != "" {
			continue
		}
		err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return witness.CloseGap(ctx, conn, s.cfg.Schema, s.cfg.Source, s.id, g.ID, witness.GapHealed, g.Events, nil)
		})
	}
	return err
}
