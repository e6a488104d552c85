package migrations

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Apply creates or upgrades the outbox side: schema, tables, publication, then
// the slot. What exists is left alone, what is missing is completed, so a second
// call changes nothing. Two calls at once take turns. The connection must reach
// the server itself, not a pooler. report is called for each step, in order; nil
// reports nothing.
//
// A *PrereqError says what only somebody else can do, with the statement.
func Apply(ctx context.Context, conn *pgx.ConnConfig, cfg Config, report func(Step)) error {
	return run(ctx, conn, cfg, report, outboxSet, func(a *applier) error {
		if a.cfg.SchemaOnly {
			return a.outbox(ctx)
		}
		if err := a.checkWALLevel(); err != nil {
			return err
		}
		if err := a.outbox(ctx); err != nil {
			return err
		}
		created, err := a.publication(ctx)
		if err != nil {
			return err
		}
		return a.slot(ctx, created)
	})
}

// Consumer creates or upgrades the consumer side: receipts and what belongs to
// them. Of the Config, Schema and LockTimeout count. It needs no REPLICATION and
// any wal_level.
func Consumer(ctx context.Context, conn *pgx.ConnConfig, cfg Config, report func(Step)) error {
	return run(ctx, conn, cfg, report, consumerSet, func(a *applier) error { return a.schema(ctx, consumerSet) })
}

// oldestServer is the first version whose publications can be told apart by
// schema and row filter.
const oldestServer = 150000

// An applier is one call of Apply or Consumer.
type applier struct {
	cfg      Config
	connect  *pgx.ConnConfig
	conn     *pgx.Conn // holds the lock that makes two calls take turns
	report   func(Step)
	user     string
	database string
	server   int // such as 150018
	walLevel string
}

func run(ctx context.Context, connect *pgx.ConnConfig, cfg Config, report func(Step), s set, do func(*applier) error) (err error) {
	cfg, err = cfg.filled()
	if err != nil {
		return fmt.Errorf("settings of migrate: %w", err)
	}
	if report == nil {
		report = func(Step) {}
	}
	a := &applier{cfg: cfg, connect: connect.Copy(), report: report}
	a.conn, err = a.dial(ctx, "walrelay migrate")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.conn.Close(context.WithoutCancel(ctx))) }()
	if err := a.facts(ctx); err != nil {
		return err
	}
	if err := a.takeTurn(ctx, s); err != nil {
		return err
	}
	return do(a)
}

// dial opens a connection whose settings do not depend on role or database.
func (a *applier) dial(ctx context.Context, name string) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, a.connect)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if err := a.pin(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	_, err = conn.Exec(ctx, "SELECT set_config('application_name', $1, false)", name)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("name the connection: %w", err), conn.Close(context.WithoutCancel(ctx)))
	}
	return conn, nil
}

func (a *applier) pin(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SET search_path = pg_catalog, pg_temp; SET standard_conforming_strings = on;
		SET client_min_messages = warning; SET default_transaction_isolation = 'read committed';
		SET default_transaction_read_only = off; SET statement_timeout = 0; SET idle_session_timeout = 0;
		SET lock_timeout = `+strconv.FormatInt(milliseconds(a.cfg.LockTimeout), 10))
	if err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	return nil
}

// milliseconds rounds up, since zero would mean no timeout.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func (a *applier) facts(ctx context.Context) error {
	var recovery bool
	err := a.conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_user::text,
		current_database()::text, current_setting('wal_level'), pg_is_in_recovery()`).
		Scan(&a.server, &a.user, &a.database, &a.walLevel, &recovery)
	if err != nil {
		return fmt.Errorf("ask the server for its version and settings: %w", err)
	}
	if a.server < oldestServer {
		return fmt.Errorf("PostgreSQL %d is too old: walrelay needs 15 or newer; upgrade the server", a.server/10000)
	}
	if recovery {
		return fmt.Errorf("this server is a standby, where nothing can be created; give the address of its primary (target_session_attrs=primary finds it among several hosts)")
	}
	return nil
}

// checkWALLevel comes before anything that needs it, or its lack would be
// reported as a lack of rights.
func (a *applier) checkWALLevel() error {
	if a.walLevel == "logical" {
		return nil
	}
	return &PrereqError{
		Object:  "setting wal_level",
		Problem: fmt.Sprintf("it is %s and a logical slot needs logical; nothing was changed. The new value counts after a restart of the server (managed services have a setting of their own for it, such as rds.logical_replication)", a.walLevel),
		Fix:     "ALTER SYSTEM SET wal_level = logical;",
	}
}

// takeTurn waits until no other migrate works on the same schema. The lock goes
// with the connection.
func (a *applier) takeTurn(ctx context.Context, s set) error {
	key := "walrelay migrate " + s.folder + " " + a.cfg.Schema
	var got bool
	if err := a.conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", key).Scan(&got); err != nil {
		return fmt.Errorf("lock against another migrate: %w", err)
	}
	if got {
		return nil
	}
	a.report(Step{Object: "schema " + a.cfg.Schema, Did: Waiting, Detail: "another migrate is at work"})
	// lock_timeout also bounds advisory locks; here patience is right.
	_, err := a.conn.Exec(ctx, "SET lock_timeout = 0")
	if err == nil {
		_, err = a.conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", key)
	}
	if err != nil {
		return fmt.Errorf("wait for another migrate: %w", err)
	}
	return a.pin(ctx, a.conn)
}
