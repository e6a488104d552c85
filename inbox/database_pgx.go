package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgxDatabase sends BEGIN together with the first statement: of the four round
// trips of a small event that saves one.
type pgxDatabase struct {
	pool    *pgxpool.Pool
	options pgx.TxOptions
	sync    bool // whether transactions are made to wait for the disk
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
	d.sync = setting != "remote_apply" && setting != "remote_write"
	return nil
}

func (d *pgxDatabase) begin(ctx context.Context) (unit, error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, &dbError{fmt.Errorf("begin a transaction: %w", err)}
	}
	return &pgxUnit{d: d, conn: conn}, nil
}

type pgxUnit struct {
	d     *pgxDatabase
	conn  *pgxpool.Conn
	tx    pgx.Tx // nil before the first statement
	over  bool
	guard *guardedTx
}

// first opens the transaction and sends its first statement, whose result is
// the next to be read.
func (u *pgxUnit) first(ctx context.Context, statement string, args []any) (pgx.BatchResults, error) {
	var b pgx.Batch
	b.BeginTx(u.d.options)
	if u.d.sync {
		b.Queue("set local synchronous_commit = on")
	}
	b.Queue(statement, args...)
	results := u.conn.SendBatch(ctx, &b)
	u.tx = results.Tx()
	u.guard = &guardedTx{Tx: u.tx}
	for range b.Len() - 1 {
		if _, err := results.Exec(); err != nil {
			_ = results.Close() // the same error
			return nil, &dbError{fmt.Errorf("begin a transaction: %w", err)}
		}
	}
	return results, nil
}

func (u *pgxUnit) exec(ctx context.Context, statement string, args ...any) (n int64, err error) {
	if u.tx != nil {
		tag, err := u.tx.Exec(ctx, statement, args...)
		return tag.RowsAffected(), err
	}
	results, err := u.first(ctx, statement, args)
	if err != nil {
		return 0, err
	}
	tag, err := results.Exec()
	if closed := results.Close(); err == nil {
		err = closed
	}
	return tag.RowsAffected(), err
}

func (u *pgxUnit) query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) (err error) {
	var rows pgx.Rows
	if u.tx != nil {
		rows, err = u.tx.Query(ctx, statement, args...)
	} else {
		var results pgx.BatchResults
		if results, err = u.first(ctx, statement, args); err != nil {
			return err
		}
		defer func() {
			if closed := results.Close(); err == nil {
				err = closed
			}
		}()
		rows, err = results.Query()
	}
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
	data := u.conn.Conn().PgConn().CustomData()
	if started, ok := data[serverKey].(string); ok {
		return started, true, nil
	}
	var started string
	err := u.query(ctx, `SELECT pg_postmaster_start_time()::text`, nil, func(scan func(...any) error) error { return scan(&started) })
	if err != nil {
		return "", false, fmt.Errorf("ask when the server started: %w", err)
	}
	data[serverKey] = started
	return started, true, nil
}

func (u *pgxUnit) commit(ctx context.Context) error {
	if u.over {
		return pgx.ErrTxClosed
	}
	u.over = true
	defer u.conn.Release()
	if u.tx == nil {
		return nil
	}
	return u.tx.Commit(ctx)
}

// rollback must not look at the connection once it is over: it may be another's
// by then.
func (u *pgxUnit) rollback(ctx context.Context) bool {
	if u.over {
		return true
	}
	u.over = true
	defer u.conn.Release()
	if u.tx != nil {
		if err := u.tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			return false
		}
	}
	return !u.conn.Conn().IsClosed()
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
