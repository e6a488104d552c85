package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A ConsumerLetter is one event that a consumer gave up on. The table is in the
// consumer's own database; package inbox writes it, and makes the next try that
// [RequeueConsumer] asks for.
type ConsumerLetter struct {
	ID       int64  `json:"id"`
	Consumer string `json:"consumer"`
	// EventID is empty for a message that has none.
	EventID   string `json:"event_id,omitempty"`
	EventType string `json:"event_type,omitempty"`
	// Aggregate is type/id.
	Aggregate   string    `json:"aggregate,omitempty"`
	Stream      string    `json:"stream"`
	Sequence    int64     `json:"sequence"`
	StoredAt    time.Time `json:"stored_at,omitzero"`
	Subject     string    `json:"subject"`
	Attempts    int       `json:"attempts"`
	Reason      string    `json:"reason"` // a stable word
	Error       string    `json:"error"`
	At          time.Time `json:"at"`
	RequeueAt   time.Time `json:"requeue_at,omitzero"`
	RequeueBy   string    `json:"requeue_by,omitempty"`
	ResolvedAt  time.Time `json:"resolved_at,omitzero"`
	ResolvedBy  string    `json:"resolved_by,omitempty"`
	Resolution  string    `json:"resolution,omitempty"`
	PayloadSize int64     `json:"payload_size"`

	// History, Headers and Payload are read by [GetConsumer] alone. History
	// holds what was done, oldest first.
	History []ConsumerStep  `json:"history,omitempty"`
	Headers json.RawMessage `json:"headers,omitempty"`
	// Payload is nil where it was too large to be copied.
	Payload []byte `json:"payload,omitempty"`
}

// A ConsumerStep is one thing that was done about a dead letter.
type ConsumerStep struct {
	At time.Time `json:"at"`
	// Did is requeue, discard, applied, failed or put back.
	Did   string `json:"did"`
	By    string `json:"by,omitempty"`
	Why   string `json:"why,omitempty"`
	Error string `json:"error,omitempty"`
}

// A ConsumerFilter says which letters are meant; all that is set must hold.
type ConsumerFilter struct {
	Consumer string
	IDs      []int64 // none: any
	Reason   string  // empty: any
	All      bool    // the resolved ones too
	Since    time.Time
	After    int64 // only ids above
	Limit    int   // zero: 1000
}

func consumerTable(schema string) string {
	return pgx.Identifier{schema, "consumer_dead_letter"}.Sanitize()
}

const consumerColumns = `id, consumer, coalesce(event_id, ''), coalesce(event_type, ''), coalesce(aggregate, ''), stream, sequence, stored_at, subject,
	attempts, reason, error, at, requeue_at, coalesce(requeue_by, ''), resolved_at, coalesce(resolved_by, ''), coalesce(resolution, ''), payload_size`

func (f ConsumerFilter) args() []any {
	ids := f.IDs
	if ids == nil {
		ids = []int64{}
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 1000
	}
	return []any{f.Consumer, ids, f.Reason, f.All, f.Since, f.After, limit}
}

// ListConsumer gives letters without history, headers and payload, oldest
// first.
func ListConsumer(ctx context.Context, q Querier, schema string, f ConsumerFilter) ([]ConsumerLetter, error) {
	rows, err := q.Query(ctx, `SELECT `+consumerColumns+`, '[]', NULL, NULL::bytea FROM `+consumerTable(schema)+`
		WHERE consumer = $1 AND (cardinality($2::bigint[]) = 0 OR id = ANY ($2)) AND ($3 = '' OR reason = $3) AND ($4 OR resolved_at IS NULL)
			AND at >= $5 AND id > $6 ORDER BY id LIMIT $7`, f.args()...)
	if err != nil {
		return nil, fmt.Errorf("list dead letters of consumer %q: %w", f.Consumer, err)
	}
	letters, err := pgx.CollectRows(rows, scanConsumer)
	if err != nil {
		return nil, fmt.Errorf("list dead letters of consumer %q: %w", f.Consumer, err)
	}
	return letters, nil
}

// GetConsumer gives one letter of a consumer with all that is known of it.
func GetConsumer(ctx context.Context, q Querier, schema, consumer string, id int64) (ConsumerLetter, error) {
	rows, err := q.Query(ctx, `SELECT `+consumerColumns+`, history::text, headers::text, payload FROM `+consumerTable(schema)+`
		WHERE consumer = $1 AND id = $2`, consumer, id)
	if err != nil {
		return ConsumerLetter{}, fmt.Errorf("read dead letter %d: %w", id, err)
	}
	l, err := pgx.CollectExactlyOneRow(rows, scanConsumer)
	if errors.Is(err, pgx.ErrNoRows) {
		return ConsumerLetter{}, fmt.Errorf("dead letter %d of consumer %q: %w", id, consumer, ErrNone)
	}
	if err != nil {
		return ConsumerLetter{}, fmt.Errorf("read dead letter %d: %w", id, err)
	}
	return l, nil
}

func scanConsumer(row pgx.CollectableRow) (ConsumerLetter, error) {
	var l ConsumerLetter
	var stored, requeue, resolved *time.Time
	var history string
	var headers *string
	err := row.Scan(&l.ID, &l.Consumer, &l.EventID, &l.EventType, &l.Aggregate, &l.Stream, &l.Sequence, &stored, &l.Subject, &l.Attempts,
		&l.Reason, &l.Error, &l.At, &requeue, &l.RequeueBy, &resolved, &l.ResolvedBy, &l.Resolution, &l.PayloadSize, &history, &headers, &l.Payload)
	if err != nil {
		return l, err
	}
	for from, to := range map[*time.Time]*time.Time{stored: &l.StoredAt, requeue: &l.RequeueAt, resolved: &l.ResolvedAt} {
		if from != nil {
			*to = *from
		}
	}
	if headers != nil {
		l.Headers = json.RawMessage(*headers)
	}
	if err := json.Unmarshal([]byte(history), &l.History); err != nil {
		return l, fmt.Errorf("history of dead letter %d: %w", l.ID, err)
	}
	return l, nil
}

// ConsumerNames gives the consumers that this database knows.
func ConsumerNames(ctx context.Context, q Querier, schema string) ([]string, error) {
	rows, err := q.Query(ctx, `SELECT DISTINCT consumer FROM `+pgx.Identifier{schema, "consumer"}.Sanitize()+`
		UNION SELECT DISTINCT consumer FROM `+consumerTable(schema)+` ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("list consumers: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list consumers: %w", err)
	}
	return names, nil
}
