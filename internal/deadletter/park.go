package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ReasonParked is the reason of a letter that only waits behind the first one
// of its aggregate.
const ReasonParked = "parked"

// Released is the resolution of a letter that was published once the first one
// of its aggregate was dealt with; Skipped that of one whose route says by then
// that it is not published.
const (
	Released = "released"
	Skipped  = "skipped"
)

// A Parked is an aggregate whose events go into the table of dead letters.
type Parked struct {
	AggregateType, AggregateID string
	// First is the id of the letter that the others point at, and Open that of
	// the one that has to be dealt with: the first one, or one that was refused
	// in its turn. Where nothing has to be, see Due, it is the first.
	First, Open int64
}

func letterTable(schema string) string { return pgx.Identifier{schema, "dead_letter"}.Sanitize() }

// ParkedAggregates gives a source's parked aggregates, at most limit of them.
// What waits of each has to point at one letter, see Unite.
func ParkedAggregates(ctx context.Context, q Querier, schema, source string, limit int) ([]Parked, error) {
	rows, err := q.Query(ctx, `SELECT type, aggregate, first, coalesce(open, first) FROM (
			SELECT coalesce(aggregate_type, '') AS type, coalesce(aggregate_id, '') AS aggregate,
				coalesce(min(parked_behind) FILTER (WHERE parked_behind <> id), min(id)) AS first, min(id) FILTER (WHERE parked_behind = id) AS open
			FROM `+letterTable(schema)+` WHERE source = $1 AND resolved_at IS NULL AND parked_behind IS NOT NULL
			GROUP BY 1, 2 LIMIT $2) a ORDER BY first`, source, limit)
	if err != nil {
		return nil, fmt.Errorf("read the parked aggregates of source %q: %w", source, err)
	}
	parked, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Parked])
	if err != nil {
		return nil, fmt.Errorf("read the parked aggregates of source %q: %w", source, err)
	}
	return parked, nil
}

// uniteAtOnce is how many letters are moved in one transaction: many may have
// to be, and what is moved stays so if the next transaction fails.
const uniteAtOnce = 5000

// Unite lets what waits of one aggregate point at one letter. There are several
// where letters that were released behind different ones are open again, since
// the stream has lost their messages. The one that most point at is taken; which
// it is makes no difference: nothing is due while one of them is open.
func Unite(ctx context.Context, conn *pgx.Conn, schema, source string, fence Fence) (moved int64, err error) {
	for more := true; more; {
		err := fenced(ctx, conn, fence, func(tx pgx.Tx) error {
			// The planner does not know how many letters there are, when most are
			// of the last minute: a nested loop over them would never end.
			if _, err := tx.Exec(ctx, "SET LOCAL enable_nestloop = off"); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, `WITH parked AS MATERIALIZED (
					SELECT id, parked_behind, coalesce(aggregate_type, '') AS type, coalesce(aggregate_id, '') AS aggregate FROM `+letterTable(schema)+`
					WHERE source = $1 AND resolved_at IS NULL AND parked_behind <> id),
				several AS MATERIALIZED (
					SELECT type, aggregate, mode() WITHIN GROUP (ORDER BY parked_behind) AS first FROM parked
					GROUP BY 1, 2 HAVING min(parked_behind) < max(parked_behind)),
				moves AS MATERIALIZED (
					SELECT id, first FROM parked JOIN several USING (type, aggregate) WHERE parked_behind <> first LIMIT $2)
				UPDATE `+letterTable(schema)+` l SET parked_behind = moves.first FROM moves WHERE l.id = moves.id`, source, uniteAtOnce)
			moved += tag.RowsAffected()
			more = tag.RowsAffected() == uniteAtOnce
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("unite what is parked of source %q: %w", source, err)
		}
	}
	return moved, nil
}

