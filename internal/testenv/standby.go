package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"

	"github.com/jackc/pgx/v5"
)

// A StandbyConfig says how a standby follows its primary.
type StandbyConfig struct {
	// Via is the address at which the standby reaches the primary, such as a
	// proxy's. Empty means the primary's own.
	Via string
	// Slot is the physical slot on the primary that keeps WAL for the
	// standby, made where there is none. Empty means standby.
	Slot string
	// Settings are the standby's own, such as sync_replication_slots and
	// hot_standby_feedback from 17 on. They beat what follows from the above.
	Settings map[string]string
}

// StartStandby makes a standby of a running server and starts it. The primary
// is stopped for that, since its folder is copied, and is running again when
// StartStandby returns. Replication is asynchronous unless the primary's
// settings say otherwise. The standby has none of the primary's slots.
func (e *Env) StartStandby(ctx context.Context, primary *Postgres, cfg StandbyConfig) (*Postgres, error) {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	if cfg.Slot == "" {
		cfg.Slot = "standby"
	}
	if cfg.Via == "" {
		cfg.Via = primary.Addr()
	}
	host, port, err := net.SplitHostPort(cfg.Via)
	if err != nil {
		return nil, fmt.Errorf("start a standby: Via: %w", err)
	}
	// The slot reserves WAL from here on, before the copy.
	err = primary.exec(ctx, `SELECT pg_create_physical_replication_slot($1, true)
		WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)`, cfg.Slot)
	if err != nil {
		return nil, fmt.Errorf("start a standby: make slot %q: %w", cfg.Slot, err)
	}
	if err := primary.Stop(ctx, Fast); err != nil {
		return nil, fmt.Errorf("start a standby: %w", err)
	}
	settings := map[string]string{
		// The database's name is for the synchronisation of slots.
		"primary_conninfo":  fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres application_name=%s", host, port, cfg.Slot),
		"primary_slot_name": cfg.Slot,
	}
	maps.Copy(settings, cfg.Settings)
	standby, err := e.StartPostgres(ctx, PGConfig{Version: primary.Version(), DataFrom: primary.DataDir(), Standby: true, Settings: settings})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a standby: %w", err), primary.Start(ctx))
	}
	if err := primary.Start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a standby: %w", err), standby.Close())
	}
	return standby, nil
}

// Promote makes a standby a primary, and returns when it takes writes.
func (p *Postgres) Promote(ctx context.Context) error {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	if err := p.exec(ctx, `SELECT pg_promote(true, 60)`); err != nil {
		return p.explain("promote", err)
	}
	var last error
	if !poll(ctx, func() bool {
		// An error where it does not.
		last = p.exec(ctx, `SELECT pg_current_wal_lsn()`)
		return last == nil
	}) {
		return p.explain("promote", errors.Join(ctx.Err(), last))
	}
	return nil
}

// Follows waits until the standby has replayed all that the primary had written
// when it was called.
func (p *Postgres) Follows(ctx context.Context, primary *Postgres) error {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	var lsn string
	if err := primary.value(ctx, &lsn, `SELECT pg_current_wal_lsn()::text`); err != nil {
		return fmt.Errorf("wait for a standby: %w", err)
	}
	var last error
	if !poll(ctx, func() bool {
		there := false
		last = p.value(ctx, &there, `SELECT coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false)`, lsn)
		return there
	}) {
		return p.explain("wait for standby", errors.Join(ctx.Err(), last))
	}
	return nil
}

// exec runs one statement in database postgres.
func (p *Postgres) exec(ctx context.Context, statement string, args ...any) error {
	return p.with(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement, args...)
		return err
	})
}

// value reads the one value of a statement in database postgres.
func (p *Postgres) value(ctx context.Context, target any, statement string, args ...any) error {
	return p.with(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, statement, args...).Scan(target) })
}

func (p *Postgres) with(ctx context.Context, do func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close(context.WithoutCancel(ctx)))
}
