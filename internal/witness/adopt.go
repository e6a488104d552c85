package witness

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// An Adoption says that another stream goes on where one ended.
type Adoption struct {
	Stream string
	// Now is the end of the stream that goes on.
	Now StreamState
	By  string
}

// AdoptStream makes the witness believe in the stream as it is: its end is what
// is remembered from here on, and the open gaps about it are accepted. What was
// proven stays proven, though the proofs that rest on the stream that is gone
// are deleted: the snapshot is declared, so that no look for unseen rows
// finds the same again. It waits for a write of the session that is under way,
// and gives the numbers of the gaps that it closed.
func AdoptStream(ctx context.Context, conn *pgx.Conn, schema, source string, a Adoption) (closed []int64, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '20s'`); err != nil {
			return err
		}
		w, err := read(ctx, tx, schema, source, " FOR UPDATE")
		switch {
		case err != nil:
			return err
		case !w.Exists:
			return fmt.Errorf("source %q has never run in schema %q", source, schema)
		}
		last, some, err := Newest(ctx, tx, schema, source)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `UPDATE `+table(schema, "gap")+` SET state = $3, ended_at = clock_timestamp(),
			detail = detail || jsonb_build_object('how', concat_ws('; ', detail->>'how', 'accepted by ' || $4::text || ': the stream goes on from its present end'))
			WHERE source = $1 AND stream = $2 AND ended_at IS NULL RETURNING id, coalesce(detail->>'seen', '')`, source, a.Stream, GapAccepted, a.By)
		if err != nil {
			return err
		}
		// The gap was found with the newest proof there was; a later one is
		// newer still, and one that went with the stream is only there.
		var id int64
		var seen, best string
		if some {
			best = last.Snapshot
		}
		if _, err := pgx.ForEachRow(rows, []any{&id, &seen}, func() error {
			closed = append(closed, id)
			return nil
		}); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `SELECT coalesce((SELECT s FROM (SELECT nullif($3, '') AS s UNION ALL
				SELECT detail->>'seen' FROM `+table(schema, "gap")+` WHERE source = $1 AND id = ANY ($2) AND detail ? 'seen') x
			WHERE s IS NOT NULL ORDER BY pg_snapshot_xmax(s::pg_snapshot) DESC, pg_snapshot_xmin(s::pg_snapshot) DESC LIMIT 1), '')`, source, closed, best).Scan(&best)
		if err != nil {
			return err
		}
		if err := LostEnd(ctx, tx, schema, source, a.Stream, a.Now); err != nil {
			return err
		}
		if best == "" {
			return nil // nothing was ever proven
		}
		return prove(ctx, tx, schema, source, Proven{Epoch: w.Epoch, Snapshot: best, LSN: w.ConfirmedLSN}, []byte("{}"))
	})
	if err != nil {
		return nil, fmt.Errorf("adopt stream %q for source %q: %w", a.Stream, source, err)
	}
	return closed, nil
}
