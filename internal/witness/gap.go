package witness

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Kinds of gaps.
const (
	// GapDisplaced says that another writer's message took the place of one of ours
	// while later ones of ours were stored behind it.
	GapDisplaced = "displaced"
	// GapPublication says that the table was not in the publication for a while, so
	// rows may have passed unseen.
	GapPublication = "publication"
)

// A Gap is what was found: committed events that may be nowhere.
type Gap struct {
	ID       int64
	Kind     string
	Epoch    uint32
	Stream   string // empty: not known
	From, To string // positions or LSNs; empty: not known
	Events   int64  // 0: not known
	Detail   map[string]any
	FoundAt  time.Time
}

// RecordGap notes a gap, durably, under the session's fence.
func RecordGap(ctx context.Context, conn *pgx.Conn, schema, source string, session uuid.UUID, g Gap) error {
	detail, err := json.Marshal(g.Detail)
	if err != nil {
		return fmt.Errorf("record a gap of source %q: %w", source, err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on`); err != nil {
			return err
		}
		if err := Lock(ctx, tx, schema, source, session); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO `+table(schema, "gap")+` (source, kind, epoch, stream, "from", "to", events, detail)
			VALUES ($1, $2, $3, nullif($4, ''), nullif($5, ''), nullif($6, ''), nullif($7, 0), $8)`,
			source, g.Kind, int64(g.Epoch), g.Stream, g.From, g.To, g.Events, detail)
		return err
	})
	if err != nil {
		return fmt.Errorf("record a gap of source %q: %w", source, err)
	}
	return nil
}

// OpenGaps gives the gaps of a source that nobody has dealt with, oldest first.
func OpenGaps(ctx context.Context, q Querier, schema, source string) ([]Gap, error) {
	rows, err := q.Query(ctx, `SELECT id, kind, coalesce(epoch, 0), coalesce(stream, ''), coalesce("from", ''), coalesce("to", ''), coalesce(events, 0), detail, found_at
		FROM `+table(schema, "gap")+` WHERE source = $1 AND ended_at IS NULL ORDER BY id`, source)
	if err != nil {
		return nil, fmt.Errorf("read the gaps of source %q: %w", source, err)
	}
	gaps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Gap, error) {
		var g Gap
		var detail []byte
		if err := row.Scan(&g.ID, &g.Kind, &g.Epoch, &g.Stream, &g.From, &g.To, &g.Events, &detail, &g.FoundAt); err != nil {
			return g, err
		}
		return g, json.Unmarshal(detail, &g.Detail)
	})
	if err != nil {
		return nil, fmt.Errorf("read the gaps of source %q: %w", source, err)
	}
	return gaps, nil
}
