package walrelay

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/router"
)

// pass tells the marks of the row, which must meet theirs, and says whether the
// row is stored already. Once every mark is met the ledger lets go.
func (r *reader) pass(ctx context.Context) (stored bool, err error) {
	for _, st := range r.s.streams {
		if err := st.mark.Pass(r.row.Position, r.routed.Message.MsgID); err != nil {
			return false, named(st.name, err)
		}
	}
	if r.routed.Verdict == router.Publish {
		if stored, err = r.storedBefore(ctx, r.s.streams[r.routed.StreamIndex].mark); err != nil {
			return false, err
		}
	}
	if stored {
		r.s.streams[r.routed.StreamIndex].passed = r.row.Position
	}
	r.meet()
	return stored, nil
}

// meet sees which marks are met by now.
func (r *reader) meet() {
	for _, st := range r.s.streams {
		if !st.met.Load() && st.mark.Met() {
			if st.counts {
				// Only now it is known which event stands at the end.
				base := st.base
				if !st.passed.IsZero() {
					base.Position, base.MsgID = st.passed, ""
				}
				st.told.Store(&base)
			}
			st.met.Store(true)
			r.unmet--
		}
	}
	if r.unmet == 0 {
		r.s.mu.Lock()
		r.s.ledger.Release()
		r.s.mu.Unlock()
	}
}

// storedBefore asks the mark. Where it can only count what is stored, an event
// that the stream refused is not among the counted ones: it is a dead letter.
func (r *reader) storedBefore(ctx context.Context, mark mark) (bool, error) {
	if mark.Counts(r.row.Position) {
		recorded := false
		err := r.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
			recorded, err = deadletter.Has(ctx, conn, r.s.cfg.Schema, r.s.cfg.Source, r.row.Position)
			return err
		})
		if recorded || err != nil {
			return recorded, err
		}
	}
	return mark.Stored(r.row.Position), nil
}

// named adds the stream to an error of its mark.
func named(stream string, err error) error {
	if e, ok := errors.AsType[*dedup.RewoundError](err); ok {
		e.Stream = stream
	}
	return err
}
