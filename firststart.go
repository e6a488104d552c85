package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// prepareSlot makes the slot where there is none or where the one that is there
// cannot go on.
func (s *session) prepareSlot(ctx context.Context, info slot.Info) error {
	var found witness.Witness
	var jobs []job.Job
	err := s.sql.do(ctx, func(ctx context.Context, q *pgx.Conn) (err error) {
		if found, err = witness.Read(ctx, q, s.cfg.Schema, s.cfg.Source); err != nil {
			return err
		}
		jobs, err = job.Open(ctx, q, s.cfg.Schema, s.cfg.Source)
		return err
	})
	if err != nil {
		return err
	}
	var backfill *job.Job
	for i := range jobs {
		if jobs[i].Kind == job.Backfill {
			backfill = &jobs[i]
		}
	}
	first := !found.Began()
	lost := info.Exists && info.WALStatus == "lost"
	switch {
	case backfill != nil:
		// A backfill that was interrupted: the slot has delivered nothing.
		return s.makeSlotAgain(ctx, info.Exists)
	case first && s.cfg.Backfill && !s.backfilled(ctx):
		return s.askBackfill(ctx, info)
	case info.Exists && !lost:
		return nil
	case lost || !first:
		return s.replaceSlot(ctx, info, found, healAsked(jobs, 0) != nil)
	}
	if err := s.nothingOfOurs(ctx); err != nil {
		return err
	}
	return s.makeFirstSlot(ctx)
}

// nothingOfOurs makes sure, before the very first slot is made, that the streams
// hold no events of this source: else something was delivered that this database
// does not remember. Where the slot is there already it is taken first, and each
// stream is looked at when it begins.
func (s *session) nothingOfOurs(ctx context.Context) error {
	s.r.state.set(ctx, StateWaiting, "looking whether the streams hold events of this source, before the first start")
	for _, st := range s.streams {
		_, err := s.nats.StreamInfo(ctx, st.name)
		if missing, ok := errors.AsType[*publish.APIError](err); ok && missing.NotFound() {
			continue // it holds nothing
		}
		tail, err := st.pub.Tail(ctx)
		if err != nil {
			return err
		}
		if tail.Ours {
			return forgottenBy(s.cfg.Source, st.name, tail)
		}
	}
	return nil
}

// makeFirstSlot makes the slot on the very first start: when nothing was ever
// delivered, nothing can have been missed.
func (s *session) makeFirstSlot(ctx context.Context) error {
	return s.makeSlot(ctx, func(snapshot string, at envelope.LSN) error {
		s.tellUnsent(ctx)
		s.letGo(ctx)
		return s.declare(ctx, snapshot, at)
	})
}

// tellUnsent says how many rows the new slot will not send. A table that takes
// longer to count is not counted to its end: the start does not wait for that.
func (s *session) tellUnsent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, t := range s.cfg.Tables {
		name := pgx.Identifier{t.Schema, t.Name}.Sanitize()
		var rows int64
		err := s.held.QueryRow(ctx, "SELECT count(*) FROM "+name).Scan(&rows)
		switch {
		case err != nil:
			s.log.WarnContext(ctx, "rows that were written before the slot was made are not sent; how many there are is not known",
				slog.String("table", name), slog.String("err", err.Error()))
			return
		case rows > 0:
			s.log.WarnContext(ctx, "rows that were written before the slot was made are not sent; --backfill on the very first start sends them",
				slog.String("table", name), slog.Int64("rows", rows))
		}
	}
}

// makeSlot makes the slot and gives the snapshot of what it will not send. A
// transaction that has this snapshot stays open, for who reads those rows.
func (s *session) makeSlot(ctx context.Context, then func(snapshot string, at envelope.LSN) error) error {
	s.log.InfoContext(ctx, "making the slot; this waits for the transactions that are open now")
	s.r.state.set(ctx, StateWaiting, "making the slot; PostgreSQL waits for the transactions that are open now")
	name, at, err := s.repl.Create(ctx)
	if err != nil {
		return err
	}
	snapshot, err := s.hold(ctx, name)
	if err == nil {
		err = then(snapshot, at)
	}
	if err != nil {
		// Without knowing what it does not send the slot is of no use.
		return errors.Join(fmt.Errorf("note what the new slot will not send: %w", err), s.repl.Drop(context.WithoutCancel(ctx)))
	}
	return nil
}

// hold opens a transaction with a snapshot that another connection exports.
func (s *session) hold(ctx context.Context, name string) (snapshot string, err error) {
	if s.heldConn, err = s.cfg.open(ctx, "scan"); err != nil {
		return "", err
	}
	if s.held, err = s.heldConn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}); err != nil {
		return "", err
	}
	// The name comes from the server, and a parameter is not taken here.
	if _, err = s.held.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+name+"'"); err != nil {
		return "", err
	}
	if err = s.held.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&snapshot); err != nil {
		return "", err
	}
	return wellFormed(snapshot)
}

// wellFormed mends the text of a snapshot that a slot has exported: its xmin can
// be beyond its xmax, which PostgreSQL writes and does not read. All
// transactions below xmin have ended.
func wellFormed(text string) (string, error) {
	s, err := parseSnapshot(text)
	if err != nil || s.xmin <= s.xmax {
		return text, err
	}
	return fmt.Sprintf("%d:%d:", s.xmin, s.xmin), nil
}

// letGo ends the transaction of hold.
func (s *session) letGo(ctx context.Context) {
	if s.heldConn != nil {
		_ = s.heldConn.Close(ctx) // a read-only transaction goes with it
	}
	s.held, s.heldConn = nil, nil
}

