package witness

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
)

// A DatabaseAdoption says that another database continues a source.
type DatabaseAdoption struct {
	Schema, Source, Slot string
	// Identity is that of the database, Epoch the number of the epoch that
	// begins: higher than any that a stream or the database knows.
	Identity Identity
	Epoch    uint32
	// Streams are the ends of the streams of now.
	Streams map[string]StreamState
	By      string
}

// AdoptDatabase begins an epoch in which all that the database holds now counts
// as delivered: nothing of it is sent again or looked for. Open gaps are
// accepted. Any session that was there before can write nothing any more.
func AdoptDatabase(ctx context.Context, conn *pgx.Conn, a DatabaseAdoption) (closed []int64, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		closed, err = a.write(ctx, tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("adopt this database for source %q: %w", a.Source, err)
	}
	return closed, nil
}

func (a *DatabaseAdoption) write(ctx context.Context, tx pgx.Tx) (closed []int64, err error) {
	if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '20s'`); err != nil {
		return nil, err
	}
	if _, err := read(ctx, tx, a.Schema, a.Source, " FOR UPDATE"); err != nil {
		return nil, err
	}
	// The epoch's time comes before the snapshot: rows that came with a dump are
	// older than it, and those that are written from here on are not.
	tag, err := tx.Exec(ctx, `INSERT INTO `+table(a.Schema, "epoch")+` (source, number, system_id, timeline, first_lsn, reason, begun_by)
		VALUES ($1, $2, $3, $4, pg_current_wal_insert_lsn(), $5, $6) ON CONFLICT (source, number) DO NOTHING`,
		a.Source, int64(a.Epoch), a.Identity.SystemID, int64(a.Identity.Timeline), reasonAdopted, a.By)
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("epoch %d has begun meanwhile; run the command again", a.Epoch)
	}
	if err != nil {
		return nil, err
	}
	p := Proven{Epoch: a.Epoch}
	if p.Snapshot, p.LSN, err = Capture(ctx, tx); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `UPDATE `+table(a.Schema, "gap")+` SET state = $2, ended_at = clock_timestamp(),
		detail = detail || jsonb_build_object('how', concat_ws('; ', detail->>'how', 'accepted by ' || $3::text || ': another database continues the source'))
		WHERE source = $1 AND ended_at IS NULL RETURNING id`, a.Source, GapAccepted, a.By)
	if err != nil {
		return nil, err
	}
	if closed, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return nil, err
	}
	streams, err := json.Marshal(a.Streams)
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, `INSERT INTO `+table(a.Schema, "witness")+` AS w
		(source, slot, session, session_at, system_id, timeline, epoch, confirmed_lsn, streams, host, pid, version)
		VALUES ($1, $2, $3, clock_timestamp(), $4, $5, $6, $7::text::pg_lsn, $8, '', 0, '')
		ON CONFLICT (source) DO UPDATE SET slot = excluded.slot, session = excluded.session, session_at = excluded.session_at, system_id = excluded.system_id,
			timeline = excluded.timeline, epoch = excluded.epoch, confirmed_lsn = excluded.confirmed_lsn, streams = excluded.streams`,
		a.Source, a.Slot, uuid.New(), a.Identity.SystemID, int64(a.Identity.Timeline), int64(a.Epoch), p.LSN.String(), streams)
	if err != nil {
		return nil, err
	}
	// Proofs of an earlier history rest on LSNs and transactions that mean
	// nothing here.
	if _, err := tx.Exec(ctx, `DELETE FROM `+table(a.Schema, "proven")+` WHERE source = $1`, a.Source); err != nil {
		return nil, err
	}
	return closed, prove(ctx, tx, a.Schema, a.Source, p, []byte("{}"))
}

// AdoptedAt gives where the history of now was adopted: what was committed below
// is not to be sent. 0 where it never was. Epochs come oldest first.
func AdoptedAt(epochs []Epoch) envelope.LSN {
	if e := adopted(epochs); e != nil {
		return e.FirstLSN
	}
	return 0
}

// adopted gives the epoch that began by an operator's word and from which the
// newest one comes by promotions, if by any; nil where there is none.
func adopted(epochs []Epoch) *Epoch {
	for i := len(epochs) - 1; i >= 0; i-- {
		if epochs[i].Adopted {
			return &epochs[i]
		}
		if i > 0 && !epochs[i].follows(epochs[i-1]) {
			return nil
		}
	}
	return nil
}

// A Dump tells rows that came with a dump of another cluster: their xids are
// that cluster's and mean nothing here.
type Dump struct {
	xmax uint64
	at   time.Time
}

// DumpOf reads what tells them, for a database that was adopted. Elsewhere no
// row is of a dump.
func DumpOf(ctx context.Context, q Querier, schema, source string, epochs []Epoch) (Dump, error) {
	e := adopted(epochs)
	if e == nil {
		return Dump{}, nil
	}
	d := Dump{at: e.At}
	var text string
	err := q.QueryRow(ctx, `SELECT coalesce((SELECT pg_snapshot_xmax(snapshot)::text FROM `+table(schema, "proven")+`
		WHERE source = $1 AND epoch = $2 AND streams = '{}' ORDER BY id LIMIT 1), '0')`, source, int64(e.Number)).Scan(&text)
	if err == nil {
		d.xmax, err = strconv.ParseUint(text, 10, 64)
	}
	if err != nil {
		return Dump{}, fmt.Errorf("read where epoch %d of source %q began: %w", e.Number, source, err)
	}
	return d, nil
}

// Has says whether a row is of a dump: older than the adoption, by a transaction
// that had not begun then.
func (d Dump) Has(xid uint64, created time.Time) bool {
	return d.xmax != 0 && xid >= d.xmax && !created.IsZero() && created.Before(d.at)
}
