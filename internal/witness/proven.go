package witness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
)

// A Proven is a snapshot of the database of which is known that every outbox
// row it sees is stored or dead-lettered.
type Proven struct {
	ID    int64
	Epoch uint32
	// Snapshot is as pg_current_snapshot() gave it. Everything that it sees
	// was committed below LSN.
	Snapshot string
	LSN      envelope.LSN
	Streams  map[string]Span
	// At is when the snapshot was kept, by the database's clock; zero for one
	// that is kept now.
	At time.Time
}

// A Span says where in a stream a proof ends.
type Span struct {
	Created time.Time `json:"created"`
	// From is a sequence up to which the stream has nothing that the snapshot
	// does not see.
	From uint64 `json:"from"`
	// To is a sequence up to which the stream has everything that the snapshot
	// sees.
	To uint64 `json:"to"`
}

// Capture takes a snapshot, and behind it the place in the write-ahead log up to
// which its transactions were committed at the latest: a commit is written
// there before a snapshot can see it.
func Capture(ctx context.Context, q Querier) (snapshot string, lsn envelope.LSN, err error) {
	var at string
	var page, segment uint64
	// The snapshot of a statement is taken before any of it is computed.
	err = q.QueryRow(ctx, `SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text,
		(SELECT setting::bigint FROM pg_settings WHERE name = 'wal_block_size'),
		(SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size')`).Scan(&snapshot, &at, &page, &segment)
	if err != nil {
		return "", 0, fmt.Errorf("take a snapshot: %w", err)
	}
	lsn, err = envelope.ParseLSN(at)
	return snapshot, RecordEnd(lsn, page, segment), err
}

// RecordEnd gives the end of the last record where next is where the next one
// goes: at the beginning of a page that is behind the page's header, which a
// slot's confirmed LSN never passes as long as nothing more is written. Page and
// segment are sizes in bytes.
func RecordEnd(next envelope.LSN, page, segment uint64) envelope.LSN {
	const shortHeader, longHeader = 24, 40
	switch at := uint64(next); {
	case at%segment == longHeader:
		return next - longHeader
	case at%segment > page && at%page == shortHeader:
		return next - shortHeader
	}
	return next
}

// Prove keeps a proof, under the session's fence. Of the earlier ones of the
// same minute none is kept: one a minute tells enough about rows that old. What
// was declared stays: all else may go with a stream.
func Prove(ctx context.Context, conn *pgx.Conn, schema, source string, session uuid.UUID, p Proven) error {
	return keep(ctx, conn, schema, source, session, p, false)
}

// ProveBackfilled is Prove for the snapshot of a backfill, whose rows the streams
// hold. What was declared goes: it said that nobody is to look for them.
func ProveBackfilled(ctx context.Context, conn *pgx.Conn, schema, source string, session uuid.UUID, p Proven) error {
	return keep(ctx, conn, schema, source, session, p, true)
}

func keep(ctx context.Context, conn *pgx.Conn, schema, source string, session uuid.UUID, p Proven, backfilled bool) error {
	streams, err := json.Marshal(p.Streams)
	if err != nil {
		return fmt.Errorf("keep a proven snapshot of source %q: %w", source, err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := Lock(ctx, tx, schema, source, session); err != nil {
			return err
		}
		if backfilled {
			if _, err := tx.Exec(ctx, `DELETE FROM `+table(schema, "proven")+` WHERE source = $1 AND streams = '{}'`, source); err != nil {
				return err
			}
		}
		return prove(ctx, tx, schema, source, p, streams)
	})
	if err != nil {
		return fmt.Errorf("keep a proven snapshot of source %q: %w", source, err)
	}
	return nil
}

func prove(ctx context.Context, tx pgx.Tx, schema, source string, p Proven, streams []byte) error {
	_, err := tx.Exec(ctx, `WITH new AS (
			INSERT INTO `+table(schema, "proven")+` (source, epoch, snapshot, lsn, streams, at) VALUES ($1, $2, $3::text::pg_snapshot, $4::text::pg_lsn, $5, coalesce($6, clock_timestamp()))
			RETURNING at)
		DELETE FROM `+table(schema, "proven")+` p USING new
		WHERE p.source = $1 AND p.at >= date_trunc('minute', new.at) AND p.at < new.at AND p.streams <> '{}'`,
		source, int64(p.Epoch), p.Snapshot, p.LSN.String(), streams, timeOrNil(p.At))
	return err
}

func timeOrNil(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

// Declare keeps a snapshot as proven without a session: when a slot is made for
// the first time, what was there before is not to be sent, and nothing more is
// to be said of it. Where proofs exist it does nothing.
func Declare(ctx context.Context, tx pgx.Tx, schema, source string, p Proven) error {
	var some bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+table(schema, "proven")+` WHERE source = $1)`, source).Scan(&some); err != nil || some {
		return err
	}
	return prove(ctx, tx, schema, source, p, []byte("{}"))
}

const provenColumns = `id, epoch, snapshot::text, lsn::text, streams, at`

// Newest gives the newest proof; false where there is none.
func Newest(ctx context.Context, q Querier, schema, source string) (Proven, bool, error) {
	return onlyProven(q.QueryRow(ctx, `SELECT `+provenColumns+` FROM `+table(schema, "proven")+` WHERE source = $1 ORDER BY id DESC LIMIT 1`, source))
}

// NewestBefore gives the newest proof up to a time; false where there is none.
func NewestBefore(ctx context.Context, q Querier, schema, source string, at time.Time) (Proven, bool, error) {
	return onlyProven(q.QueryRow(ctx, `SELECT `+provenColumns+` FROM `+table(schema, "proven")+` WHERE source = $1 AND at <= $2 ORDER BY id DESC LIMIT 1`, source, at))
}

// NewestWithin gives the newest proof all of whose events in a stream lie at or
// below a sequence: what a stream still holds when it has lost its end.
func NewestWithin(ctx context.Context, q Querier, schema, source, stream string, created time.Time, end uint64) (Proven, bool, error) {
	return onlyProven(q.QueryRow(ctx, `SELECT `+provenColumns+` FROM `+table(schema, "proven")+`
		WHERE source = $1 AND (NOT streams ? $2 OR (streams->$2->>'created')::timestamptz = $3 AND (streams->$2->>'to')::numeric <= $4)
		ORDER BY id DESC LIMIT 1`, source, stream, created, int64(end))) //nolint:gosec // JetStream's sequences do not reach 2^63
}

func onlyProven(row pgx.Row) (Proven, bool, error) {
	var p Proven
	var lsn string
	var streams []byte
	err := row.Scan(&p.ID, &p.Epoch, &p.Snapshot, &lsn, &streams, &p.At)
	if errors.Is(err, pgx.ErrNoRows) {
		return Proven{}, false, nil
	}
	if err == nil {
		p.LSN, err = envelope.ParseLSN(lsn)
	}
	if err == nil {
		err = json.Unmarshal(streams, &p.Streams)
	}
	if err != nil {
		return Proven{}, false, fmt.Errorf("read a proven snapshot: %w", err)
	}
	return p, true, nil
}
