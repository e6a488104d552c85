package walrelay

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/witness"
)

const (
	// parkedMost is how many aggregates may be parked at a time. So many are
	// no bad events any more, and the set of them is kept in memory.
	parkedMost = 10_000
	// recordedMost is how many positions of recorded events are kept, for what
	// the slot sends again; beyond them PostgreSQL is asked.
	recordedMost = 100_000
)

// parking is the set of parked aggregates. Its mutex is held from the look
// whether an aggregate is parked until the letter is committed, and by the
// release from the look whether letters are left until the aggregate is free:
// so no live event overtakes a parked one.
type parking struct {
	mu sync.Mutex
	at map[keyed]parkedAt
}

// parkedAt are the letters that an aggregate waits behind.
type parkedAt struct {
	first int64 // that the others point at
	open  int64 // that is to be dealt with: the first one, or one that was refused in its turn
}

// recallParked reads which aggregates are parked, whatever OnPoison says now:
// what waits must not be overtaken.
func (s *session) recallParked(ctx context.Context, conn *pgx.Conn) error {
	if _, err := deadletter.Unite(ctx, conn, s.cfg.Schema, s.cfg.Source, s.fence); err != nil {
		return err
	}
	parked, err := deadletter.ParkedAggregates(ctx, conn, s.cfg.Schema, s.cfg.Source, parkedMost+1)
	if err != nil {
		return err
	}
	if len(parked) > parkedMost {
		return tooManyParked()
	}
	s.parking.mu.Lock()
	defer s.parking.mu.Unlock()
	s.parking.at = make(map[keyed]parkedAt, len(parked))
	for _, p := range parked {
		s.parking.at[keyOf(p.AggregateType, p.AggregateID)] = parkedAt{p.First, p.Open}
	}
	if len(parked) > 0 {
		s.log.WarnContext(ctx, "aggregates are parked: their events wait in the table of dead letters", slog.Int("aggregates", len(parked)))
	}
	return s.endReleases(ctx, conn)
}

// endReleases ends the jobs of releases that an earlier session had done but for
// saying so: their aggregates are not parked any more. The parking's mutex is
// held.
func (s *session) endReleases(ctx context.Context, conn *pgx.Conn) error {
	open, err := job.Open(ctx, conn, s.cfg.Schema, s.cfg.Source)
	if err != nil {
		return err
	}
	for i := range open {
		j := &open[i]
		if _, parked := s.parking.at[keyOf(j.Arguments.AggregateType, j.Arguments.AggregateID)]; parked || j.Kind != job.Release {
			continue
		}
		if err := job.End(ctx, conn, s.cfg.Schema, j, nil, s.fence); err != nil {
			return err
		}
	}
	return nil
}

func tooManyParked() *HaltError {
	return &HaltError{
		Object: "dead letters", Problem: fmt.Sprintf("%d aggregates are parked, and one more would have to be", parkedMost),
		Fix: "deal with them with walrelay deadletters requeue or discard, or restart with --on-poison dead-letter",
	}
}

// follow parks an event if its aggregate is parked.
func (s *session) follow(ctx context.Context, e *router.Event, letter func() deadletter.Letter) (parked bool, err error) {
	s.parking.mu.Lock()
	defer s.parking.mu.Unlock()
	if len(s.parking.at) == 0 {
		return false, nil
	}
	at, parked := s.parking.at[keyOf(e.AggregateType, e.AggregateID)]
	if !parked {
		return false, nil
	}
	l := letter()
	l.ParkedBehind = at.first
	detail := fmt.Sprintf("its aggregate is parked behind dead letter %d", at.open)
	if l.Error != "" {
		detail += "; it would be refused as well: " + l.Error
	}
	l.Reason, l.Error = deadletter.ReasonParked, detail
	l.Source = s.cfg.Source
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return deadletter.Park(ctx, conn, s.cfg.Schema, l, deadletter.Guard{
			SQL: witness.LockSQL(s.cfg.Schema, deadletter.GuardFrom), Args: []any{s.cfg.Source, s.id}, Lost: witness.ErrSessionLost,
		}, s.fence)
	})
	if err != nil {
		return true, err
	}
	s.r.count.refused.Add(1)
	return true, nil
}

