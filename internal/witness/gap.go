package witness

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walrelay/walrelay/envelope"
)

// Kinds of gaps.
const (
	// GapDisplaced says that another writer's message took the place of one of ours
	// while later ones of ours were stored behind it.
	GapDisplaced = "displaced"
	// GapSlot says that the slot was missing or had lost its write-ahead log.
	GapSlot = "slot"
	// GapStream says that a stream ends below what it has acknowledged.
	GapStream = "stream"
	// GapNewStream says that a stream was made anew.
	GapNewStream = "new-stream"
	// GapUnseen says that rows were found which the slot had not sent: it was
	// advanced or made again by hand, or the table was not published for a
	// while.
	GapUnseen = "unseen"
	// GapPhantom says that a stream holds events which the database never had,
	// since a standby was promoted that lacked them.
	GapPhantom = "phantom"
)

// What became of a gap.
const (
	GapOpen     = "open"
	GapHealed   = "healed"
	GapAccepted = "accepted" // an operator let it be
	GapListed   = "listed"   // there is nothing to be done but to know the events
)

// A Gap is what was found: committed events that may be nowhere.
type Gap struct {
	ID       int64
	Kind     string
	Epoch    uint32
	Stream   string // empty: not known
	From, To string // positions or LSNs; empty: not known
	Events   int64  // 0: not known
	Detail   GapDetail
	State    string
	FoundAt  time.Time
	EndedAt  time.Time // zero: open
}

// A GapDetail says which rows a gap is about.
type GapDetail struct {
	// Seen is the snapshot that sees them, and NotSeen one that sees none of
	// them; empty: not known.
	Seen    string `json:"seen,omitempty"`
	NotSeen string `json:"not_seen,omitempty"`
	// Since and Until bound the rows of tables without an xid column, by when
	// they were written; Until is when the gap was found, by the database's
	// clock.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Stream, if set, is the only stream whose events it is about.
	Stream string `json:"-"`
	// Before, known where Stream is set, is a position that none of them reaches.
	Before envelope.Position `json:"-"`
	// From is where each stream is to be looked through for events that are
	// there after all. A stream that is not named is looked through whole.
	From map[string]uint64 `json:"from,omitempty"`
	// Late says that newer events of the same aggregates may be stored.
	Late bool `json:"late,omitempty"`
	// Positions are the events' positions where they are known.
	Positions []string `json:"positions,omitempty"`
	// Events are their ids where those are known, in the order of Positions.
	Events []string `json:"events,omitempty"`
	// Oldest is when the oldest event was written, and How what an operator
	// has to know.
	Oldest time.Time `json:"oldest,omitzero"`
	How    string    `json:"how,omitempty"`
}

// RecordGap notes a gap, durably, under the session's fence. With is what else
// belongs into the transaction; nil for nothing.
func RecordGap(ctx context.Context, conn *pgx.Conn, schema, source string, session uuid.UUID, g Gap, with func(context.Context, pgx.Tx) error) (id int64, err error) {
	detail, err := json.Marshal(g.Detail)
	if err != nil {
		return 0, fmt.Errorf("record a gap of source %q: %w", source, err)
	}
	err = fenced(ctx, conn, schema, source, session, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `INSERT INTO `+table(schema, "gap")+` (source, kind, epoch, stream, "from", "to", events, detail)
			VALUES ($1, $2, $3, nullif($4, ''), nullif($5, ''), nullif($6, ''), nullif($7, 0), $8) RETURNING id`,
			source, g.Kind, int64(g.Epoch), g.Stream, g.From, g.To, g.Events, detail).Scan(&id)
		if err != nil || with == nil {
			return err
		}
		return with(ctx, tx)
	})
	if err != nil {
		return 0, fmt.Errorf("record a gap of source %q: %w", source, err)
	}
	return id, nil
}

// fenced runs f in a durable transaction that only the session which holds the
// slot can commit.
func fenced(ctx context.Context, conn *pgx.Conn, schema, source string, session uuid.UUID, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on`); err != nil {
			return err
		}
		if err := Lock(ctx, tx, schema, source, session); err != nil {
			return err
		}
		return f(tx)
	})
}

// UpdateGap writes how many events a gap has and what is known of them.
func UpdateGap(ctx context.Context, conn *pgx.Conn, schema, source string, session uuid.UUID, g Gap) error {
	detail, err := json.Marshal(g.Detail)
	if err == nil {
		err = fenced(ctx, conn, schema, source, session, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE `+table(schema, "gap")+` SET events = $3, detail = $4 WHERE source = $1 AND id = $2`, source, g.ID, g.Events, detail)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("update gap %d of source %q: %w", g.ID, source, err)
	}
	return nil
}

