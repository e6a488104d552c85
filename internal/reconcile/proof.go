package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/witness"
)

// A moment is a snapshot with the places in the write-ahead log around it.
type moment struct {
	snapshot string       // as pg_current_snapshot() gives it
	before   envelope.LSN // what is committed behind it is newer than the snapshot, but for what was just becoming visible
	after    envelope.LSN // whatever the snapshot sees was committed before it
	at       time.Time    // by the database's clock
	system   walSizes
}

type walSizes struct{ page, segment uint64 }

// begin opens the transaction whose snapshot is compared.
func begin(ctx context.Context, conn *pgx.Conn) (pgx.Tx, moment, error) {
	var m moment
	fail := func(err error) (pgx.Tx, moment, error) {
		return nil, m, fmt.Errorf("take a snapshot of the outbox: %w", err)
	}
	var recovery bool
	if err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&recovery); err != nil {
		return fail(err)
	}
	if recovery {
		return fail(errors.New("this server is a standby; connect to the primary, whose slot tells what was delivered"))
	}
	var before, after string
	err := conn.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text,
		(SELECT setting::bigint FROM pg_settings WHERE name = 'wal_block_size'),
		(SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size')`).Scan(&before, &m.system.page, &m.system.segment)
	if err != nil {
		return fail(err)
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fail(err)
	}
	// The snapshot is taken before the columns are computed.
	err = tx.QueryRow(ctx, `SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, clock_timestamp()`).Scan(&m.snapshot, &after, &m.at)
	if err == nil {
		m.before, err = envelope.ParseLSN(before)
	}
	if err == nil {
		m.after, err = envelope.ParseLSN(after)
	}
	if err != nil {
		return fail(errors.Join(err, tx.Rollback(ctx)))
	}
	m.after = witness.RecordEnd(m.after, m.system.page, m.system.segment)
	return tx, m, nil
}

// A proof says which rows of the snapshot were delivered.
type proof struct {
	// confirmed says that all were.
	confirmed bool
	why       string // why not
	// snapshot is the newest proven one, taken at the time at; empty if none.
	snapshot string
	at       time.Time
}

// newestProven reads the newest proven snapshot of the source's present history.
func newestProven(ctx context.Context, conn *pgx.Conn, schema, source string) (p proof, err error) {
	err = conn.QueryRow(ctx, `SELECT snapshot::text, at FROM `+pgx.Identifier{schema, "proven"}.Sanitize()+` p
		WHERE source = $1 AND epoch = (SELECT max(number) FROM `+pgx.Identifier{schema, "epoch"}.Sanitize()+` WHERE source = $1)
		ORDER BY id DESC LIMIT 1`, source).Scan(&p.snapshot, &p.at)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("read the proven snapshots of source %q: %w; walrelay migrate makes what is missing", source, err)
	}
	return p, nil
}

// leftAlone is how long a slot may be held by nobody before nobody is waited
// for: a relay may be starting.
const leftAlone = 3 * time.Second

// confirm waits until the slot's confirmed LSN passes one, and says why it did
// not.
func confirm(ctx context.Context, conn *pgx.Conn, slot string, wanted envelope.LSN, patience time.Duration, show func(envelope.LSN)) (why string, err error) {
	began, held := time.Now(), time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var text string
		var active bool
		err := conn.QueryRow(ctx, `SELECT coalesce(confirmed_flush_lsn, '0/0')::text, active FROM pg_replication_slots WHERE slot_name = $1`, slot).
			Scan(&text, &active)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Sprintf("slot %q does not exist", slot), nil
		}
		if err != nil {
			return "", fmt.Errorf("look at slot %q: %w", slot, err)
		}
		confirmed, err := envelope.ParseLSN(text)
		if err != nil {
			return "", fmt.Errorf("look at slot %q: %w", slot, err)
		}
		show(confirmed)
		if active {
			held = time.Now()
		}
		switch {
		case confirmed >= wanted:
			return "", nil
		case time.Since(held) > leftAlone:
			return fmt.Sprintf("no relay holds slot %q", slot), nil
		case time.Since(began) > patience:
			return fmt.Sprintf("within %v the relay has confirmed %v and not yet %v", patience, confirmed, wanted), nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-tick.C:
		}
	}
}
