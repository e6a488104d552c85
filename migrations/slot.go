package migrations

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// createSlot must run in a transaction that has written nothing.
func createSlot(name string, server int) string {
	options := ""
	if server >= 170000 {
		options = ", failover => true"
	}
	return "SELECT pg_catalog.pg_create_logical_replication_slot(" + literal(name) + ", 'pgoutput'" + options + ");"
}

// declare keeps a snapshot for the relay: the rows that it sees are not to be
// sent, and nobody is to look for them. It is taken before the slot is made, so
// that what commits meanwhile and passes by the new slot is found and sent.
func (c Config) declare(snapshot, lsn string) string {
	proven := quote(c.Schema) + ".proven"
	return "INSERT INTO " + proven + " (source, epoch, snapshot, lsn) SELECT " + literal(c.Source) + ", 1, " + snapshot + ", " + lsn +
		" WHERE NOT EXISTS (SELECT FROM " + proven + " p WHERE p.source = " + literal(c.Source) + ");"
}

func (a *applier) slotName() string { return fmt.Sprintf("slot %q", a.cfg.Slot) }

// slot creates the slot, or checks that one of that name is usable. An existing
// slot is never changed. published says that the publication is new.
func (a *applier) slot(ctx context.Context, published bool) error {
	var plugin, kind, database, status string
	var temporary, twoPhase, behind bool
	err := a.conn.QueryRow(ctx, `SELECT coalesce(plugin::text, ''), slot_type, coalesce(database::text, ''), coalesce(wal_status, ''),
		temporary, two_phase, coalesce(confirmed_flush_lsn < pg_current_wal_lsn(), false)
		FROM pg_replication_slots WHERE slot_name = $1`, a.cfg.Slot).
		Scan(&plugin, &kind, &database, &status, &temporary, &twoPhase, &behind)
	if errors.Is(err, pgx.ErrNoRows) {
		return a.makeSlot(ctx)
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", a.slotName(), err)
	}
	var has string
	switch {
	case kind != "logical":
		has = "it is a " + kind + " slot and a logical one is needed"
	case plugin != "pgoutput":
		has = fmt.Sprintf("its plugin is %s and pgoutput is needed", plugin)
	case database != a.database:
		has = fmt.Sprintf("it belongs to database %q and one of database %q is needed", database, a.database)
	case temporary:
		has = "it is temporary and ends with its session; a permanent one is needed"
	case twoPhase:
		has = "it decodes two-phase commits at PREPARE and one that does not is needed"
	}
	if has != "" {
		return &PrereqError{
			Object:  a.slotName(),
			Problem: has + "; it was left untouched. Choose another name (--slot), or drop it if nobody needs it",
			Fix:     "SELECT pg_drop_replication_slot(" + literal(a.cfg.Slot) + ");",
		}
	}
	step := Step{Object: a.slotName(), Did: Found}
	switch {
	case status == "lost":
		step.Detail = "its WAL is gone: run will say what is missing"
	case published && behind:
		step.Detail = "it is older than the publication as it is now, and rows inserted before now may not pass through it: up to PostgreSQL 17 it stops at the first of them, later versions skip it"
	}
	a.report(step)
	return nil
}

func (a *applier) makeSlot(ctx context.Context) (err error) {
	conn, err := a.dial(ctx, "walrelay migrate: create slot")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	// The wait is for transactions, one after the other, and only its whole
	// can be bounded.
	_, err = conn.Exec(ctx, "SET lock_timeout = 0; SET statement_timeout = "+strconv.FormatInt(milliseconds(a.cfg.SlotTimeout), 10))
	if err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	var snapshot, lsn string
	if err := a.conn.QueryRow(ctx, "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text").Scan(&snapshot, &lsn); err != nil {
		return fmt.Errorf("take a snapshot before %s is made: %w", a.slotName(), err)
	}
	statement := createSlot(a.cfg.Slot, a.server)
	waited, err := a.watch(ctx, conn, statement)
	switch {
	case err == nil:
		a.report(Step{Object: a.slotName(), Did: Created})
		if _, err := a.conn.Exec(ctx, a.cfg.declare(literal(snapshot)+"::pg_snapshot", literal(lsn)+"::pg_lsn")); err != nil {
			return fmt.Errorf("note what %s will not send: %w", a.slotName(), err)
		}
		return nil
	case sqlState(err) == insufficientPrivilege:
		return refused(err, a.slotName(), a.user, a.replicationRight(ctx)+"\n-- or, once: "+statement)
	case sqlState(err) == limitExceeded:
		return &PrereqError{
			Object: a.slotName(), Err: err,
			Problem: "all replication slots of this server are in use; drop one that nobody needs (SELECT slot_name, active FROM pg_replication_slots) or allow more, which takes a restart",
			Fix:     "ALTER SYSTEM SET max_replication_slots = 20;",
		}
	case ctx.Err() != nil:
		return fmt.Errorf("create %s: given up, and no part of it is left: %w", a.slotName(), context.Cause(ctx))
	case sqlState(err) == queryCanceled:
		return fmt.Errorf("create %s: not done within %s, and no part of it is left; it waits for transactions that are open (%s): end them, or allow more time, and migrate again: %w",
			a.slotName(), a.cfg.SlotTimeout, waited, err)
	default:
		return fmt.Errorf("create %s: %w", a.slotName(), err)
	}
}