// CloseGap says how a gap ended. With is what else belongs into the
// transaction.
func CloseGap(ctx context.Context, conn *pgx.Conn, schema, source string, session uuid.UUID, id int64, state string, events int64, with func(context.Context, pgx.Tx) error) error {
	err := fenced(ctx, conn, schema, source, session, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE `+table(schema, "gap")+` SET state = $3, ended_at = clock_timestamp(), events = $4
			WHERE source = $1 AND id = $2 AND ended_at IS NULL`, source, id, state, events)
		if err != nil || with == nil {
			return err
		}
		return with(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("close gap %d of source %q: %w", id, source, err)
	}
	return nil
}

// ListPhantoms notes, once for each stream and epoch, events that the database
// never had. The gap is over at once: they cannot be called back.
func ListPhantoms(ctx context.Context, conn *pgx.Conn, schema, source string, session uuid.UUID, g Gap) (id int64, err error) {
	known := `SELECT coalesce(max(id), 0) FROM ` + table(schema, "gap") + ` WHERE source = $1 AND kind = $2 AND epoch = $3 AND stream = $4`
	if err := conn.QueryRow(ctx, known, source, GapPhantom, int64(g.Epoch), g.Stream).Scan(&id); err != nil || id != 0 {
		return 0, err
	}
	g.Kind = GapPhantom
	return RecordGap(ctx, conn, schema, source, session, g, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE `+table(schema, "gap")+` SET state = $3, ended_at = clock_timestamp() WHERE source = $1 AND kind = $2 AND ended_at IS NULL`,
			source, GapPhantom, GapListed)
		return err
	})
}

// LostEnd belongs into the transaction that records the loss of a stream's end:
// the witness no longer says that what was lost is stored, and proofs that rest
// on it go.
func LostEnd(ctx context.Context, tx pgx.Tx, schema, source, stream string, now StreamState) error {
	state, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE `+table(schema, "witness")+` SET streams = jsonb_set(streams, ARRAY[$2], $3::jsonb) WHERE source = $1`,
		source, stream, state); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `DELETE FROM `+table(schema, "proven")+` WHERE source = $1 AND streams ? $2
		AND ((streams->$2->>'created')::timestamptz <> $3 OR (streams->$2->>'to')::numeric > $4)`,
		source, stream, now.Created, int64(now.LastSeq)) //nolint:gosec // JetStream's sequences do not reach 2^63
	return err
}

const gapColumns = `id, kind, coalesce(epoch, 0), coalesce(stream, ''), coalesce("from", ''), coalesce("to", ''), coalesce(events, 0), detail, state, found_at, ended_at, ended_at IS NULL`

// Gaps gives the newest gaps of a source, open ones and others, newest first.
func Gaps(ctx context.Context, q Querier, schema, source string, limit int) ([]Gap, error) {
	return gaps(ctx, q, source, `SELECT `+gapColumns+` FROM `+table(schema, "gap")+` WHERE source = $1 ORDER BY id DESC LIMIT $2`, source, limit)
}

// OpenGaps gives the gaps of a source that nobody has dealt with, oldest first.
func OpenGaps(ctx context.Context, q Querier, schema, source string) ([]Gap, error) {
	return gaps(ctx, q, source, `SELECT `+gapColumns+` FROM `+table(schema, "gap")+` WHERE source = $1 AND ended_at IS NULL ORDER BY id`, source)
}

func gaps(ctx context.Context, q Querier, source, query string, args ...any) ([]Gap, error) {
	rows, err := q.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the gaps of source %q: %w", source, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Gap, error) {
		var g Gap
		var detail []byte
		var ended pgtype.Timestamptz
		var open bool
		if err := row.Scan(&g.ID, &g.Kind, &g.Epoch, &g.Stream, &g.From, &g.To, &g.Events, &detail, &g.State, &g.FoundAt, &ended, &open); err != nil {
			return g, err
		}
		if !open {
			g.EndedAt = ended.Time
		}
		return g, json.Unmarshal(detail, &g.Detail)
	})
	if err != nil {
		return nil, fmt.Errorf("read the gaps of source %q: %w", source, err)
	}
	return found, nil
}
