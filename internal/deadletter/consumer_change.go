package deadletter

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A Request says who wants a change, and why. Both are recorded.
type Request struct{ By, Why string }

// step is an expression that adds a line to the history of a letter. did is a
// literal; $2 and $3 are by and why.
func step(did string) string {
	return `history || jsonb_build_object('at', clock_timestamp(), 'did', '` + did + `', 'by', $2::text, 'why', $3::text)`
}

// RequeueConsumer asks the running service to run the handler again for open
// letters. It gives the ids of those that it asked for: others were resolved,
// or are asked for already.
func RequeueConsumer(ctx context.Context, q Querier, schema, consumer string, ids []int64, r Request) ([]int64, error) {
	rows, err := q.Query(ctx, `UPDATE `+consumerTable(schema)+` SET requeue_at = clock_timestamp(), requeue_by = $2, requeue_why = $3,
			requeue_tries = 0, history = `+step("requeue")+`
		WHERE consumer = $1 AND id = ANY ($4) AND resolved_at IS NULL AND requeue_at IS NULL RETURNING id`, consumer, r.By, r.Why, ids)
	if err != nil {
		return nil, fmt.Errorf("requeue dead letters of consumer %q: %w", consumer, err)
	}
	done, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("requeue dead letters of consumer %q: %w", consumer, err)
	}
	return done, nil
}

// DiscardConsumer ends letters without an effect; the record stays. Each gets a
// receipt, so that its event is not applied either when its message comes
// again. It gives the ids of those that it ended.
func DiscardConsumer(ctx context.Context, q Querier, schema, consumer string, ids []int64, r Request) ([]int64, error) {
	rows, err := q.Query(ctx, `WITH ended AS (
			UPDATE `+consumerTable(schema)+` SET resolved_at = clock_timestamp(), resolved_by = $2, resolution = 'discarded',
				requeue_at = NULL, requeue_by = NULL, requeue_why = NULL, requeue_tries = 0, history = `+step("discard")+`
			WHERE consumer = $1 AND id = ANY ($4) AND resolved_at IS NULL RETURNING id, event_id, stream, sequence),
		receipts AS (
			INSERT INTO `+pgx.Identifier{schema, "receipt"}.Sanitize()+` (consumer, event_id, stream, sequence)
			SELECT $1, event_id, stream, sequence FROM ended WHERE event_id IS NOT NULL ON CONFLICT DO NOTHING)
		SELECT id FROM ended`, consumer, r.By, r.Why, ids)
	if err != nil {
		return nil, fmt.Errorf("discard dead letters of consumer %q: %w", consumer, err)
	}
	done, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("discard dead letters of consumer %q: %w", consumer, err)
	}
	return done, nil
}
