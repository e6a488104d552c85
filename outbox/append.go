package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Append writes events to walrelay.outbox inside tx, in their order, in one
// round trip. No events are no statement.
//
// An [*InvalidError] comes before anything is sent; tx is then as it was. Every
// other error has aborted tx: roll it back.
func Append(ctx context.Context, tx pgx.Tx, events ...Event) error {
	return Table{}.Append(ctx, tx, events...)
}

// AppendSQL is [Append] for database/sql, with any driver for PostgreSQL.
func AppendSQL(ctx context.Context, tx *sql.Tx, events ...Event) error {
	return Table{}.AppendSQL(ctx, tx, events...)
}

// Append is the package's [Append] for this table.
func (t Table) Append(ctx context.Context, tx pgx.Tx, events ...Event) error {
	if tx == nil {
		return fmt.Errorf("append to %s: %w", t, errNoTx)
	}
	return t.append(ctx, events, func(statement string, args []any) error {
		_, err := tx.Exec(ctx, statement, args...)
		return err //nolint:wrapcheck // append says what was being done
	})
}

// AppendSQL is the package's [AppendSQL] for this table.
func (t Table) AppendSQL(ctx context.Context, tx *sql.Tx, events ...Event) error {
	if tx == nil {
		return fmt.Errorf("append to %s: %w", t, errNoTx)
	}
	return t.append(ctx, events, func(statement string, args []any) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err //nolint:wrapcheck // append says what was being done
	})
}

var errNoTx = errors.New("the transaction is nil; begin one and change your own rows in it too")

// append is the same for both drivers: the arguments are texts, which each
// driver sends alike.
func (t Table) append(ctx context.Context, events []Event, exec func(string, []any) error) error {
	if len(events) == 0 {
		return nil
	}
	t = t.filled()
	b := newBatch(t, len(events))
	var invalid InvalidError
	for i := range events {
		problems, err := b.add(ctx, &events[i])
		if err != nil {
			return fmt.Errorf("append to %s: %w", t, err)
		}
		for _, p := range problems {
			p.Event, p.Type = i, events[i].Type
			invalid.Problems = append(invalid.Problems, p)
		}
	}
	if len(invalid.Problems) > 0 {
		invalid.Table, invalid.Events = t.String(), len(events)
		return &invalid
	}
	if err := exec(t.insert(), b.args()); err != nil {
		return t.explain(err)
	}
	return nil
}

// explain adds the fix to those errors of the server that have one. Every
// driver for PostgreSQL gives its errors an SQLState method.
func (t Table) explain(err error) error {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return fmt.Errorf("append to %s: %w", t, err)
	}
	switch state.SQLState() {
	case "42P01", "3F000": // undefined_table, invalid_schema_name
		return fmt.Errorf("append to %s: the table is missing in this database; run `walrelay migrate`: %w", t, err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("append to %s: this role may not insert; GRANT USAGE ON SCHEMA %s, GRANT INSERT ON %s: %w",
			t, quoteName(t.Schema), t, err)
	case "23505": // unique_violation
		return fmt.Errorf("append to %s: an event with one of these ids is in the outbox already; give a new event a new id, and do not append the same one twice: %w",
			t, err)
	}
	return fmt.Errorf("append to %s: %w", t, err)
}