// replaceSlot makes a slot in the place of one that is gone or has lost its
// write-ahead log. What committed between is a gap, which is healed before
// anything new is read.
func (s *session) replaceSlot(ctx context.Context, info slot.Info, found witness.Witness, asked bool) error {
	broken := brokenSlot(s.cfg.Slot, info, found)
	if s.cfg.OnGap == GapHalt && !asked {
		return broken
	}
	gap := witness.Gap{Kind: witness.GapSlot, Epoch: s.epoch, From: found.ConfirmedLSN.String()}
	gap.Detail.How = broken.Object + " " + broken.Problem
	if _, err := s.take(ctx); err != nil {
		return err
	}
	if info.Exists {
		if err := s.repl.Drop(ctx); err != nil {
			return err
		}
	}
	return s.makeSlot(ctx, func(snapshot string, at envelope.LSN) error {
		gap.To, gap.Detail.Seen = at.String(), snapshot
		if err := s.held.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&gap.Detail.Until); err != nil {
			return err
		}
		err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			last, some, err := witness.Newest(ctx, conn, s.cfg.Schema, s.cfg.Source)
			if err != nil || !some {
				return err
			}
			gap.Detail.NotSeen, gap.Detail.Since, gap.Detail.From = last.Snapshot, last.At, map[string]uint64{}
			for name, span := range last.Streams {
				gap.Detail.From[name] = span.From
			}
			return nil
		})
		if err != nil {
			return err
		}
		return s.recordGap(ctx, gap, nil)
	})
}

// backfilled says whether a backfill has ended well: another one is not begun
// because the flag is still there.
func (s *session) backfilled(ctx context.Context) bool {
	done := false
	_ = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error { // asked again by the next session
		jobs, err := job.Recent(ctx, conn, s.cfg.Schema, s.cfg.Source, 100)
		for _, j := range jobs {
			done = done || j.Kind == job.Backfill && j.State == job.Done
		}
		return err
	})
	return done
}

// askBackfill enters the job, then makes the slot: the job is there first, so
// that a crash between the two is recognised.
func (s *session) askBackfill(ctx context.Context, info slot.Info) error {
	if err := s.nothingOfOurs(ctx); err != nil {
		return err
	}
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := job.Ask(ctx, conn, s.cfg.Schema, s.cfg.Source, job.Backfill, job.Arguments{Reason: "run --backfill on the first start"}, "walrelay run")
		return err
	})
	if err != nil {
		return err
	}
	return s.makeSlotAgain(ctx, info.Exists)
}

// makeSlotAgain drops our slot, which has delivered nothing, and makes it
// again: what it will not send is what the backfill publishes.
func (s *session) makeSlotAgain(ctx context.Context, exists bool) error {
	if _, err := s.take(ctx); err != nil {
		return err
	}
	if exists {
		if err := s.repl.Drop(ctx); err != nil {
			return err
		}
	}
	return s.makeSlot(ctx, func(snapshot string, at envelope.LSN) error {
		s.backfillOf, s.backfillAt = snapshot, at
		return nil
	})
}

// backfill publishes the rows that the slot will not send. Until it ends
// nothing is read from the slot; after a crash the slot is made again, and what
// the streams hold is passed over.
func (s *session) backfill(ctx context.Context, j *job.Job) error {
	for _, st := range s.streams {
		if !st.started {
			return fmt.Errorf("the backfill waits for stream %q: %s", st.name, st.pub.Status().Reason)
		}
	}
	if err := s.startJob(ctx, j); err != nil {
		return err
	}
	do := func(f func(context.Context, *pgx.Conn) error) error { return s.sql.do(ctx, f) }
	s.r.state.set(ctx, StateWaiting, "backfill: publishing the rows that were there before the slot")
	r := s.newRepair(job.Backfill, j.ID, false)
	defer r.end()
	begun := time.Now()
	note := func(found finding) error {
		j.Progress = job.Progress{Looked: found.looked, Present: found.looked - found.missing, Sent: found.missing, Stored: r.stored()}
		s.r.state.set(ctx, StateWaiting, fmt.Sprintf("backfill: %d rows published so far", found.missing))
		return do(func(ctx context.Context, conn *pgx.Conn) error { return job.Note(ctx, conn, s.cfg.Schema, j, s.fence) })
	}
	// The held transaction sees those rows and no others.
	if err := s.publishMissing(ctx, r, witness.GapDetail{From: j.FirstSequence}, note); err != nil {
		return fmt.Errorf("backfill: %w", err)
	}
	s.letGo(ctx)
	if err := s.proveBackfilled(ctx); err != nil {
		return err
	}
	s.log.InfoContext(ctx, "backfill done", slog.Int64("rows", j.Progress.Looked), slog.Int64("published", r.stored()), slog.Duration("took", time.Since(begun)))
	return do(func(ctx context.Context, conn *pgx.Conn) error {
		return job.End(ctx, conn, s.cfg.Schema, j, nil, s.fence)
	})
}

// proveBackfilled keeps the backfill's snapshot as proven: the streams hold what
// it sees, and if one of them loses it, it is missing. Nothing was read from the
// slot so far, so that all else will stand behind the streams' ends of now.
func (s *session) proveBackfilled(ctx context.Context) error {
	p := witness.Proven{Epoch: max(s.epoch, 1), Snapshot: s.backfillOf, LSN: s.backfillAt, Streams: make(map[string]witness.Span, len(s.streams))}
	ends := s.ends()
	for _, st := range s.streams {
		p.Streams[st.name] = witness.Span{Created: st.base.Created, From: ends[st.name], To: ends[st.name]}
	}
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return witness.ProveBackfilled(ctx, conn, s.cfg.Schema, s.cfg.Source, s.id, p)
	})
}
