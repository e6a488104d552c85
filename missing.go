package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/witness"
)

// A finding is what a look through the outbox tables gave.
type finding struct {
	looked, missing int64
	oldest          time.Time // of the missing ones; zero where no row tells
}

// present gives the events that need no repair: those in a stream, in any,
// behind where it is to be looked through, those among the dead letters, in
// whatever state, and those of streams that let messages go which the slot has
// sent in this session.
func (s *session) present(ctx context.Context, tx pgx.Tx, d witness.GapDetail) (*seen, error) {
	from, gone, err := s.lookFrom(ctx, tx, d)
	if err != nil {
		return nil, err
	}
	removed := map[string]bool{}
	have, err := newSeen(ctx, s.cfg.portion(), func(ctx context.Context, note func(keyed) error) error {
		if err := s.delivered.each(note); err != nil {
			return err
		}
		if err := s.eachStored(ctx, d, from, note, removed); err != nil {
			return err
		}
		return s.eachLetter(ctx, note)
	})
	if err != nil {
		return nil, err
	}
	have.gone = gone
	have.newer, err = s.newerMayStand(ctx, from, removed)
	return have, err
}

// eachStored reads the streams, and notes those that have not all messages of
// what it read. Those that only earlier routes had are looked through as well: the
// last proof and the witness, as this session found it, name them.
func (s *session) eachStored(ctx context.Context, d witness.GapDetail, from map[string]uint64, note func(keyed) error, removed map[string]bool) error {
	var n uint64
	all := func(m publish.StoredMessage) error {
		n++
		if m.Header.Get(envelope.HeaderSource) != s.cfg.Source {
			return nil
		}
		if id := m.Header.Get(envelope.HeaderEventID); id != "" {
			if err := note(keyOf(id)); err != nil {
				return err
			}
		}
		return note(keyOf(m.Header.Get(envelope.HeaderMsgID)))
	}
	looked := map[string]bool{}
	for _, st := range s.streams {
		looked[st.name], n = true, 0
		visit := all
		if st.name == d.Stream {
			visit = func(m publish.StoredMessage) error {
				if m.Header.Get(envelope.HeaderSource) == s.cfg.Source {
					st.overtaken.noteBehind(d.Before, m)
				}
				return all(m)
			}
		}
		last, err := st.pub.EachHeader(ctx, from[st.name], visit)
		if err != nil {
			return fmt.Errorf("look through stream %q: %w", st.name, err)
		}
		removed[st.name] = n < last-min(last, from[st.name])
	}
	earlier := map[string]bool{}
	for name := range from {
		earlier[name] = true
	}
	for name := range s.taken {
		earlier[name] = true
	}
	for name := range earlier {
		if looked[name] {
			continue
		}
		old := publish.New(s.nats, publish.Config{Stream: name, Source: s.cfg.Source, Logger: s.log})
		_, err := old.EachHeader(ctx, from[name], all)
		if gone, ok := errors.AsType[*publish.APIError](err); ok && gone.NotFound() {
			continue
		}
		if err != nil {
			return fmt.Errorf("look through stream %q, which earlier routes had: %w", name, err)
		}
	}
	return nil
}

