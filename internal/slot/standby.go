package slot

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Standbys is what a primary says of its standbys and of how they keep copies of
// logical slots; and what a standby says of itself.
type Standbys struct {
	// Connected counts those that stream from this server.
	Connected int
	// Slots are the physical slots that standbys stream through, and
	// WithoutFeedback those of them that hold back no vacuum: hot_standby_feedback
	// is off there.
	Slots, WithoutFeedback []string
	// Waited is what synchronized_standby_slots names; nil before PostgreSQL
	// 17 and where it is empty. WaitedFor are those of them that are streaming.
	Waited, WaitedFor []string
}

// LookAtStandbys asks a primary.
func LookAtStandbys(ctx context.Context, q Querier) (Standbys, error) {
	var s Standbys
	var waited string
	err := q.QueryRow(ctx, `SELECT
		(SELECT count(*)::int FROM pg_stat_replication r WHERE r.state IN ('catchup', 'streaming') AND NOT EXISTS (
			SELECT FROM pg_replication_slots l WHERE l.active_pid = r.pid AND l.slot_type = 'logical')),
		(SELECT coalesce(array_agg(slot_name::text ORDER BY 1), '{}') FROM pg_replication_slots WHERE slot_type = 'physical' AND active),
		(SELECT coalesce(array_agg(slot_name::text ORDER BY 1), '{}') FROM pg_replication_slots WHERE slot_type = 'physical' AND active AND xmin IS NULL),
		coalesce(current_setting('synchronized_standby_slots', true), '')`).Scan(&s.Connected, &s.Slots, &s.WithoutFeedback, &waited)
	if err != nil {
		return s, fmt.Errorf("look at the standbys: %w", err)
	}
	streaming := map[string]bool{}
	for _, name := range s.Slots {
		streaming[name] = true
	}
	s.Waited = names(waited)
	for _, name := range s.Waited {
		if streaming[name] {
			s.WaitedFor = append(s.WaitedFor, name)
		}
	}
	return s, nil
}

// names takes the list of a setting apart.
func names(setting string) (list []string) {
	for name := range strings.SplitSeq(setting, ",") {
		if name = strings.Trim(strings.TrimSpace(name), `"`); name != "" {
			list = append(list, name)
		}
	}
	return list
}

// WaitsForStandby is the HolderWait of a walsender that sends nothing before
// the standbys of synchronized_standby_slots have received it.
const WaitsForStandby = "WaitForStandbyConfirmation"

// A Laggard is a physical slot of synchronized_standby_slots whose standby has
// not received all that this server has written.
type Laggard struct {
	Slot string
	// Exists is false where there is no such slot, and Streams where nobody
	// streams through it.
	Exists, Streams bool
	// Behind is how many bytes of WAL it has not received.
	Behind int64
}

// Laggards asks a primary of PostgreSQL 17 or later whom its logical walsenders
// wait for.
func Laggards(ctx context.Context, q Querier) ([]Laggard, error) {
	var waited string
	if err := q.QueryRow(ctx, "SELECT coalesce(current_setting('synchronized_standby_slots', true), '')").Scan(&waited); err != nil {
		return nil, fmt.Errorf("look at synchronized_standby_slots: %w", err)
	}
	rows, err := q.Query(ctx, `SELECT n.name, s.slot_name IS NOT NULL, coalesce(s.active, false),
			coalesce(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.restart_lsn), 0)::bigint
		FROM unnest($1::text[]) WITH ORDINALITY AS n (name, place)
		LEFT JOIN pg_replication_slots s ON s.slot_name = n.name AND s.slot_type = 'physical'
		WHERE s.restart_lsn IS NULL OR s.restart_lsn < pg_current_wal_flush_lsn()
		ORDER BY n.place`, names(waited))
	if err != nil {
		return nil, fmt.Errorf("look at the slots of synchronized_standby_slots: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Laggard])
	if err != nil {
		return nil, fmt.Errorf("look at the slots of synchronized_standby_slots: %w", err)
	}
	return list, nil
}

// A Copy is what a standby says of itself and of its copy of a slot.
type Copy struct {
	// InRecovery is false for a primary, which has no copy; nothing else is
	// known then.
	InRecovery bool
	// Synchronises says that sync_replication_slots is on.
	Synchronises bool
	// Exists says that there is a copy, and Kept that it outlives a promotion.
	Exists, Kept bool
}

// LookAtCopy asks a server of PostgreSQL 17 or later.
func LookAtCopy(ctx context.Context, q Querier, slot string) (c Copy, err error) {
	err = q.QueryRow(ctx, `SELECT pg_is_in_recovery(), coalesce(current_setting('sync_replication_slots', true), 'off') = 'on',
		EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1),
		coalesce((SELECT (to_jsonb(s)->>'synced')::boolean AND NOT temporary AND wal_status <> 'lost' FROM pg_replication_slots s WHERE slot_name = $1), false)`,
		slot).Scan(&c.InRecovery, &c.Synchronises, &c.Exists, &c.Kept)
	if err != nil {
		return c, fmt.Errorf("look at the copy of slot %q: %w", slot, err)
	}
	return c, nil
}
