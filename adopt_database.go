package walrelay

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// A DatabaseAdoption is what [AdoptDatabase] finds and is about to declare.
type DatabaseAdoption struct {
	// Known is the history that this database remembers; nil where it
	// remembers none. Now is what it is.
	Known *History `json:"known"`
	Now   History  `json:"now"`
	// WALEnd is where the database's write-ahead log ends.
	WALEnd string `json:"wal_end"`
	// Streams are the ends of the streams that the routes name.
	Streams []AdoptedStream `json:"streams"`
	// ConfirmedLSN is where the slot stands; what it would send again from
	// there on up to now is not sent. Empty where there is no slot.
	ConfirmedLSN string `json:"confirmed_lsn,omitempty"`
	// Unproven is how many rows of the outbox tables are not known to be
	// delivered. None of them is sent by the adoption.
	Unproven int64 `json:"unproven_rows"`
	// Gaps are the open gaps, which are accepted.
	Gaps []AdoptedGap `json:"gaps"`
	// Epoch is the epoch that begins.
	Epoch uint32 `json:"epoch"`
	// Adopted says that it is done.
	Adopted bool `json:"adopted"`
}

// A History is one life of a database cluster.
type History struct {
	Epoch    uint32 `json:"epoch,omitempty"` // 0: not begun yet
	SystemID string `json:"system_id"`
	Timeline uint32 `json:"timeline"`
}

// An AdoptedStream is where a stream ends, as the database remembers it and as
// it is.
type AdoptedStream struct {
	Stream string    `json:"stream"`
	Known  StreamEnd `json:"known"`
	Now    StreamEnd `json:"now"`
}

