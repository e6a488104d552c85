package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/witness"
)

// proveEvery is how often a snapshot is taken while events flow, and how often
// it is looked whether the last one is proven.
const proveEvery = time.Second

// A prover keeps proven snapshots: first it audits what may have passed unseen
// before this session, then it proves what the session itself delivers.
//
// A proof rests on the session having delivered everything that the slot sent,
// so before the audit there is none.
type prover struct {
	s       *session
	pending *witness.Proven // taken, and proven once the confirmed LSN has passed it
	history []captured      // the streams' ends at earlier snapshots, oldest first
	settled uint64          // the session's count of settled events when it was taken
	proven  uint64          // the same of the newest proof
}

// proveLoop runs until ctx ends.
func (s *session) proveLoop(ctx context.Context) error {
	for _, st := range s.streams {
		if !st.started {
			s.cover.begin(false)
			return nil // the next session has all streams; nothing can be proven without them
		}
	}
	p := &prover{s: s}
	if err := p.recall(ctx); err != nil {
		return ended(ctx, "read the newest proven snapshot", err)
	}
	tick := time.NewTicker(proveEvery)
	defer tick.Stop()
	audited, told := false, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.delivered.trouble(); err != nil && !told {
			told = true
			s.log.WarnContext(ctx, "what is delivered until the audit is held in memory", slog.String("err", err.Error()))
		}
		if p.pending == nil && (!audited || s.settledCount() != p.proven) {
			if err := p.capture(ctx); err != nil {
				return ended(ctx, "take a snapshot", err)
			}
			continue
		}
		if p.pending == nil || s.safe() < p.pending.LSN {
			continue
		}
		if !audited {
			whole, err := s.audit(ctx, p.pending)
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" {
				s.cover.begin(false)
				s.log.WarnContext(ctx, "the role may not read the outbox, so gaps are neither found nor healed and nothing is proven", slog.String("err", pgErr.Message))
				return s.endAwaiting(ctx, fmt.Errorf("the role may not read the outbox: %s", pgErr.Message))
			}
			if err != nil || !whole {
				return ended(ctx, "look for events that passed unseen", err)
			}
			audited = true
			s.delivered.end()
			if err := s.endAwaiting(ctx, nil); err != nil {
				return err
			}
		}
		if err := p.prove(ctx); err != nil {
			return ended(ctx, "keep a proven snapshot", err)
		}
	}
}

// endAwaiting ends the jobs that asked for what only the audit could tell.
func (s *session) endAwaiting(ctx context.Context, why error) error {
	if err := s.endJobs(ctx, s.awaiting, why); err != nil {
		return ended(ctx, "end the jobs that waited for the audit", err)
	}
	s.awaiting = nil
	s.lookSoon()
	return nil
}

// recall begins the history with what the newest proof says.
func (p *prover) recall(ctx context.Context) error {
	return p.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		last, some, err := witness.Newest(ctx, conn, p.s.cfg.Schema, p.s.cfg.Source)
		if err != nil || !some {
			return err
		}
		first := captured{from: map[string]uint64{}}
		for name, span := range last.Streams {
			first.from[name] = span.From
		}
		p.history = append(p.history, first)
		return nil
	})
}

// settledCount counts what was settled, one way or the other.
func (s *session) settledCount() uint64 {
	c := &s.r.count
	return c.stored.Load() + c.passed.Load() + c.refused.Load() + c.skipped.Load()
}

// captured is where the streams ended when transactions up to xmax had begun.
type captured struct {
	xmax uint64
	from map[string]uint64
}

// capture notes where the streams end, then takes the snapshot.
//
// What the snapshot does not see may be stored all the same: a commit is sent
// to the relay before it becomes visible, long before where it waits for a
// standby. But a transaction that had not begun when an earlier end was noted is
// stored behind that one.
func (p *prover) capture(ctx context.Context) error {
	s := p.s
	next := &witness.Proven{Epoch: s.epoch, Streams: make(map[string]witness.Span, len(s.streams))}
	now := captured{from: make(map[string]uint64, len(s.streams))}
	for _, st := range s.streams {
		now.from[st.name] = max(st.base.LastSeq, st.pub.Status().LastSeq)
		if st.Shared {
			now.from[st.name] = st.from.Load()
		}
	}
	p.settled = s.settledCount()
	changed := false
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if next.Snapshot, next.LSN, err = witness.Capture(ctx, conn); err != nil {
			return err
		}
		// Behind the snapshot: what it sees was published all along.
		changed, err = s.republished(ctx, conn)
		return err
	})
	if err != nil || changed {
		return err
	}
	var xmin uint64
	if _, err := fmt.Sscanf(next.Snapshot, "%d:%d:", &xmin, &now.xmax); err != nil {
		return fmt.Errorf("snapshot %q: %w", next.Snapshot, err)
	}
	p.history = append(p.history, now)
	for len(p.history) > 1 && p.history[1].xmax <= xmin {
		p.history = p.history[1:]
	}
	if len(p.history) > historyMost {
		p.history = append(p.history[:1], p.history[historyMost/2:]...)
	}
	for _, st := range s.streams {
		span := witness.Span{Created: st.base.Created}
		if p.history[0].xmax <= xmin {
			span.From = p.history[0].from[st.name]
		}
		next.Streams[st.name] = span
	}
	p.pending = next
	return nil
}

