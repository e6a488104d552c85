package slot

import (
	"context"
	"fmt"
	"strings"
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
	for name := range strings.SplitSeq(waited, ",") {
		name = strings.Trim(strings.TrimSpace(name), `"`)
		if name == "" {
			continue
		}
		s.Waited = append(s.Waited, name)
		if streaming[name] {
			s.WaitedFor = append(s.WaitedFor, name)
		}
	}
	return s, nil
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
