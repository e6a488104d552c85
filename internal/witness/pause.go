package witness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Pause says who asked that nothing is delivered, and when. The zero value
// says that nobody did.
type Pause struct {
	At time.Time
	By string
}

// Paused gives the pause of a source, as asked for in its witness.
func Paused(ctx context.Context, q Querier, schema, source string) (Pause, error) {
	var p Pause
	err := q.QueryRow(ctx, `SELECT paused_at, coalesce(paused_by, '') FROM `+table(schema, "witness")+` WHERE source = $1 AND paused_at IS NOT NULL`,
		source).Scan(&p.At, &p.By)
	if errors.Is(err, pgx.ErrNoRows) {
		return Pause{}, nil
	}
	if err != nil {
		return Pause{}, fmt.Errorf("ask whether source %q is paused: %w", source, err)
	}
	return p, nil
}

// SetPaused asks for a pause, or ends one. A pause that there is already stays
// as it is. It gives the pause that there is now, or was, and whether anything
// changed; an error where the source never ran.
func SetPaused(ctx context.Context, conn *pgx.Conn, schema, source string, pause bool, by string) (now Pause, changed bool, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		w, err := read(ctx, tx, schema, source, " FOR UPDATE")
		switch {
		case err != nil:
			return err
		case !w.Exists:
			return fmt.Errorf("it has never run in schema %q", schema)
		}
		if now, err = Paused(ctx, tx, schema, source); err != nil {
			return err
		}
		if changed = pause == now.At.IsZero(); !changed {
			return nil
		}
		if !pause {
			_, err = tx.Exec(ctx, `UPDATE `+table(schema, "witness")+` SET paused_at = NULL, paused_by = NULL WHERE source = $1`, source)
			return err
		}
		now.By = by
		return tx.QueryRow(ctx, `UPDATE `+table(schema, "witness")+` SET paused_at = clock_timestamp(), paused_by = $2 WHERE source = $1 RETURNING paused_at`,
			source, by).Scan(&now.At)
	})
	if err != nil {
		return now, false, fmt.Errorf("pause or resume source %q: %w", source, err)
	}
	return now, changed, nil
}