// historyMost bounds the history while one transaction stays open for long.
const historyMost = 1000

// prove keeps the pending snapshot: everything that it sees has been confirmed.
func (p *prover) prove(ctx context.Context) error {
	s := p.s
	if s.gapOpen.Load() {
		return nil
	}
	for _, st := range s.streams {
		span := p.pending.Streams[st.name]
		span.To = max(st.base.LastSeq, st.pub.Status().LastSeq, st.pub.LastAcked())
		p.pending.Streams[st.name] = span
	}
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return witness.Prove(ctx, conn, s.cfg.Schema, s.cfg.Source, s.id, *p.pending)
	})
	if err == nil {
		err = s.cover.proven(p.pending.Snapshot)
	}
	p.pending, p.proven = nil, p.settled
	return err
}

// safe is how far everything is settled.
func (s *session) safe() envelope.LSN {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Confirmed()
}

// declare keeps a snapshot as proven when the slot is made for the first time:
// the rows that it sees are not to be sent, and nobody is to look for them.
func (s *session) declare(ctx context.Context, snapshot string, at envelope.LSN) error {
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			return witness.Declare(ctx, tx, s.cfg.Schema, s.cfg.Source, witness.Proven{Epoch: max(s.epoch, 1), Snapshot: snapshot, LSN: at})
		})
	})
}

// audit looks for rows that the snapshot sees, that were there to be delivered,
// and are nowhere: the slot was advanced or made again by hand, or the table
// was not published for a while. Everything that the snapshot sees has been
// delivered by now, if the slot sent it. It is false when a gap was found: then
// the session ends, and the next one heals it.
func (s *session) audit(ctx context.Context, at *witness.Proven) (whole bool, err error) {
	var last witness.Proven
	var some bool
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		last, some, err = witness.Newest(ctx, conn, s.cfg.Schema, s.cfg.Source)
		return err
	})
	if err != nil {
		return false, err
	}
	detail := witness.GapDetail{Seen: at.Snapshot, Late: true}
	if some {
		detail.NotSeen, detail.Since, detail.From = last.Snapshot, last.At, map[string]uint64{}
		for name, span := range last.Streams {
			detail.From[name] = span.From
		}
	}
	var found finding
	err = s.scanNow(ctx, func(tx pgx.Tx) error {
		if detail.Until, err = s.awaitInexact(ctx, tx); err != nil {
			return err
		}
		found, err = s.countIn(ctx, tx, detail, 1<<62)
		return err
	})
	if err != nil {
		return false, err
	}
	switch {
	case found.missing == 0:
		return true, s.closeDisplaced(ctx)
	case !some:
		// Nobody ever proved anything: the rows were there before the slot.
		s.log.WarnContext(ctx, "rows that were written before the slot was made are not sent; run --backfill on a first start sends them",
			slog.Int64("rows", found.missing))
		return true, nil
	}
	detail.Oldest = found.oldest
	gap := witness.Gap{
		Kind: witness.GapUnseen, Epoch: s.epoch, Events: found.missing, From: last.LSN.String(), To: at.LSN.String(), Detail: detail,
	}
	if err := s.recordGap(ctx, gap, nil); err != nil {
		return false, err
	}
	s.renew(ctx, fmt.Sprintf("%d events passed unseen", found.missing))
	return false, nil
}

// awaitInexact makes an audit exact for tables without an xid column, where no
// snapshot tells which rows it sees: it waits until everything that tx sees has
// been delivered. It gives the time of tx by the database's clock.
func (s *session) awaitInexact(ctx context.Context, tx pgx.Tx) (at time.Time, err error) {
	exact := true
	for _, t := range s.cfg.Tables {
		has, err := hasXid(ctx, tx, routerTable(t))
		if err != nil {
			return at, err
		}
		exact = exact && has
	}
	if exact {
		return at, nil
	}
	if err := tx.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&at); err != nil {
		return at, fmt.Errorf("ask for the database's time: %w", err)
	}
	var end envelope.LSN
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		_, end, err = witness.Capture(ctx, conn) // behind whatever tx sees
		return err
	})
	if err != nil {
		return at, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for s.safe() < end {
		select {
		case <-ctx.Done():
			return at, context.Cause(ctx)
		case <-tick.C:
		}
	}
	return at, nil
}

// renew ends the session in good order; the next one begins at once.
func (s *session) renew(ctx context.Context, why string) {
	s.log.InfoContext(ctx, "a new session begins", slog.String("why", why))
	s.renewal.Store(true)
	s.stopIntake()
}