// recordRefused records a refused event, and parks its aggregate where that is
// wanted.
func (s *session) recordRefused(ctx context.Context, l deadletter.Letter) (parked bool, err error) {
	if s.cfg.OnPoison != PoisonPark {
		return false, s.record(ctx, l)
	}
	if l.AggregateID == "" {
		s.log.WarnContext(ctx, "a refused event has no aggregate that could be read: nothing is parked behind it",
			slog.String("table", l.Table), slog.String("position", l.Position.String()))
		return false, s.record(ctx, l)
	}
	key := keyOf(l.AggregateType, l.AggregateID)
	s.parking.mu.Lock()
	defer s.parking.mu.Unlock()
	if _, already := s.parking.at[key]; !already && len(s.parking.at) >= parkedMost {
		return false, tooManyParked()
	}
	l.Source = s.cfg.Source
	var first int64
	err = s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		first, err = deadletter.RecordFirst(ctx, conn, s.cfg.Schema, l, s.fence)
		return err
	})
	if err != nil || first == 0 {
		return false, err
	}
	s.parking.at[key] = parkedAt{first, first}
	s.log.WarnContext(ctx, "aggregate parked: its later events follow into the table of dead letters until this one is dealt with",
		slog.Int64("dead_letter", first))
	return true, nil
}

// restart ends the session at once, whatever is in flight; the next one begins
// at once. It gives the error to end with.
func (s *session) restart(ctx context.Context, why string) error {
	s.log.InfoContext(ctx, "a new session begins", slog.String("why", why))
	err := fmt.Errorf("%s: %w", why, errRenew)
	s.fail(err)
	return err
}

// A recorded set holds the events that the slot may send again and that are
// dead letters already, in whatever state: a parked one may have been released
// meanwhile, behind the stream's mark.
type recorded struct {
	positions map[envelope.Position]struct{}
	last      envelope.Position
	more      bool // there are letters beyond last
}

// recallRecorded reads the dead letters of what the slot may send again.
func (r *reader) recallRecorded(ctx context.Context, conn *pgx.Conn) error {
	found, err := deadletter.From(ctx, conn, r.s.cfg.Schema, r.s.cfg.Source, r.s.resumedAt, recordedMost)
	if err != nil {
		return err
	}
	r.recorded = recorded{more: len(found) == recordedMost}
	if len(found) == 0 {
		return nil
	}
	r.recorded.positions = make(map[envelope.Position]struct{}, len(found))
	for _, p := range found {
		r.recorded.positions[p] = struct{}{}
	}
	r.recorded.last = found[len(found)-1]
	return nil
}

// recordedBefore says whether an earlier session made a dead letter of the row.
func (r *reader) recordedBefore(ctx context.Context) (yes bool, err error) {
	if r.recorded.positions == nil {
		return false, nil
	}
	if r.row.Position.Compare(r.recorded.last) <= 0 {
		_, yes = r.recorded.positions[r.row.Position]
		return yes, nil
	}
	if !r.recorded.more {
		r.recorded.positions = nil // none comes any more
		return false, nil
	}
	err = r.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		yes, err = deadletter.Has(ctx, conn, r.s.cfg.Schema, r.s.cfg.Source, r.row.Position)
		return err
	})
	return yes, err
}

// rowID gives the id as the table has it of an event's; false where the event's
// id has only a hash of it.
func rowID(eventID string) (string, bool) {
	parts := strings.SplitN(eventID, ":", 3)
	if len(parts) < 3 {
		return eventID, eventID != ""
	}
	id, err := envelope.Unescape(parts[2])
	return id, err == nil
}