func (s *session) eachLetter(ctx context.Context, note func(keyed) error) error {
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT "table", event_id FROM `+pgx.Identifier{s.cfg.Schema, "dead_letter"}.Sanitize()+`
			WHERE source = $1 AND event_id IS NOT NULL`, s.cfg.Source)
		if err != nil {
			return err
		}
		var table, id string
		_, err = pgx.ForEachRow(rows, []any{&table, &id}, func() error { return note(keyOf(table, id)) })
		return err
	})
	if err != nil {
		return fmt.Errorf("look through the dead letters: %w", err)
	}
	return nil
}

// marginOfClock is added where rows can be told by created_at alone: a
// transaction may have begun that long before it committed.
const marginOfClock = time.Hour

// missing gives each row that a gap is about and that is not present, routed as of
// now, in the order of the table's seq. What it gives is valid until the next
// one.
func (s *session) missing(ctx context.Context, tx pgx.Tx, d witness.GapDetail, have *seen, routes *router.Router, out *finding,
	each func(row *reconcile.Row, routed *router.Routed) error,
) error {
	if have.keys == nil {
		s.log.InfoContext(ctx, "more events are stored than are remembered at a time, so the rows are looked for in portions", slog.Int("portion", have.most))
	}
	present, _, err := have.among(ctx, func(ask func(*router.Event) error) error {
		return s.concerned(ctx, tx, d, routes, nil, func(_ *reconcile.Row, routed *router.Routed, _ bool) error {
			return ask(&routed.Event)
		})
	})
	if err != nil {
		return err
	}
	return s.concerned(ctx, tx, d, routes, &out.looked, func(row *reconcile.Row, routed *router.Routed, exact bool) error {
		// Asked first: the clock may judge otherwise than the first time.
		if present(&routed.Event) || !exact && (tx != s.held && younger(row, d.Until) || have.mayBeGone(row)) {
			return nil // what is younger the slot has yet to send
		}
		out.missing++
		if created, ok := row.CreatedAt(); ok && (out.oldest.IsZero() || created.Before(out.oldest)) {
			out.oldest = created
		}
		return each(row, routed)
	})
}

// concerned gives the rows that a gap is about and that are to be published,
// the same ones in the same order for the same snapshot. Exact says that a
// snapshot tells which rows of the table it is about; else the clock does.
func (s *session) concerned(ctx context.Context, tx pgx.Tx, d witness.GapDetail, routes *router.Router, looked *int64,
	each func(row *reconcile.Row, routed *router.Routed, exact bool) error,
) error {
	dump, err := witness.DumpOf(ctx, tx, s.cfg.Schema, s.cfg.Source, s.epochs)
	if err != nil {
		return err
	}
	for _, t := range s.cfg.Tables {
		table := routerTable(t)
		exact, err := hasXid(ctx, tx, table)
		if err != nil {
			return err
		}
		filter := reconcile.RowFilter{SeenBy: d.Seen, NotSeenBy: d.NotSeen}
		if !exact {
			filter = reconcile.RowFilter{}
			if !d.Since.IsZero() && table.Columns.Effective().CreatedAt != "" {
				filter.Since = d.Since.Add(-marginOfClock)
			}
		}
		var routed router.Routed
		for row, err := range reconcile.Rows(ctx, tx, table, filter) {
			if err != nil {
				return err
			}
			if looked != nil {
				*looked++
			}
			if err := routes.Route(&row.Row, &routed); err != nil {
				return err
			}
			if created, ok := row.CreatedAt(); ok && dump.Has(row.Xid, created) {
				continue // it counts as delivered since the adoption
			}
			if d.Stream != "" && routed.Stream != d.Stream {
				continue // what another stream let go is no loss
			}
			publishes := routed.Verdict == router.Publish || routed.Verdict == router.Refused
			if !publishes || routed.Event.ID == "" {
				continue // without an id nobody can tell whether it was recorded
			}
			if err := each(row, &routed, exact); err != nil {
				return err
			}
		}
	}
	return nil
}

// younger says whether a row was written after a gap was found. A time in the
// future is somebody's own, and tells nothing.
func younger(row *reconcile.Row, until time.Time) bool {
	created, ok := row.CreatedAt()
	return !until.IsZero() && ok && created.After(until) && created.Before(time.Now().Add(time.Minute))
}

func hasXid(ctx context.Context, tx pgx.Tx, t router.Table) (bool, error) {
	column := t.Columns.Effective().Xid
	if column == "" {
		return false, nil
	}
	var has bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = $3 AND NOT a.attisdropped)`, t.Schema, t.Name, column).Scan(&has)
	return has, err
}

// errLimit ends a count that has seen enough.
var errLimit = errors.New("more than the limit")

// count says how many events of a gap are missing, up to a limit.
func (s *session) count(ctx context.Context, d witness.GapDetail, limit int64) (found finding, err error) {
	err = s.scan(ctx, func(tx pgx.Tx) error {
		found, err = s.countIn(ctx, tx, d, limit)
		return err
	})
	return found, err
}

// countIn does so as a transaction sees the tables.
func (s *session) countIn(ctx context.Context, tx pgx.Tx, d witness.GapDetail, limit int64) (finding, error) {
	var found finding
	have, err := s.present(ctx, tx, d)
	if err != nil {
		return found, err
	}
	routes, err := s.ownRouter(0)
	if err != nil {
		return found, err
	}
	err = s.missing(ctx, tx, d, have, routes, &found, func(*reconcile.Row, *router.Routed) error {
		if found.missing > limit {
			return errLimit
		}
		return nil
	})
	if errors.Is(err, errLimit) {
		err = nil
	}
	return found, err
}