// replicationRight is the statement that gives this role what every relay
// needs. On services that keep REPLICATION to themselves a role stands for it.
func (a *applier) replicationRight(ctx context.Context) string {
	var rds bool
	err := a.conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication')").Scan(&rds)
	if err == nil && rds {
		return "GRANT rds_replication TO " + quote(a.user) + ";"
	}
	return "ALTER ROLE " + quote(a.user) + " REPLICATION;"
}

const (
	firstLook = 2 * time.Second  // after which a wait is worth a word
	nextLook  = 30 * time.Second // between further words
	lastWait  = 10 * time.Second // for the answer to a cancellation
)

// watch runs the statement and says who is in its way. It returns after the
// statement has ended on the server, also when ctx ends first: only then is it
// certain that no half-made slot is left. waited names who was waited for last.
func (a *applier) watch(ctx context.Context, conn *pgx.Conn, statement string) (waited string, err error) {
	detached, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	done := make(chan error, 1)
	pid := conn.PgConn().PID()
	go func() { // ends with the statement, at the latest when abandon cuts its connection
		_, err := conn.Exec(detached, statement)
		done <- err
	}()
	look := time.NewTimer(firstLook)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return waited, err
		case <-look.C:
			waited = a.blockers(ctx, pid)
			a.report(Step{Object: a.slotName(), Did: Waiting, Detail: "for transactions that are open: " + waited})
			look.Reset(nextLook)
		case <-ctx.Done():
			return waited, a.cancel(detached, conn, done, abandon)
		}
	}
}

// cancel asks the server to stop, again and again: a request that comes before
// the statement or between two of its waits is lost.
func (a *applier) cancel(ctx context.Context, conn *pgx.Conn, done <-chan error, abandon func()) error {
	ctx, end := context.WithTimeout(ctx, lastWait)
	defer end()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		err := conn.PgConn().CancelRequest(ctx)
		select {
		case err := <-done:
			return err
		case <-again.C:
		case <-ctx.Done():
			abandon()
			return errors.Join(fmt.Errorf("%s: no answer to the cancellation; the server may still be creating it: look at pg_replication_slots", a.slotName()), err, <-done)
		}
	}
}

// blockers says in words who holds up the backend pid. What this role may not
// see of another's session stays out.
func (a *applier) blockers(ctx context.Context, pid uint32) string {
	rows, err := a.conn.Query(ctx, `WITH blocking AS (SELECT unnest(pg_blocking_pids($1)) AS pid)
		SELECT s.pid, coalesce(s.state, ''), coalesce(extract(epoch FROM clock_timestamp() - s.xact_start)::bigint, -1), s.application_name
		FROM pg_stat_activity s
		WHERE s.pid IN (SELECT pid FROM blocking) OR NOT EXISTS (SELECT FROM blocking) AND backend_xid IS NOT NULL AND s.pid <> $1
		UNION ALL SELECT 0, 'prepared as ' || gid, extract(epoch FROM clock_timestamp() - prepared)::bigint, ''
		FROM pg_prepared_xacts WHERE 0 IN (SELECT pid FROM blocking)
		ORDER BY 3 DESC LIMIT 5`, int32(pid)) //nolint:gosec // a process id
	if err != nil {
		return "unknown (" + err.Error() + ")"
	}
	var words []string
	var id int32
	var seconds int64
	var state, application string
	_, err = pgx.ForEachRow(rows, []any{&id, &state, &seconds, &application}, func() error {
		w := []string{fmt.Sprintf("pid %d", id)}
		if state != "" {
			w = append(w, state)
		}
		if seconds >= 0 {
			w = append(w, "open for "+(time.Duration(seconds)*time.Second).String())
		}
		if application != "" {
			w = append(w, "application "+strconv.Quote(application))
		}
		words = append(words, strings.Join(w, ", "))
		return nil
	})
	if err != nil {
		return "unknown (" + err.Error() + ")"
	}
	if len(words) == 0 {
		return "none of them is visible to this role"
	}
	return strings.Join(words, "; ")
}
