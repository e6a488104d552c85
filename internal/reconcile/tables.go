package reconcile

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/router"
)

// readLetters notes which events are dead letters, in whatever state.
func (v *verification) readLetters(ctx context.Context) error {
	rows, err := v.side.Query(ctx, `SELECT event_id FROM `+pgx.Identifier{v.cfg.Schema, "dead_letter"}.Sanitize()+`
		WHERE source = $1 AND event_id IS NOT NULL`, v.cfg.Source)
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	var id string
	var record [recordBytes]byte
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		e := entry{key: v.hash.key(id), of: ofLetter, stream: noStream}
		e.encode(&record)
		return v.letters.add(&record)
	})
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	return nil
}

func (v *verification) readTables(ctx context.Context) error {
	for _, t := range v.cfg.Router.Tables {
		f := RowFilter{Since: v.cfg.Since, Proven: v.proof.snapshot, Unordered: true, Batch: 50_000}
		n, err := v.readTable(ctx, v.tx, t, f, 0)
		if err != nil {
			return err
		}
		v.report.Tables = append(v.report.Tables, TableReport{Name: t.Schema + "." + t.Name, Rows: n})
		if !v.cfg.Since.IsZero() && !v.olderToo {
			for _, err := range Rows(ctx, v.tx, t, RowFilter{Until: v.cfg.Since, Unordered: true, Batch: 1}) {
				if err != nil {
					return err
				}
				v.olderToo = true
				break
			}
		}
	}
	return nil
}

// readTable notes the rows of one table.
func (v *verification) readTable(ctx context.Context, tx pgx.Tx, t router.Table, f RowFilter, flags uint8) (n uint64, err error) {
	var out router.Routed
	var record [recordBytes]byte
	place, table := -1, uint32(0)
	for row, err := range Rows(ctx, tx, t, f) {
		if err != nil {
			return n, err
		}
		n++
		v.rowsRead.Add(1)
		if err := v.router.Route(&row.Row, &out); err != nil {
			return n, err
		}
		if place < 0 || row.Table != table {
			place, table = v.place(row.Table), row.Table
		}
		e := entry{
			key: v.hash.key(out.Event.ID), of: ofRow, flags: flags, stream: noStream, when: v.clock.parse(out.Event.CreatedAt),
			ref: uint64(place)<<48 | uint64(row.TID.Block)<<16 | uint64(row.TID.Offset), //nolint:gosec // places are counted from 0
		}
		if out.StreamIndex >= 0 {
			e.stream = uint16(out.StreamIndex) //nolint:gosec // streams are few
		}
		if row.Proven || row.Xid == 0 && v.proof.snapshot != "" && v.longBefore(row) {
			e.flags |= flagProven
		}
		switch out.Verdict {
		case router.Publish:
			e.digest = v.hash.routed(&out, v.cfg.Bodies)
		case router.Skip:
			e.flags |= flagSkip
		case router.Unrouted:
			e.flags |= flagUnrouted
		case router.Refused, router.NotOutbox:
			e.flags |= flagRefused
		}
		if flags&flagNewer == 0 && e.when != 0 && (v.oldest == 0 || e.when < v.oldest) {
			v.oldest = e.when
		}
		e.encode(&record)
		if err := v.rows.add(&record); err != nil {
			return n, err
		}
	}
	return n, nil
}

// longBefore says whether a row is so much older than the proof that clocks can
// tell.
func (v *verification) longBefore(row *Row) bool {
	at, ok := row.CreatedAt()
	return ok && at.Before(v.proof.at.Add(-clockMargin))
}

// place numbers the tables that rows are found in.
func (v *verification) place(oid uint32) int {
	for i, known := range v.places {
		if known == oid {
			return i
		}
	}
	v.places = append(v.places, oid)
	return len(v.places) - 1
}
