package witness

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
)

// AcceptGaps lets the open gaps of a source be, for an operator: their rows
// count as proven from now on, so that no audit finds them again. Left are
// those whose rows are not known: they stay open, and the audit of a relay ends
// them.
//
// It belongs into one transaction, which waits for what a relay is writing and
// holds up what it would write next.
func AcceptGaps(ctx context.Context, tx pgx.Tx, schema, source string) (accepted, left []int64, err error) {
	fail := func(err error) ([]int64, []int64, error) {
		return nil, nil, fmt.Errorf("let the gaps of source %q be: %w", source, err)
	}
	if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on`); err != nil {
		return fail(err)
	}
	if _, err := tx.Exec(ctx, `SELECT 1 FROM `+table(schema, "witness")+` WHERE source = $1 FOR UPDATE`, source); err != nil {
		return fail(err)
	}
	// The snapshot that sees most comes last, since the newest proof counts.
	open, err := gaps(ctx, tx, source, `SELECT `+gapColumns+` FROM `+table(schema, "gap")+` WHERE source = $1 AND ended_at IS NULL
		ORDER BY pg_snapshot_xmax(nullif(detail->>'seen', '')::pg_snapshot) NULLS FIRST, id`, source)
	if err != nil {
		return fail(err)
	}
	for _, g := range open {
		if g.Detail.Seen == "" {
			left = append(left, g.ID)
			continue
		}
		if err := accept(ctx, tx, schema, source, &g); err != nil {
			return fail(err)
		}
		accepted = append(accepted, g.ID)
	}
	return accepted, left, nil
}

func accept(ctx context.Context, tx pgx.Tx, schema, source string, g *Gap) error {
	_, err := tx.Exec(ctx, `UPDATE `+table(schema, "gap")+` SET state = $2, ended_at = clock_timestamp() WHERE id = $1`, g.ID, GapAccepted)
	if err != nil {
		return err
	}
	var behind bool // a proof sees more
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+table(schema, "proven")+`
		WHERE source = $1 AND pg_snapshot_xmax(snapshot) > pg_snapshot_xmax($2::text::pg_snapshot))`, source, g.Detail.Seen).Scan(&behind)
	if err != nil || behind {
		return err
	}
	lsn, err := envelope.ParseLSN(g.To)
	if err != nil {
		if _, lsn, err = Capture(ctx, tx); err != nil {
			return err
		}
	}
	// Without streams, as what was declared: it goes with none of them, and
	// whoever looks behind it reads them whole.
	return prove(ctx, tx, schema, source, Proven{Epoch: max(g.Epoch, 1), Snapshot: g.Detail.Seen, LSN: lsn}, []byte("{}"))
}
