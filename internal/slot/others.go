package slot

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// An Other is a slot of this database that is not the relay's own, of a plugin
// that relays use.
type Other struct {
	Name          string
	Active        bool
	HolderName    string // application_name of who holds it, where this role may see it
	RetainedBytes int64  // WAL that the server keeps for it
}

// Others lists the other pgoutput slots of this database.
func Others(ctx context.Context, q Querier, own string) ([]Other, error) {
	rows, err := q.Query(ctx, `SELECT s.slot_name::text, s.active, coalesce(a.application_name, ''), coalesce(pg_wal_lsn_diff(
			CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn), 0)::bigint
		FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
		WHERE s.database = current_database() AND s.plugin = 'pgoutput' AND s.slot_name <> $1 ORDER BY 1`, own)
	if err != nil {
		return nil, fmt.Errorf("list the other slots: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Other, err error) {
		return o, row.Scan(&o.Name, &o.Active, &o.HolderName, &o.RetainedBytes)
	})
	if err != nil {
		return nil, fmt.Errorf("list the other slots: %w", err)
	}
	return list, nil
}

// An Open is a transaction that has written and not ended.
type Open struct {
	PID         int    // 0 for a prepared transaction
	State       string // of its session, or prepared as NAME
	Application string
	For         time.Duration // how long it is open; 0 where this role may not see it
}

// OpenTransactions lists the transactions of the cluster that a slot which is
// made now would wait for, the oldest first, at most five.
func OpenTransactions(ctx context.Context, q Querier) ([]Open, error) {
	rows, err := q.Query(ctx, `SELECT pid, coalesce(state, ''), application_name, coalesce(extract(epoch FROM clock_timestamp() - xact_start)::bigint, 0)
		FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
		UNION ALL SELECT 0, 'prepared as ' || gid, '', extract(epoch FROM clock_timestamp() - prepared)::bigint FROM pg_prepared_xacts
		ORDER BY 4 DESC LIMIT 5`)
	if err != nil {
		return nil, fmt.Errorf("list the open transactions: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Open, err error) {
		var seconds int64
		err = row.Scan(&o.PID, &o.State, &o.Application, &seconds)
		o.For = time.Duration(seconds) * time.Second
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the open transactions: %w", err)
	}
	return list, nil
}
