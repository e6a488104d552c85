package deadletter

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Fence is set first in the transaction of a record: it fails when the relay
// that writes is no longer the one that holds the slot.
type Fence func(ctx context.Context, tx pgx.Tx) error

// Record commits a letter, durably whatever the database's synchronous_commit
// is. Recording the same position again does nothing and gives inserted false.
func Record(ctx context.Context, conn *pgx.Conn, schema string, l Letter, fence Fence) (inserted bool, err error) {
	headers, err := l.headers()
	if err != nil {
		return false, fmt.Errorf("record a dead letter of table %s: headers: %w", l.Table, err)
	}
	payload, size, hash := l.payload()
	var epoch, lsn, index any
	if !l.Position.IsZero() {
		epoch, lsn, index = int64(l.Position.Epoch), l.Position.Commit.String(), int64(l.Position.Index) //nolint:gosec // an index is far below 2^63
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on`); err != nil {
			return err
		}
		if err := fence(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO `+pgx.Identifier{schema, "dead_letter"}.Sanitize()+`
			(source, epoch, commit_lsn, idx, event_id, "table", aggregate_type, aggregate_id, event_type, subject, stream,
			 headers, payload, payload_null, payload_size, payload_sha256, reason, error, committed_at)
			VALUES ($1, $2, $3::text::pg_lsn, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
			ON CONFLICT DO NOTHING`,
			l.Source, epoch, lsn, index, null(l.EventID), clean(l.Table), null(l.AggregateType), null(l.AggregateID), null(l.EventType),
			null(l.Subject), null(l.Stream), headers, payload, l.PayloadNull, size, hash, l.Reason, clean(l.Error), stamp(l.CommittedAt))
		inserted = err == nil && tag.RowsAffected() == 1
		return err
	})
	if err != nil {
		return false, fmt.Errorf("record a dead letter of table %s: %w", l.Table, err)
	}
	return inserted, nil
}

// null makes SQL's null of what is not there.
func null(s string) any {
	if s == "" {
		return nil
	}
	return clean(s)
}

// clean makes of any bytes a text that PostgreSQL takes. Rows come as text and
// are that already; what was cut or decoded may not be.
func clean(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", `\0`), "\uFFFD")
}

func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}
