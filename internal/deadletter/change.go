package deadletter

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// What became of a letter.
const (
	Requeued  = "requeued"  // published after all
	Discarded = "discarded" // an operator gave it up
)

func letters(schema string) string { return pgx.Identifier{schema, "dead_letter"}.Sanitize() }

// durable runs f in a transaction that is durable whatever the database's
// synchronous_commit is, behind the fence.
func durable(ctx context.Context, conn *pgx.Conn, fence Fence, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on`); err != nil {
			return err
		}
		if err := fence(ctx, tx); err != nil {
			return err
		}
		return f(tx)
	})
}

// Resolve says of an open letter that its event is stored, at a sequence of its
// stream; 0 where that is not known.
func Resolve(ctx context.Context, conn *pgx.Conn, schema string, id int64, by string, sequence uint64, fence Fence) error {
	err := durable(ctx, conn, fence, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE `+letters(schema)+` SET resolved_at = clock_timestamp(), resolved_by = $2, resolution = $3, sequence = nullif($4, 0)
			WHERE id = $1 AND resolved_at IS NULL`, id, by, Requeued, int64(sequence)) //nolint:gosec // JetStream's sequences do not reach 2^63
		return err
	})
	if err != nil {
		return fmt.Errorf("resolve dead letter %d: %w", id, err)
	}
	return nil
}

// RefuseAgain leaves a letter open and says why it was refused this time. An
// empty reason leaves the one that it has.
func RefuseAgain(ctx context.Context, conn *pgx.Conn, schema string, id int64, reason, problem string, fence Fence) error {
	err := durable(ctx, conn, fence, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE `+letters(schema)+` SET reason = coalesce(nullif($2, ''), reason), error = $3
			WHERE id = $1 AND resolved_at IS NULL`, id, reason, clean(problem))
		return err
	})
	if err != nil {
		return fmt.Errorf("write what is wrong with dead letter %d: %w", id, err)
	}
	return nil
}

// Discard gives letters up; their records stay. It gives the ids of those that
// were open. One that waits behind another letter stays: to give it up alone
// would hide it from who deals with the first.
func Discard(ctx context.Context, q Querier, schema, source string, ids []int64, by string) ([]int64, error) {
	rows, err := q.Query(ctx, `UPDATE `+letters(schema)+` SET resolved_at = clock_timestamp(), resolved_by = $3, resolution = $4
		WHERE source = $1 AND id = ANY ($2) AND resolved_at IS NULL AND (parked_behind IS NULL OR parked_behind = id) RETURNING id`, source, ids, by, Discarded)
	if err != nil {
		return nil, fmt.Errorf("discard dead letters of source %q: %w", source, err)
	}
	done, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("discard dead letters of source %q: %w", source, err)
	}
	return done, nil
}

// EachKept tells of the events that are not to be published from their table:
// those of open letters, and of discarded ones where that is wanted.
func EachKept(ctx context.Context, q Querier, schema, source string, discarded bool, each func(table, id string)) error {
	rows, err := q.Query(ctx, `SELECT "table", event_id FROM `+letters(schema)+`
		WHERE source = $1 AND event_id IS NOT NULL AND (resolved_at IS NULL OR $2 AND resolution = $3)`, source, discarded, Discarded)
	if err != nil {
		return fmt.Errorf("read the dead letters of source %q: %w", source, err)
	}
	var table, id string
	_, err = pgx.ForEachRow(rows, []any{&table, &id}, func() error {
		each(table, id)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the dead letters of source %q: %w", source, err)
	}
	return nil
}