// RecordFirst is Record for a letter that parks its aggregate. What waits
// behind another letter of the aggregate waits behind this one from now on, that
// letter included: it is of a later event. It gives the id of the first letter,
// 0 where the event was recorded before in a way that parks nothing.
func RecordFirst(ctx context.Context, conn *pgx.Conn, schema string, l Letter, fence Fence) (first int64, err error) {
	_, err = record(ctx, conn, schema, l, fence, func(ctx context.Context, tx pgx.Tx, id int64) error {
		first = id
		_, err := tx.Exec(ctx, `UPDATE `+letterTable(schema)+` SET parked_behind = $1 WHERE id = $1 OR parked_behind IN (
			SELECT parked_behind FROM `+letterTable(schema)+` WHERE source = $2 AND resolved_at IS NULL AND parked_behind IS NOT NULL
				AND aggregate_type IS NOT DISTINCT FROM $3 AND aggregate_id IS NOT DISTINCT FROM $4) AND resolved_at IS NULL`,
			id, l.Source, null(l.AggregateType), null(l.AggregateID))
		return err
	})
	if err != nil || first > 0 {
		return first, err
	}
	err = conn.QueryRow(ctx, `SELECT coalesce(max(parked_behind), 0) FROM `+letterTable(schema)+` WHERE source = $1 AND resolved_at IS NULL
		AND (position = $2 OR $2 = '' AND position IS NULL AND "table" = $3 AND event_id = $4)`, l.Source, l.position(), l.Table, l.EventID).Scan(&first)
	if err != nil {
		return 0, fmt.Errorf("look for what is parked behind a dead letter of table %s: %w", l.Table, err)
	}
	return first, nil
}

func (l *Letter) position() string {
	if l.Position.IsZero() {
		return ""
	}
	return l.Position.String()
}

// Refusals tells of the letters recorded since a time, oldest first and a
// thousand at most, without those that are only parked.
func Refusals(ctx context.Context, q Querier, schema, source string, since time.Time, tell func(reason string, at time.Time)) error {
	rows, err := q.Query(ctx, `SELECT reason, at FROM `+letterTable(schema)+`
		WHERE source = $1 AND at >= $2 AND reason <> '`+ReasonParked+`' ORDER BY id LIMIT 1000`, source, since)
	if err != nil {
		return fmt.Errorf("read the newest dead letters: %w", err)
	}
	var reason string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&reason, &at}, func() error {
		tell(reason, at)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the newest dead letters: %w", err)
	}
	return nil
}

// Due gives those of the first letters of which nothing is to be dealt with any
// more: they are resolved, and so is what was refused of their aggregates since.
func Due(ctx context.Context, q Querier, schema string, first []int64) ([]int64, error) {
	rows, err := q.Query(ctx, `SELECT id FROM `+letterTable(schema)+` l WHERE id = ANY ($1) AND resolved_at IS NOT NULL
		AND NOT EXISTS (`+blocking(schema)+`) ORDER BY id`, first)
	if err != nil {
		return nil, fmt.Errorf("look which dead letters are resolved: %w", err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("look which dead letters are resolved: %w", err)
	}
	return due, nil
}

// blocking selects the ids of the open letters that have to be dealt with before
// the aggregate of letter l goes on.
func blocking(schema string) string {
	return `SELECT b.id FROM ` + letterTable(schema) + ` b WHERE b.resolved_at IS NULL AND b.parked_behind = b.id AND b.source = l.source
		AND b.aggregate_id = l.aggregate_id AND b.aggregate_type IS NOT DISTINCT FROM l.aggregate_type`
}

// Waiting gives the open letters that point at a first one, with their
// payloads, in the order of their events; at most limit, and fewer where their
// payloads have more than 8 MiB. Those that were read from the table and have
// no position stand first, since what is healed precedes what is live.
func Waiting(ctx context.Context, q Querier, schema string, first int64, limit int) ([]Letter, error) {
	const order = ` ORDER BY epoch NULLS FIRST, commit_lsn NULLS FIRST, idx NULLS FIRST, id`
	rows, err := q.Query(ctx, `SELECT `+columns+`, payload FROM (
			SELECT *, sum(payload_size) OVER (`+order+`) - payload_size AS earlier FROM (
				SELECT * FROM `+letterTable(schema)+` WHERE parked_behind = $1 AND id <> $1 AND resolved_at IS NULL`+order+` LIMIT $2) page) page
		WHERE earlier < $3`+order, first, limit, 8*MaxPayload)
	if err != nil {
		return nil, fmt.Errorf("read what is parked behind dead letter %d: %w", first, err)
	}
	found, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("read what is parked behind dead letter %d: %w", first, err)
	}
	return found, nil
}

