package walrelay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/router"
)

// requeue publishes dead letters with the configuration of now, one after the
// other. What is refused again stays open and says why.
func (s *session) requeue(ctx context.Context, j *job.Job) error {
	q := requeuing{s: s, j: j}
	eachSent, err := s.beginJob(ctx, j)
	if err != nil {
		return err
	}
	sent := map[keyed]bool{} // no more than were asked for
	err = eachSent(ctx, func(k keyed) error { sent[k] = true; return nil })
	if err != nil {
		return err
	}
	if q.routes, err = s.ownRouter(0); err != nil {
		return err
	}
	if q.taken, err = s.coverage(ctx); err != nil {
		return err
	}
	j.Progress = job.Progress{}
	noted := time.Now()
	for _, id := range j.Arguments.Letters {
		if err := q.letter(ctx, id, sent); err != nil {
			return ofTable(err)
		}
		if time.Since(noted) > noteEvery {
			noted = time.Now()
			if err := s.noteJob(ctx, j); err != nil {
				return err
			}
		}
	}
	if j.Progress.Refused > 0 {
		return jobFails("%d of %d dead letters were refused again and stay open; walrelay deadletters show tells why", j.Progress.Refused, j.Progress.Looked)
	}
	return nil
}

// A requeuing is one job's run.
type requeuing struct {
	s      *session
	j      *job.Job
	routes *router.Router
	taken  coverage
}

// letter deals with one dead letter.
func (q *requeuing) letter(ctx context.Context, id int64, sent map[keyed]bool) error {
	s, p := q.s, &q.j.Progress
	var l deadletter.Letter
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		l, err = deadletter.Get(ctx, conn, s.cfg.Schema, id)
		return err
	})
	switch {
	case errors.Is(err, deadletter.ErrNone):
		p.Refused++
		return nil
	case err != nil:
		return err
	}
	p.Looked++
	if !l.ResolvedAt.IsZero() || l.Source != s.cfg.Source {
		p.Present++ // by this job before a crash, or by somebody else
		return nil
	}
	if err := l.CheckAlone(); err != nil {
		return q.refuse(ctx, l.ID, err.Error())
	}
	if l.EventID != "" && sent[keyOf(l.EventID)] {
		p.Sent, p.Stored = p.Sent+1, p.Stored+1
		return q.resolve(ctx, &l, q.j.FirstSequence)
	}
	row, why, err := q.row(ctx, &l)
	if err != nil {
		return err
	}
	if why != "" {
		return q.refuse(ctx, l.ID, why)
	}
	row.Position, row.CommittedAt = l.Position, l.CommittedAt
	return q.send(ctx, &l, row)
}

// send publishes a letter's row and waits for its outcome.
func (q *requeuing) send(ctx context.Context, l *deadletter.Letter, row *router.Row) error {
	s, p := q.s, &q.j.Progress
	var routed router.Routed
	if err := q.routes.Route(row, &routed); err != nil {
		return err
	}
	if routed.Verdict != router.Publish && routed.Verdict != router.Refused {
		return q.refuse(ctx, l.ID, fmt.Sprintf("event type %q of table %s is published by no route now", routed.Event.EventType, l.Table))
	}
	if !q.taken.has(&routed) {
		return q.refuse(ctx, l.ID, fmt.Sprintf("stream %q does not cover subject %q; add it there, or change the route", routed.Stream, routed.Message.Subject))
	}
	r := s.newRepair(job.Requeue, q.j.ID, true)
	defer r.end()
	r.again = true
	r.refuse = func(ctx context.Context, again deadletter.Letter) error {
		return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return deadletter.RefuseAgain(ctx, conn, s.cfg.Schema, l.ID, again.Reason, again.Error, s.fence)
		})
	}
	from := s.ends()
	if err := r.publish(ctx, row, &routed); err != nil {
		return err
	}
	if err := r.drain(ctx); err != nil {
		return err
	}
	if r.refused > 0 {
		p.Refused++
		return nil
	}
	p.Sent++
	if r.found > 0 {
		p.Present++
		return q.resolve(ctx, l, nil)
	}
	p.Stored++
	return q.resolve(ctx, l, from)
}

