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
	values, err := l.values()
	if err != nil {
		return false, err
	}
	var id int64
	err = fenced(ctx, conn, fence, func(tx pgx.Tx) error {
		insert := func(tx pgx.Tx, headersSQL string) error {
			err := tx.QueryRow(ctx, insertSQL(schema, headersSQL, ""), values...).Scan(&id)
			inserted = err == nil
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return err
		}
		var err error
		if l.plain() { // a savepoint costs two round trips
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

// Park is Record in one round trip, for what each event of a parked aggregate
// comes through. Guard is fence as a statement.
func Park(ctx context.Context, conn *pgx.Conn, schema string, l Letter, guard Guard, fence Fence) error {
	if !l.plain() {
		_, err := Record(ctx, conn, schema, l, fence)
		return err
	}
	values, err := l.values()
	if err != nil {
		return err
	}
	// The setting is that of the statement's own transaction.
	var held bool
	err = conn.QueryRow(ctx, `WITH held AS (`+guard.SQL+`), durable AS (SELECT set_config('synchronous_commit', 'on', true)),
		put AS (`+insertSQL(schema, headersAsObject, "FROM held, durable")+`)
		SELECT EXISTS (SELECT FROM held) FROM (SELECT count(*) FROM put) put`, append(values, guard.Args...)...).Scan(&held)
	if err == nil && !held {
		err = guard.Lost
	}
	if err != nil {
		return fmt.Errorf("park an event of table %s: %w", l.Table, err)
	}
	return nil
}

// A Guard is a Fence in one statement, which gives a row and locks it while the
// relay that writes is the one that holds the slot.
type Guard struct {
	// SQL is that statement; its parameters are numbered from GuardFrom on.
	SQL  string
	Args []any
	// Lost is the error where it gives no row.
	Lost error
}

// GuardFrom is the number of a guard's first parameter: those before it are the
// letter's.
const GuardFrom = 23

// insertSQL takes its values from nowhere, or from what from says.
func insertSQL(schema, headersSQL, from string) string {
	return `INSERT INTO ` + letterTable(schema) + `
		(source, epoch, commit_lsn, idx, event_id, "table", aggregate_type, aggregate_id, event_type, subject, stream,
		 headers, payload, payload_null, payload_size, payload_sha256, reason, error, committed_at, columns, parked_behind, late)
		SELECT $1, $2::int, $3::text::pg_lsn, $4::bigint, $5, $6, $7, $8, $9, $10, $11, ` + headersSQL + `, $13::bytea, $14::bool, $15::bigint, $16::bytea, $17, $18,
			$19::timestamptz, $20::jsonb, $21::bigint, $22::bool ` + from + `
		ON CONFLICT DO NOTHING RETURNING id`
}

// values are the parameters of insertSQL.
func (l *Letter) values() ([]any, error) {
	payload, size, hash := l.payload()
	extra, err := l.columnsText()
	if err != nil {
		return nil, fmt.Errorf("record a dead letter of table %s: %w", l.Table, err)
	}
	var behind any
	if l.ParkedBehind > 0 {
		behind = l.ParkedBehind
	}
	var epoch, lsn, index any
	if !l.Position.IsZero() {
		epoch, lsn, index = int64(l.Position.Epoch), l.Position.Commit.String(), int64(l.Position.Index) //nolint:gosec // an index is far below 2^63
	}
	return []any{
		l.Source, epoch, lsn, index, null(l.EventID), clean(l.Table), null(l.AggregateType), null(l.AggregateID), null(l.EventType),
		null(l.Subject), null(l.Stream), l.headers(), payload, l.PayloadNull, size, hash, l.Reason, clean(l.Error), stamp(l.CommittedAt), extra, behind, l.Late,
	}, nil
}

// plain says that the row had no headers, as most rows have none: there is
// nothing in them that PostgreSQL could refuse.
func (l *Letter) plain() bool { return l.RowHeaders == nil || string(l.RowHeaders) == "{}" }

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
