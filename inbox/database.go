package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A Tx is the transaction of a handler: exactly one of its fields is set, by
// the kind of the consumer's database.
type Tx struct {
	Pgx pgx.Tx
	SQL *sql.Tx
}

// database is what a Consumer needs of a pool. Both drivers behave the same.
type database interface {
	// begin opens a transaction.
	begin(ctx context.Context) (unit, error)
}

// A unit is one open transaction.
type unit interface {
	exec(ctx context.Context, statement string, args ...any) (int64, error)
	// query calls each for every row, and ends with the rows closed.
	query(ctx context.Context, statement string, args []any, each func(scan func(...any) error) error) error
	// commit ends the unit. Where it fails, lost tells whether the outcome
	// is known.
	commit(ctx context.Context) error
	// rollback ends the unit and says whether its connection survived. It
	// does nothing after commit.
	rollback(ctx context.Context) bool
	// server gives when the connection's server started; known is false
	// where that cannot be told for less than a round trip.
	server(ctx context.Context) (started string, known bool, err error)
	// handle is what handlers are given.
	handle() Tx
	// ended is the misdeed of the last handler, if it wanted to end the
	// transaction.
	ended() error
}

type pgxDatabase struct {
	pool    *pgxpool.Pool
	options pgx.TxOptions
}

func newPgxDatabase(pool *pgxpool.Pool, level sql.IsolationLevel) (*pgxDatabase, error) {
	d := &pgxDatabase{pool: pool}
	switch level { //nolint:exhaustive // PostgreSQL has these three
	case sql.LevelDefault:
	case sql.LevelReadCommitted:
		d.options.IsoLevel = pgx.ReadCommitted
	case sql.LevelRepeatableRead:
		d.options.IsoLevel = pgx.RepeatableRead
	case sql.LevelSerializable:
		d.options.IsoLevel = pgx.Serializable
	default:
		return nil, fmt.Errorf("isolation %s: PostgreSQL has read committed, repeatable read and serializable", level)
	}
	return d, nil
}

// durable makes transactions wait for the disk, unless the database asks for
// more than that already.
func (d *pgxDatabase) durable(ctx context.Context) error {
	var setting string
	if err := d.pool.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&setting); err != nil {
		return fmt.Errorf("read synchronous_commit: %w", err)
	}
	switch setting {
	case "remote_apply", "remote_write":
		return nil
	}
	begin := "begin"
	if d.options.IsoLevel != "" {
		begin += " isolation level " + string(d.options.IsoLevel)
	}
	// Both are one message.
	d.options.BeginQuery = begin + "; set local synchronous_commit = on"
	return nil
}

func (d *pgxDatabase) begin(ctx context.Context) (unit, error) {
	tx, err := d.pool.BeginTx(ctx, d.options)
	if err != nil {
		return nil, &dbError{fmt.Errorf("begin a transaction: %w", err)}
	}
	return &pgxUnit{tx: tx, guard: &guardedTx{Tx: tx}}, nil
}

type pgxUnit struct {
	tx    pgx.Tx
	guard *guardedTx
}

func (u *pgxUnit) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := u.tx.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (u *pgxUnit) query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) error {
	rows, err := u.tx.Query(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// serverKey is where a connection keeps when its server started: a server that
// restarts, or another one, never has the same connection.
const serverKey = scope + ".server"

func (u *pgxUnit) server(ctx context.Context) (string, bool, error) {
	data := u.tx.Conn().PgConn().CustomData()
	if started, ok := data[serverKey].(string); ok {
		return started, true, nil
	}
	var started string
	if err := u.tx.QueryRow(ctx, `SELECT pg_postmaster_start_time()::text`).Scan(&started); err != nil {
		return "", false, fmt.Errorf("ask when the server started: %w", err)
	}
	data[serverKey] = started
	return started, true, nil
}

func (u *pgxUnit) commit(ctx context.Context) error { return u.tx.Commit(ctx) }

func (u *pgxUnit) rollback(ctx context.Context) bool {
	// The connection itself must not be asked: it may be another's by now.
	err := u.tx.Rollback(ctx)
	return err == nil || errors.Is(err, pgx.ErrTxClosed)
}

func (u *pgxUnit) handle() Tx { return Tx{Pgx: u.guard} }

func (u *pgxUnit) ended() error {
	err := u.guard.misdeed
	u.guard.misdeed = nil
	return err
}

// guardedTx is the transaction in a handler's hands: everything but its end.
type guardedTx struct {
	pgx.Tx
	misdeed error
}

func (g *guardedTx) Commit(context.Context) error {
	g.misdeed = ErrHandlerEnds
	return ErrHandlerEnds
}

func (g *guardedTx) Rollback(context.Context) error {
	g.misdeed = ErrHandlerEnds
	return ErrHandlerEnds
}

type sqlDatabase struct {
	db      *sql.DB
	options *sql.TxOptions
}

func (d *sqlDatabase) begin(ctx context.Context) (unit, error) {
	tx, err := d.db.BeginTx(ctx, d.options)
	if err != nil {
		return nil, &dbError{fmt.Errorf("begin a transaction: %w", err)}
	}
	return &sqlUnit{tx: tx}, nil
}

type sqlUnit struct{ tx *sql.Tx }

func (u *sqlUnit) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := u.tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (u *sqlUnit) query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) error {
	rows, err := u.tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (*sqlUnit) server(context.Context) (string, bool, error) { return "", false, nil }

func (u *sqlUnit) commit(context.Context) error { return u.tx.Commit() }

func (u *sqlUnit) rollback(context.Context) bool {
	err := u.tx.Rollback()
	return err == nil || errors.Is(err, sql.ErrTxDone)
}

func (u *sqlUnit) handle() Tx { return Tx{SQL: u.tx} }

func (*sqlUnit) ended() error { return nil }