// ends gives the streams' last sequences as far as they are known.
func (s *session) ends() map[string]uint64 {
	ends := map[string]uint64{}
	for _, st := range s.streams {
		ends[st.name] = max(st.base.LastSeq, st.pub.Status().LastSeq, st.pub.LastAcked())
	}
	return ends
}

// resolve says of a letter that it is stored, and where: behind these ends. Nil
// ends say that its place is not known.
func (q *requeuing) resolve(ctx context.Context, l *deadletter.Letter, behind map[string]uint64) error {
	s := q.s
	origin := originOf(job.Requeue, q.j.ID)
	var sequence uint64
	for _, st := range s.streams {
		if behind == nil {
			break
		}
		_, err := st.pub.EachHeader(ctx, behind[st.name], func(m publish.StoredMessage) error {
			if m.Header.Get(envelope.HeaderOrigin) == origin && eventOf(m) == l.EventID {
				sequence = m.Seq
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("look for dead letter %d in stream %q: %w", l.ID, st.name, err)
		}
	}
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return deadletter.Resolve(ctx, conn, s.cfg.Schema, l.ID, q.j.AskedBy, sequence, s.fence)
	})
}

// refuse leaves a letter open.
func (q *requeuing) refuse(ctx context.Context, id int64, why string) error {
	q.j.Progress.Refused++
	return q.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return deadletter.RefuseAgain(ctx, conn, q.s.cfg.Schema, id, "", why, q.s.fence)
	})
}

// row gives the row of a letter: from its table, where it is still there and
// the same, else what the letter kept of it. Why says that there is neither.
func (q *requeuing) row(ctx context.Context, l *deadletter.Letter) (row *router.Row, why string, err error) {
	table, known := q.table(l.Table)
	if !known {
		return nil, fmt.Sprintf("table %s is no outbox table now; add it under tables", l.Table), nil
	}
	id := l.EventID
	if parsed, err := envelope.ParseMsgID(l.EventID); err == nil {
		id = parsed.ID
	}
	if id == "" {
		return nil, "the event has no id that tells its row, so that no stream could recognise a second attempt", nil
	}
	err = q.s.scanNow(ctx, func(tx pgx.Tx) error {
		var routed router.Routed
		for found, err := range reconcile.Rows(ctx, tx, table, reconcile.RowFilter{IDs: []string{id}}) {
			if err != nil {
				return err
			}
			if err := q.routes.Route(&found.Row, &routed); err != nil {
				return err
			}
			if row == nil && sameEvent(l, &routed.Event) {
				row = cloneRow(&found.Row)
			}
		}
		whole := l.Columns != nil && (l.PayloadNull || l.Payload != nil)
		if row != nil || !whole {
			return nil
		}
		row, err = reconcile.RowOf(ctx, tx, table, reconcile.Copy{
			ID: id, AggregateType: l.AggregateType, AggregateID: l.AggregateID, EventType: l.EventType,
			Headers: l.RowHeaders, Payload: l.Payload, NullPayload: l.PayloadNull, Columns: l.Columns,
		})
		return err
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(pg.Code, "22") {
		return nil, fmt.Sprintf("table %s can have no row of its id: %s", l.Table, pg.Message), nil
	}
	if err == nil && row == nil {
		why = fmt.Sprintf("its row is gone from table %s, and the dead letter has no whole copy of it", l.Table)
	}
	return row, why, err
}

// table finds a configured table by schema.name.
func (q *requeuing) table(name string) (router.Table, bool) {
	for _, t := range q.s.cfg.Tables {
		if t.Schema+"."+t.Name == name {
			return routerTable(t), true
		}
	}
	return router.Table{}, false
}

// sameEvent says whether a row is the one that a letter was written for: an id
// may have come again with another event.
func sameEvent(l *deadletter.Letter, e *router.Event) bool {
	if l.AggregateType != e.AggregateType || l.AggregateID != e.AggregateID || l.EventType != e.EventType || l.PayloadNull != e.NullPayload {
		return false
	}
	sum := sha256.Sum256(e.Payload)
	return l.PayloadNull || bytes.Equal(sum[:], l.PayloadHash)
}

func cloneRow(r *router.Row) *router.Row {
	clone := *r
	clone.Tuple = append(clone.Tuple[:0:0], r.Tuple...)
	for i := range clone.Tuple {
		clone.Tuple[i].Data = bytes.Clone(clone.Tuple[i].Data)
	}
	return &clone
}
