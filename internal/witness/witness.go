package witness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
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

// ErrSessionLost says that another relay has taken the slot since: this one may
// write nothing any more.
var ErrSessionLost = errors.New("another relay of this source has taken over; this session is over")

// A StreamState is what is remembered of a stream.
type StreamState struct {
	Created  time.Time
	LastSeq  uint64
	Position envelope.Position // of the last live event stored; zero if none
	MsgID    string
	At       time.Time
	// From is, of a stream that others write to as well, a sequence behind
	// which every event stands that the slot may send again.
	From uint64
	// Epoch is the history in which this was noted; 0: not known.
	Epoch uint32
	// Asides says that messages that are not live may stand behind LastSeq.
	Asides bool
}

type wireState struct {
	Created  time.Time `json:"created"`
	LastSeq  uint64    `json:"last_seq"`
	Position string    `json:"position,omitempty"`
	MsgID    string    `json:"msg_id,omitempty"`
	At       time.Time `json:"at"`
	From     uint64    `json:"from,omitempty"`
	Epoch    uint32    `json:"epoch,omitempty"`
	Asides   bool      `json:"asides,omitempty"`
}

// MarshalJSON writes the position in its form on the wire.
func (s StreamState) MarshalJSON() ([]byte, error) {
	w := wireState{Created: s.Created, LastSeq: s.LastSeq, MsgID: s.MsgID, At: s.At, From: s.From, Epoch: s.Epoch, Asides: s.Asides}
	if !s.Position.IsZero() {
		w.Position = s.Position.String()
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *StreamState) UnmarshalJSON(b []byte) error {
	var w wireState
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*s = StreamState{Created: w.Created, LastSeq: w.LastSeq, MsgID: w.MsgID, At: w.At, From: w.From, Epoch: w.Epoch, Asides: w.Asides}
	if w.Position == "" {
		return nil
	}
	var err error
	s.Position, err = envelope.ParsePosition(w.Position)
	return err
}

// A Witness is one source's row.
type Witness struct {
	Exists       bool
	Slot         string
	Session      uuid.UUID
	Epoch        uint32
	ConfirmedLSN envelope.LSN
	RoutesHash   string
	Routes       []string // a line each, for people
	Streams      map[string]StreamState
	Host         string
	PID          int
	PausedAt     time.Time // zero: not paused
	UpdatedAt    time.Time
}

// table names one of our tables.
func table(schema, name string) string { return pgx.Identifier{schema, name}.Sanitize() }

// Began says whether the source has ever read from a slot. Its streams are noted
// before the first event, what it has confirmed up to a second after it.
func (w *Witness) Began() bool { return w.Exists && (w.ConfirmedLSN > 0 || len(w.Streams) > 0) }

// Read gives the witness; Exists is false where the source never ran.
func Read(ctx context.Context, q Querier, schema, source string) (Witness, error) {
	return read(ctx, q, schema, source, "")
}

func read(ctx context.Context, q Querier, schema, source, lock string) (Witness, error) {
	w := Witness{Exists: true}
	var confirmed string
	var streams []byte
	var session string
	var paused *time.Time
	err := q.QueryRow(ctx, `SELECT slot, session::text, epoch, confirmed_lsn::text, routes_hash, routes, streams, host, pid, paused_at, updated_at
		FROM `+table(schema, "witness")+` WHERE source = $1`+lock, source).
		Scan(&w.Slot, &session, &w.Epoch, &confirmed, &w.RoutesHash, &w.Routes, &streams, &w.Host, &w.PID, &paused, &w.UpdatedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return Witness{}, nil
	}
	if err != nil {
		return Witness{}, fmt.Errorf("read the witness of source %q: %w", source, err)
	}
	if paused != nil {
		w.PausedAt = *paused
	}
	if w.Session, err = uuid.Parse(session); err != nil {
		return Witness{}, fmt.Errorf("read the witness of source %q: session: %w", source, err)
	}
	if w.ConfirmedLSN, err = envelope.ParseLSN(confirmed); err != nil {
		return Witness{}, fmt.Errorf("read the witness of source %q: %w", source, err)
	}
	if err := json.Unmarshal(streams, &w.Streams); err != nil {
		return Witness{}, fmt.Errorf("read the witness of source %q: streams: %w", source, err)
	}
	return w, nil
}

// Taking says who takes over.
type Taking struct {
	Schema, Source, Slot string
	Session              uuid.UUID
	Identity             Identity
	Epoch                uint32
	// Begins is the epoch that begins with this session; nil for one that goes
	// on.
	Begins  *Epoch
	Host    string
	PID     int
	Version string
}

// Take writes a new session into the witness and gives what was there before.
// Call it while holding the slot. From its commit on, no earlier session can
// write; it waits for a write of one that is under way.
func Take(ctx context.Context, conn *pgx.Conn, t Taking) (before Witness, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if before, err = read(ctx, tx, t.Schema, t.Source, " FOR UPDATE"); err != nil {
			return err
		}
		if t.Begins != nil {
			if err := BeginEpoch(ctx, tx, t.Schema, t.Source, *t.Begins, "promotion", t.Session.String()); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `INSERT INTO `+table(t.Schema, "witness")+` AS w
			(source, slot, session, session_at, system_id, timeline, epoch, host, pid, version)
			VALUES ($1, $2, $3, clock_timestamp(), $4, $5, $6, $7, $8, $9)
			ON CONFLICT (source) DO UPDATE SET slot = excluded.slot, session = excluded.session, session_at = excluded.session_at,
				system_id = excluded.system_id, timeline = excluded.timeline, epoch = excluded.epoch,
				host = excluded.host, pid = excluded.pid, version = excluded.version`,
			t.Source, t.Slot, t.Session, t.Identity.SystemID, int64(t.Identity.Timeline), int32(t.Epoch), t.Host, t.PID, t.Version) //nolint:gosec // epochs are few
		return err
	})
	if err != nil {
		return Witness{}, fmt.Errorf("take over the witness of source %q: %w", t.Source, err)
	}
	return before, nil
}