// AdoptDatabase declares that the database of cfg (restored to an earlier time,
// rebuilt, a copy, or another cluster) continues the source: an epoch begins,
// and all that the tables hold now counts as delivered, so that nothing is sent
// twice. Nothing is healed. It looks, asks go on, and does it if that says yes.
// A halted relay goes on when it looks again.
func AdoptDatabase(ctx context.Context, cfg Config, by string, goOn func(DatabaseAdoption) (bool, error)) (DatabaseAdoption, error) {
	found := DatabaseAdoption{}
	conn, err := openVerb(ctx, &cfg, "adopt")
	if err != nil {
		return found, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	do, err := found.look(ctx, conn, &cfg)
	if err != nil {
		return found, err
	}
	if yes, err := goOn(found); err != nil || !yes {
		return found, err
	}
	do.By = by
	_, err = witness.AdoptDatabase(ctx, conn, *do)
	found.Adopted = err == nil
	return found, err
}

// look fills in what PostgreSQL and the streams know.
func (a *DatabaseAdoption) look(ctx context.Context, conn *pgx.Conn, cfg *Config) (*witness.DatabaseAdoption, error) {
	if _, err := checkSchema(ctx, conn, cfg.Schema); err != nil {
		return nil, err
	}
	do := &witness.DatabaseAdoption{Schema: cfg.Schema, Source: cfg.Source, Slot: cfg.Slot, Streams: map[string]witness.StreamState{}}
	var timeline int64
	err := conn.QueryRow(ctx, `SELECT system_identifier::text, pg_current_wal_insert_lsn()::text,
		('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint FROM pg_control_system()`).Scan(&do.Identity.SystemID, &a.WALEnd, &timeline)
	if err != nil {
		return nil, fmt.Errorf("ask the database for its history (its role needs EXECUTE on pg_control_system, and it must be the primary): %w", err)
	}
	do.Identity.Timeline = uint32(timeline) //nolint:gosec // eight digits of a hexadecimal number
	epochs, err := witness.Epochs(ctx, conn, cfg.Schema, cfg.Source)
	if err != nil {
		return nil, err
	}
	w, err := witness.Read(ctx, conn, cfg.Schema, cfg.Source)
	if err != nil {
		return nil, err
	}
	do.Epoch = w.Epoch
	if len(epochs) > 0 {
		last := epochs[len(epochs)-1]
		a.Known = &History{Epoch: last.Number, SystemID: last.SystemID, Timeline: last.Timeline}
		do.Epoch = max(do.Epoch, last.Number)
	}
	if a.Gaps, err = gapsToAdopt(ctx, conn, cfg, ""); err != nil {
		return nil, err
	}
	info, err := slot.Inspect(ctx, conn, cfg.Slot)
	switch {
	case err != nil:
		return nil, err
	case info.Exists && info.Active:
		return nil, &slot.InUseError{Slot: cfg.Slot, PID: info.HolderPID, Application: info.HolderName, Since: info.HolderSince}
	case info.Exists && info.WALStatus != "lost": // a lost one is made again by the relay
		a.ConfirmedLSN = info.Confirmed.String()
	}
	if a.Unproven, err = unproven(ctx, conn, cfg); err != nil {
		return nil, err
	}
	if err := a.ends(ctx, cfg, w, do); err != nil {
		return nil, err
	}
	do.Epoch++
	a.Epoch = do.Epoch
	a.Now = History{Epoch: a.Epoch, SystemID: do.Identity.SystemID, Timeline: do.Identity.Timeline}
	return do, nil
}

// ends reads the ends of the streams. The epoch that begins is higher than that
// of any event there.
func (a *DatabaseAdoption) ends(ctx context.Context, cfg *Config, w witness.Witness, do *witness.DatabaseAdoption) error {
	routes, err := newRouter(cfg)
	if err != nil {
		return err
	}
	names := routes.Streams()
	for name := range w.Streams {
		names = appendNew(names, name)
	}
	for i, name := range names {
		known := w.Streams[name]
		do.Epoch = max(do.Epoch, known.Epoch, known.Position.Epoch)
		tail, err := endOf(ctx, cfg, name)
		if missing, ok := errors.AsType[*publish.APIError](err); ok && missing.NotFound() && i >= len(routes.Streams()) {
			continue // a stream of earlier routes that is gone
		}
		if err != nil {
			return err
		}
		now := presentState(cfg, name, tail)
		do.Epoch = max(do.Epoch, now.Position.Epoch)
		do.Streams[name] = now
		a.Streams = append(a.Streams, AdoptedStream{Stream: name, Known: endOfState(known), Now: endOfState(now)})
	}
	for name, state := range do.Streams {
		state.Epoch = do.Epoch + 1
		do.Streams[name] = state
	}
	return nil
}

func appendNew(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(slices.Clip(names), name)
}

// unproven counts the rows that the newest proof does not see.
func unproven(ctx context.Context, conn *pgx.Conn, cfg *Config) (n int64, err error) {
	last, some, err := witness.Newest(ctx, conn, cfg.Schema, cfg.Source)
	if err != nil {
		return 0, err
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		for _, t := range cfg.Tables {
			exact, err := hasXid(ctx, tx, routerTable(t))
			if err != nil {
				return err
			}
			columns := routerTable(t).Columns.Effective()
			query, args := "SELECT count(*) FROM "+pgx.Identifier{t.Schema, t.Name}.Sanitize(), []any{}
			switch {
			case some && exact:
				query += " WHERE NOT pg_visible_in_snapshot(" + pgx.Identifier{columns.Xid}.Sanitize() + ", $1::text::pg_snapshot)"
				args = append(args, last.Snapshot)
			case some && columns.CreatedAt != "":
				query += " WHERE " + pgx.Identifier{columns.CreatedAt}.Sanitize() + " > $1"
				args = append(args, last.At)
			}
			var rows int64
			if err := tx.QueryRow(ctx, query, args...).Scan(&rows); err != nil {
				return fmt.Errorf("count the rows of table %s.%s: %w", t.Schema, t.Name, err)
			}
			n += rows
		}
		return nil
	})
	return n, err
}
