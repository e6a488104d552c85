package slot

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
)

// A Querier is a SQL connection or transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Info is what PostgreSQL says of a slot.
type Info struct {
	Exists    bool
	Plugin    string
	Type      string // logical or physical
	Database  string
	Temporary bool
	TwoPhase  bool
	Active    bool
	// Holder describes who holds an active slot: pid, application, since when.
	HolderPID  int
	HolderName string
	// HolderSince is when the holder connected; zero where this role may not
	// see it.
	HolderSince time.Time
	// HolderWait is the event that the holder waits for, by its name in
	// pg_stat_activity; empty where it works, or where this role may not see it.
	HolderWait string
	// Failover says that standbys may keep a copy of the slot, from PostgreSQL
	// 17 on.
	Failover  bool
	Confirmed envelope.LSN
	Restart   envelope.LSN
	// WALStatus is reserved, extended, unreserved or lost.
	WALStatus string
	// RetainedBytes is how much WAL the slot keeps the server from removing.
	RetainedBytes int64
	// SafeBytes is how much may still be written before the slot is lost; -1
	// where no limit is set.
	SafeBytes int64
	// CatalogXminAge is how many transactions ago the slot's catalog_xmin was,
	// for which vacuum keeps dead rows of the system catalogues; -1 where the
	// slot has none.
	CatalogXminAge int64
	// ServerWALEnd is the end of the server's WAL at the time of asking.
	ServerWALEnd envelope.LSN
}

const inspectSQL = `SELECT coalesce(s.plugin, ''), s.slot_type, coalesce(s.database, ''), s.temporary, s.two_phase,
	s.active, coalesce(s.active_pid, 0), coalesce(a.application_name, ''), a.backend_start, coalesce(a.wait_event, ''),
	coalesce(to_jsonb(s)->>'failover', 'false')::bool, coalesce(s.confirmed_flush_lsn, '0/0')::text, coalesce(s.restart_lsn, '0/0')::text, coalesce(s.wal_status, ''),
	coalesce(pg_wal_lsn_diff(w.here, s.restart_lsn), 0)::bigint, coalesce(s.safe_wal_size, -1),
	coalesce(age(s.catalog_xmin), -1)::bigint, w.here::text
FROM pg_replication_slots s
LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS here) w
WHERE s.slot_name = $1`

// Inspect asks what became of a slot. It never looks into it.
func Inspect(ctx context.Context, q Querier, name string) (Info, error) {
	i := Info{Exists: true}
	var confirmed, restart, end string
	var since *time.Time
	err := q.QueryRow(ctx, inspectSQL, name).Scan(&i.Plugin, &i.Type, &i.Database, &i.Temporary, &i.TwoPhase,
		&i.Active, &i.HolderPID, &i.HolderName, &since, &i.HolderWait, &i.Failover, &confirmed, &restart, &i.WALStatus, &i.RetainedBytes, &i.SafeBytes,
		&i.CatalogXminAge, &end)
	if errors.Is(err, pgx.ErrNoRows) {
		return Info{SafeBytes: -1, CatalogXminAge: -1}, nil
	}
	if err != nil {
		return Info{}, fmt.Errorf("look at slot %q: %w", name, err)
	}
	if since != nil {
		i.HolderSince = *since
	}
	for _, f := range []struct {
		text string
		lsn  *envelope.LSN
	}{{confirmed, &i.Confirmed}, {restart, &i.Restart}, {end, &i.ServerWALEnd}} {
		if *f.lsn, err = envelope.ParseLSN(f.text); err != nil {
			return Info{}, fmt.Errorf("look at slot %q: %w", name, err)
		}
	}
	return i, nil
}

// A MisfitError says that something on the server is not as a relay needs it:
// a slot or publication of that name exists and cannot serve, a setting or a
// right is missing. The relay leaves it untouched and waits.
type MisfitError struct {
	Object  string // such as slot "orders"
	Problem string // a predicate of Object: is ..., lacks ...
	Fix     string // the statement or setting that mends it; who is to run it stands behind --
}

// Error names the object, what is wrong with it and what to do.
func (e *MisfitError) Error() string { return e.Object + " " + e.Problem + ": " + e.Fix }

// Check says why the slot cannot serve a relay in that database; nil when it
// can, or does not exist.
func (i Info) Check(name, database string) error {
	misfit := func(problem string) error {
		return &MisfitError{
			Object: "slot " + strconv.Quote(name), Problem: problem,
			Fix: "walrelay needs a permanent logical slot of plugin pgoutput in this database; use another name (--slot), or drop the slot if nothing needs it",
		}
	}
	switch {
	case !i.Exists:
		return nil
	case i.Type != "logical":
		return misfit("is a " + i.Type + " slot")
	case i.Plugin != "pgoutput":
		return misfit("has the plugin " + i.Plugin)
	case i.Database != database:
		return misfit("belongs to database " + strconv.Quote(i.Database) + ", not " + strconv.Quote(database))
	case i.Temporary:
		return misfit("is temporary and goes with the connection that made it")
	case i.TwoPhase:
		return misfit("was made with two-phase decoding")
	}
	return nil
}

// An InUseError says who holds the slot.
type InUseError struct {
	Slot        string
	PID         int
	Application string // the holder's application_name
	Since       time.Time
}

// Error names the holder, and since when it is connected.
func (e *InUseError) Error() string {
	who := "pid " + strconv.Itoa(e.PID)
	if e.Application != "" {
		who += " (" + e.Application + ")"
	}
	if !e.Since.IsZero() {
		who += " since " + e.Since.UTC().Format(time.RFC3339)
	}
	return "slot " + strconv.Quote(e.Slot) + " is held by " + who + "; this relay takes over when it is released"
}