// Writing is what is to be remembered.
type Writing struct {
	Schema, Source string
	Session        uuid.UUID
	ConfirmedLSN   envelope.LSN
	RoutesHash     string
	Routes         []string
	Streams        map[string]StreamState
}

// Write brings the witness up to date; ErrSessionLost when another session has
// taken over. It is its own transaction. Losing the last one in a crash of the
// server is harmless only where the slot's confirmed LSN is lost with it, so it
// is flushed before an LSN behind it is confirmed.
func Write(ctx context.Context, conn *pgx.Conn, w Writing) error {
	streams, err := json.Marshal(w.Streams)
	if err != nil {
		return fmt.Errorf("write the witness of source %q: %w", w.Source, err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on`); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE `+table(w.Schema, "witness")+`
			SET confirmed_lsn = greatest(confirmed_lsn, $3::text::pg_lsn), routes_hash = $4, routes = coalesce($6::text[], '{}'), streams = $5, updated_at = clock_timestamp()
			WHERE source = $1 AND session = $2`, w.Source, w.Session, w.ConfirmedLSN.String(), w.RoutesHash, streams, w.Routes)
		if err == nil && tag.RowsAffected() == 0 {
			return ErrSessionLost
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write the witness of source %q: %w", w.Source, err)
	}
	return nil
}

// LockSQL is the statement of Lock, for one that does more than that. Its
// parameters, source and session, are numbered from first on.
func LockSQL(schema string, first int) string {
	return fmt.Sprintf(`SELECT 1 FROM %s WHERE source = $%d AND session = $%d FOR SHARE`, table(schema, "witness"), first, first+1)
}

// Lock is the fence that every other write of a relay sets first, in its own
// transaction: it waits for a takeover that is under way, and gives
// ErrSessionLost after one.
func Lock(ctx context.Context, tx pgx.Tx, schema, source string, session uuid.UUID) error {
	var one int
	err := tx.QueryRow(ctx, LockSQL(schema, 1), source, session).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrSessionLost
	}
	if err != nil {
		return fmt.Errorf("lock the witness of source %q: %w", source, err)
	}
	return nil
}
