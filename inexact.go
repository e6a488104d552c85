package walrelay

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/witness"
)

// A proof says behind which sequence a stream has the events that its snapshot
// does not see. Which these are the xid column of a row tells. A table without
// one gives rows to a look for missing ones that the proof does see: those of an
// hour before it by created_at, or all of them where there is no such column. So
// the streams have to be looked through from further back, or whole, and what
// they have let go since then must not be taken for missing.

// lookFrom gives behind which sequences the streams are to be looked through for
// the events that a gap is about. Rows of tables without xid that were written
// up to gone may be among what a stream let go; zero: none are.
func (s *session) lookFrom(ctx context.Context, tx pgx.Tx, d witness.GapDetail) (from map[string]uint64, gone time.Time, err error) {
	if d.NotSeen == "" {
		return d.From, gone, nil // no proof tells what need not be looked at
	}
	exact, timed := true, true
	for _, t := range s.cfg.Tables {
		table := routerTable(t)
		has, err := hasXid(ctx, tx, table)
		if err != nil {
			return nil, gone, err
		}
		exact = exact && has
		timed = timed && (has || table.Columns.Effective().CreatedAt != "")
	}
	if exact {
		return d.From, gone, nil
	}
	from = make(map[string]uint64, len(d.From))
	for name := range d.From {
		from[name] = 0
	}
	if timed && !d.Since.IsZero() {
		// Twice the margin: created_at is the writer's to say.
		err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			before, some, err := witness.NewestBefore(ctx, conn, s.cfg.Schema, s.cfg.Source, d.Since.Add(-2*marginOfClock))
			if err != nil || !some {
				return err
			}
			for _, st := range s.streams {
				if span := before.Streams[st.name]; span.Created.Equal(st.base.Created) {
					from[st.name] = min(span.From, d.From[st.name])
				}
			}
			return nil
		})
		if err != nil {
			return nil, gone, err
		}
	}
	for _, st := range s.streams {
		until, err := s.removedUntil(ctx, st.name, from[st.name])
		if err != nil {
			return nil, gone, err
		}
		if until.After(gone) {
			gone = until
		}
	}
	if !gone.IsZero() {
		s.log.InfoContext(ctx, "a stream has let messages go, so rows of tables without xid that were written before cannot be looked for", slog.Time("before", gone))
	}
	return from, gone, nil
}

// mayBeGone says whether the row of a table without xid may have been stored and
// let go since.
func (s *seen) mayBeGone(row *reconcile.Row) bool {
	created, ok := row.CreatedAt()
	return !s.gone.IsZero() && (!ok || !created.After(s.gone))
}
