package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A Tx is the transaction of a handler: exactly one of its fields is set, by
// the kind of the consumer's database.
type Tx struct {
	Pgx pgx.Tx
	SQL *sql.Tx
}

// database is what a Consumer needs of a pool. Both drivers behave the same.
type database interface {
	// begin opens a transaction. The server may hear of it only with the
	// first statement.
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
