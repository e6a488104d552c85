package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A Fence is set first in the transaction of a record: it fails when the relay
// that writes is no longer the one that holds the slot.
type Fence func(ctx context.Context, tx pgx.Tx) error

// What becomes of the headers' text: an object stays one where that keeps it to
// the letter, as it does for every jsonb column; other text becomes a string.
const (
	headersAsObject = `CASE WHEN jsonb_typeof($12::text::jsonb) = 'object' AND $12::text::jsonb::text = $12::text
		THEN $12::text::jsonb ELSE to_jsonb($12::text) END`
	headersAsText = `to_jsonb($12::text)`
)

// Record commits a letter, durably whatever the database's synchronous_commit
// is. Recording the same position again does nothing and gives inserted false.
func Record(ctx context.Context, conn *pgx.Conn, schema string, l Letter, fence Fence) (inserted bool, err error) {
	return record(ctx, conn, schema, l, fence, func(context.Context, pgx.Tx, int64) error { return nil })
}

// record is Record with more to do in the same transaction where the letter is
// new.
func record(ctx context.Context, conn *pgx.Conn, schema string, l Letter, fence Fence,
	then func(ctx context.Context, tx pgx.Tx, id int64) error,
) (inserted bool, err error) {
	payload, size, hash := l.payload()
	extra, err := l.columnsText()
	if err != nil {
		return false, fmt.Errorf("record a dead letter of table %s: %w", l.Table, err)
	}
	var behind any
	if l.ParkedBehind > 0 {
		behind = l.ParkedBehind
	}
	var epoch, lsn, index any
	if !l.Position.IsZero() {
		epoch, lsn, index = int64(l.Position.Epoch), l.Position.Commit.String(), int64(l.Position.Index) //nolint:gosec // an index is far below 2^63
	}
	var id int64
	err = fenced(ctx, conn, fence, func(tx pgx.Tx) error {
		insert := func(tx pgx.Tx, headersSQL string) error {
			err := tx.QueryRow(ctx, `INSERT INTO `+pgx.Identifier{schema, "dead_letter"}.Sanitize()+`
				(source, epoch, commit_lsn, idx, event_id, "table", aggregate_type, aggregate_id, event_type, subject, stream,
				 headers, payload, payload_null, payload_size, payload_sha256, reason, error, committed_at, columns, parked_behind, late)
				VALUES ($1, $2, $3::text::pg_lsn, $4, $5, $6, $7, $8, $9, $10, $11, `+headersSQL+`, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
				ON CONFLICT DO NOTHING RETURNING id`,
				l.Source, epoch, lsn, index, null(l.EventID), clean(l.Table), null(l.AggregateType), null(l.AggregateID), null(l.EventType),
				null(l.Subject), null(l.Stream), l.headers(), payload, l.PayloadNull, size, hash, l.Reason, clean(l.Error), stamp(l.CommittedAt), extra, behind, l.Late).Scan(&id)
			inserted = err == nil
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return err
		}
		var err error
		if l.RowHeaders == nil || string(l.RowHeaders) == "{}" { // most rows, and a savepoint costs two round trips
			err = insert(tx, headersAsObject)
		} else {
			err = nearlyJSON(ctx, tx, insert)
		}
		if err == nil && inserted {
			err = then(ctx, tx, id)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("record a dead letter of table %s: %w", l.Table, err)
	}
	return inserted, nil
}

// nearlyJSON inserts headers that may be a text that only nearly is JSON, and only
// PostgreSQL knows what it takes: the refusal of such a row must not fail again
// for the reason of the refusal.
func nearlyJSON(ctx context.Context, tx pgx.Tx, insert func(tx pgx.Tx, headersSQL string) error) error {
	err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error { return insert(savepoint, headersAsObject) })
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "54")) {
		err = insert(tx, headersAsText)
	}
	return err
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
