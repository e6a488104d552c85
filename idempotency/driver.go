package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// querier runs statements, in a transaction or each in its own.
type querier interface {
	// exec gives the number of rows.
	exec(ctx context.Context, statement string, args ...any) (int64, error)
	// query calls each for every row.
	query(ctx context.Context, statement string, args []any, each func(scan func(...any) error) error) error
}

// driver is what a Store needs of a pool. Both drivers behave the same.
type driver interface {
	querier
	// inTx runs f in a transaction that commits if f returns nil.
	inTx(ctx context.Context, f func(querier) error) error
}

type pgxQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func pgxQuery(ctx context.Context, q pgxQuerier, statement string, args []any, each func(func(...any) error) error) error {
	rows, err := q.Query(ctx, statement, args...)
	if err != nil {
		return err //nolint:wrapcheck // the caller says what was being done
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

type pgxDriver struct{ pool *pgxpool.Pool }

func (d pgxDriver) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := d.pool.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (d pgxDriver) query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) error {
	return pgxQuery(ctx, d.pool, statement, args, each)
}

func (d pgxDriver) inTx(ctx context.Context, f func(querier) error) error {
	return pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return f(pgxTx{tx}) })
}

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) error {
	return pgxQuery(ctx, t.tx, statement, args, each)
}

// sqlRunner is *sql.DB and *sql.Tx.
type sqlRunner interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

type sqlQuerier struct{ sqlRunner }

func (q sqlQuerier) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := q.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err //nolint:wrapcheck // the caller says what was being done
	}
	return result.RowsAffected()
}

func (q sqlQuerier) query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) (err error) {
	rows, err := q.QueryContext(ctx, statement, args...)
	if err != nil {
		return err //nolint:wrapcheck // the caller says what was being done
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

type sqlDriver struct {
	sqlQuerier
	db *sql.DB
}

func newSQLDriver(db *sql.DB) sqlDriver { return sqlDriver{sqlQuerier{db}, db} }

func (d sqlDriver) inTx(ctx context.Context, f func(querier) error) (err error) {
	tx, err := d.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if rerr := tx.Rollback(); rerr != nil && !errors.Is(rerr, sql.ErrTxDone) {
			err = errors.Join(err, rerr)
		}
	}()
	if err := f(sqlQuerier{tx}); err != nil {
		return err
	}
	return tx.Commit()
}

// sqlState gives the SQLSTATE of an error, of whichever driver.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}
