package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/envelope"
)

// A Querier is a SQL connection or transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// A Filter says which letters are listed; its zero value lists the open ones.
type Filter struct {
	Source string  // empty: any
	IDs    []int64 // nil: any
	Reason string  // empty: any
	All    bool    // the resolved ones too
	Since  time.Time
	After  int64 // only ids above
	Limit  int   // zero: 1000
}

const columns = `id, source, coalesce(position, ''), coalesce(event_id, ''), "table", coalesce(aggregate_type, ''), coalesce(aggregate_id, ''),
	coalesce(event_type, ''), coalesce(stream, ''), coalesce(subject, ''), headers::text, columns, payload_null, payload_size, payload_sha256, reason, error,
	committed_at, at, coalesce(parked_behind, 0) AS behind, resolved_at, coalesce(resolved_by, ''), coalesce(resolution, ''), coalesce(sequence, 0), late`

// shown is columns of a letter l for who looks at it: what is open waits behind
// the letter that has to be dealt with, wherever it points.
func shown(schema string) string {
	return strings.Replace(columns, "coalesce(parked_behind, 0) AS behind",
		`coalesce(CASE WHEN resolved_at IS NULL AND parked_behind <> id THEN (SELECT min(b.id) FROM (`+blocking(schema)+`) b) END, parked_behind, 0) AS behind`, 1)
}

// List gives letters without their payloads, oldest first.
func List(ctx context.Context, q Querier, schema string, f Filter) ([]Letter, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = 1000
	}
	rows, err := q.Query(ctx, `SELECT `+shown(schema)+`, NULL::bytea FROM `+letterTable(schema)+` l
		WHERE ($1 = '' OR source = $1) AND ($2 = '' OR reason = $2) AND ($3 OR resolved_at IS NULL) AND at >= $4 AND id > $5
			AND ($7::bigint[] IS NULL OR id = ANY ($7))
		ORDER BY id LIMIT $6`, f.Source, f.Reason, f.All, f.Since, f.After, limit, f.IDs)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	letters, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return letters, nil
}

// ErrNone says that there is no letter of that id.
var ErrNone = errors.New("no dead letter of that id")

// Get gives one letter with its payload, where it was kept.
func Get(ctx context.Context, q Querier, schema string, id int64) (Letter, error) {
	rows, err := q.Query(ctx, `SELECT `+shown(schema)+`, payload FROM `+letterTable(schema)+` l WHERE id = $1`, id)
	if err != nil {
		return Letter{}, fmt.Errorf("read dead letter %d: %w", id, err)
	}
	l, err := pgx.CollectExactlyOneRow(rows, scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return Letter{}, fmt.Errorf("dead letter %d: %w", id, ErrNone)
	}
	if err != nil {
		return Letter{}, fmt.Errorf("read dead letter %d: %w", id, err)
	}
	return l, nil
}

// Open counts a source's open letters by reason.
func Open(ctx context.Context, q Querier, schema, source string) (map[string]int, error) {
	rows, err := q.Query(ctx, `SELECT reason, count(*)::int FROM `+pgx.Identifier{schema, "dead_letter"}.Sanitize()+`
		WHERE source = $1 AND resolved_at IS NULL GROUP BY reason`, source)
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	counts := map[string]int{}
	var reason string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&reason, &n}, func() error {
		counts[reason] = n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	return counts, nil
}

// Has says whether the event at a position is recorded, in any state.
func Has(ctx context.Context, q Querier, schema, source string, p envelope.Position) (bool, error) {
	var has bool
	err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+pgx.Identifier{schema, "dead_letter"}.Sanitize()+` WHERE source = $1 AND position = $2)`,
		source, p.String()).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look for the dead letter at position %s: %w", p, err)
	}
	return has, nil
}

func scan(row pgx.CollectableRow) (Letter, error) {
	var l Letter
	var position string
	var headers *string
	var extra []byte
	var committed, resolved *time.Time
	err := row.Scan(&l.ID, &l.Source, &position, &l.EventID, &l.Table, &l.AggregateType, &l.AggregateID, &l.EventType, &l.Stream, &l.Subject,
		&headers, &extra, &l.PayloadNull, &l.PayloadSize, &l.PayloadHash, &l.Reason, &l.Error, &committed, &l.At, &l.ParkedBehind,
		&resolved, &l.ResolvedBy, &l.Resolution, &l.Sequence, &l.Late, &l.Payload)
	if err != nil {
		return l, err
	}
	if headers != nil {
		if err := l.setHeaders(*headers); err != nil {
			return l, err
		}
	}
	if err := l.setColumns(extra); err != nil {
		return l, err
	}
	if l.Parks = l.ParkedBehind == l.ID; l.Parks {
		l.ParkedBehind = 0
	}
	if committed != nil {
		l.CommittedAt = *committed
	}
	if resolved != nil {
		l.ResolvedAt = *resolved
	}
	if position != "" {
		l.Position, err = envelope.ParsePosition(position)
	}
	return l, err
}

// From gives the positions of letters, in any state, of transactions that
// committed at or behind lsn: the slot may send their events again. It gives at
// most limit, the earliest ones.
func From(ctx context.Context, q Querier, schema, source string, lsn envelope.LSN, limit int) ([]envelope.Position, error) {
	rows, err := q.Query(ctx, `SELECT position FROM `+pgx.Identifier{schema, "dead_letter"}.Sanitize()+`
		WHERE source = $1 AND commit_lsn >= $2::text::pg_lsn ORDER BY epoch, commit_lsn, idx LIMIT $3`, source, lsn.String(), limit)
	if err != nil {
		return nil, fmt.Errorf("read the dead letters from LSN %s on: %w", lsn, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p envelope.Position, err error) {
		var text string
		if err = row.Scan(&text); err == nil {
			p, err = envelope.ParsePosition(text)
		}
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the dead letters from LSN %s on: %w", lsn, err)
	}
	return found, nil
}