// WaitingOf gives those of the events that wait behind a first letter, with the
// ids of their letters.
func WaitingOf(ctx context.Context, q Querier, schema string, first int64, events []string) (map[string]int64, error) {
	found := map[string]int64{}
	rows, err := q.Query(ctx, `SELECT event_id, id FROM `+letterTable(schema)+`
		WHERE parked_behind = $1 AND id <> $1 AND resolved_at IS NULL AND event_id = ANY ($2)`, first, events)
	if err == nil {
		var event string
		var id int64
		_, err = pgx.ForEachRow(rows, []any{&event, &id}, func() error {
			found[event] = id
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look which events are parked behind dead letter %d: %w", first, err)
	}
	return found, nil
}

// A Resolution says what became of a letter.
type Resolution struct {
	ID int64
	// How is a stable word, such as Released.
	How string
	// Sequence is where the stream has it; 0 where that is not known.
	Sequence uint64
}

// Settle notes what became of open letters, durably.
func Settle(ctx context.Context, conn *pgx.Conn, schema string, done []Resolution, by string, fence Fence) error {
	ids, hows, sequences := make([]int64, len(done)), make([]string, len(done)), make([]int64, len(done))
	for i, d := range done {
		ids[i], hows[i], sequences[i] = d.ID, d.How, int64(d.Sequence) //nolint:gosec // sequences are far below 2^63
	}
	err := fenced(ctx, conn, fence, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE `+letterTable(schema)+` l SET resolved_at = clock_timestamp(), resolved_by = $4, resolution = d.how, sequence = nullif(d.sequence, 0)
			FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS d (id, how, sequence) WHERE l.id = d.id AND l.resolved_at IS NULL`, ids, hows, sequences, by)
		return err
	})
	if err != nil {
		return fmt.Errorf("resolve %d dead letters: %w", len(done), err)
	}
	return nil
}

// Refuse makes a letter that was parked one that has to be dealt with. What waited
// with it stays where it is, however much that is: nothing of the aggregate is
// due before this one is resolved.
func Refuse(ctx context.Context, conn *pgx.Conn, schema string, id int64, reason, detail string, fence Fence) error {
	err := fenced(ctx, conn, fence, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE `+letterTable(schema)+` SET parked_behind = id, reason = $2, error = $3 WHERE id = $1 AND resolved_at IS NULL`,
			id, reason, clean(detail))
		return err
	})
	if err != nil {
		return fmt.Errorf("refuse dead letter %d, which was parked: %w", id, err)
	}
	return nil
}

// Reopen makes released letters open again whose messages the stream has lost:
// those beyond its last sequence. It gives how many.
func Reopen(ctx context.Context, tx pgx.Tx, schema, source, stream string, last uint64) (int64, error) {
	tag, err := tx.Exec(ctx, `UPDATE `+letterTable(schema)+` SET resolved_at = NULL, resolved_by = NULL, resolution = NULL, sequence = NULL
		WHERE source = $1 AND stream = $2 AND resolution = '`+Released+`' AND sequence > $3`, source, stream, int64(last)) //nolint:gosec // as above
	if err != nil {
		return 0, fmt.Errorf("reopen the released dead letters of stream %q: %w", stream, err)
	}
	return tag.RowsAffected(), nil
}

func fenced(ctx context.Context, conn *pgx.Conn, fence Fence, f func(pgx.Tx) error) error {
	// In one round trip: of a parked aggregate each event comes through here.
	begin := pgx.TxOptions{BeginQuery: `BEGIN; SET LOCAL synchronous_commit = on`}
	return pgx.BeginTxFunc(ctx, conn, begin, func(tx pgx.Tx) error {
		if err := fence(ctx, tx); err != nil {
			return err
		}
		return f(tx)
	})
}

// columnsText gives the further columns as PostgreSQL takes them; nil where
// there are none.
func (l *Letter) columnsText() (any, error) {
	if l.Columns == nil {
		return nil, nil //nolint:nilnil // SQL's null
	}
	text, err := json.Marshal(l.Columns)
	return text, err
}

func (l *Letter) setColumns(stored []byte) error {
	if stored == nil {
		return nil
	}
	if err := json.Unmarshal(stored, &l.Columns); err != nil {
		return fmt.Errorf("columns of dead letter %d: %w", l.ID, err)
	}
	return nil
}

// ErrParked says that a letter cannot be dealt with alone, since it waits
// behind another one.
var ErrParked = errors.New("is parked behind another dead letter")

// CheckAlone is an error where a letter only waits behind the first one of its
// aggregate: to publish or to discard it by itself would break the order that
// parking keeps.
func (l *Letter) CheckAlone() error {
	if l.ParkedBehind == 0 || !l.ResolvedAt.IsZero() {
		return nil
	}
	return fmt.Errorf("dead letter %d %w: deal with %d first; this one is then published in its turn", l.ID, ErrParked, l.ParkedBehind)
}
