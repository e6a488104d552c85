package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A Record is a row whose key the client has chosen.
type Record struct {
	// Table is the table's name, or schema.table, without quotes.
	Table string
	// Key are the columns by which the row is found. They need a primary key
	// or a unique constraint of exactly these columns.
	Key map[string]any
	// Values are the other columns to write, and to compare on a repeat.
	// Values are compared as they are given: round what the column would
	// round. A column of type json cannot be compared; make it jsonb.
	Values map[string]any
}

// A MismatchError says that the row is there with other values. It matches
// [ErrMismatch].
type MismatchError struct {
	// Table has the row.
	Table string
	// Columns are those that differ, in order.
	Columns []string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("table %s has a row of that key whose %s differs: %v; use a new id for a new thing",
		e.Table, strings.Join(e.Columns, ", "), ErrMismatch)
}

// Is makes errors.Is match ErrMismatch.
func (e *MismatchError) Is(target error) bool { return target == ErrMismatch }

// CreateOrMatch inserts a row inside tx, and says whether it did: false is a
// repeat, with the same values. Other values are a [*MismatchError]. None of
// these aborts the transaction. Only if created is true do the other changes of
// the request belong into tx, an appended event for example.
//
// At repeatable read and above a row that was committed after the transaction
// began is a serialization failure, as always there: run the transaction again.
func CreateOrMatch(ctx context.Context, tx pgx.Tx, r Record) (created bool, err error) {
	if tx == nil {
		return false, fmt.Errorf("create a row of %s: %w", r.Table, errNoTx)
	}
	return createOrMatch(ctx, pgxTx{tx}, r)
}

// CreateOrMatchSQL is [CreateOrMatch] for database/sql.
func CreateOrMatchSQL(ctx context.Context, tx *sql.Tx, r Record) (created bool, err error) {
	if tx == nil {
		return false, fmt.Errorf("create a row of %s: %w", r.Table, errNoTx)
	}
	return createOrMatch(ctx, sqlQuerier{tx}, r)
}

var errNoTx = errors.New("the transaction is nil; begin one")

func createOrMatch(ctx context.Context, q querier, r Record) (bool, error) {
	if len(r.Key) == 0 || r.Table == "" {
		return false, errors.New("create a row: Record.Table and Record.Key must be set")
	}
	keys := slices.Sorted(maps.Keys(r.Key))
	values := slices.Sorted(maps.Keys(r.Values))
	// A row that goes away between insert and comparison is rare twice over.
	for range conflicts {
		created, err := r.create(ctx, q, keys, values)
		if err != nil || created {
			return created, err
		}
		differ, found, err := r.compare(ctx, q, keys, values)
		switch {
		case err != nil:
			return false, err
		case !found:
			continue
		case len(differ) > 0:
			return false, &MismatchError{Table: r.Table, Columns: differ}
		}
		return false, nil
	}
	return false, fmt.Errorf("create a row of %s: the row comes and goes with each attempt; see who deletes it", r.Table)
}

func (r Record) create(ctx context.Context, q querier, keys, values []string) (bool, error) {
	var columns, places []string
	var args []any
	add := func(name string, value any) {
		args = append(args, value)
		columns = append(columns, quote(name))
		places = append(places, "$"+strconv.Itoa(len(args)))
	}
	for _, name := range keys {
		add(name, r.Key[name])
	}
	for _, name := range values {
		add(name, r.Values[name])
	}
	n, err := q.exec(ctx, `INSERT INTO `+r.table()+` (`+strings.Join(columns, ", ")+`) VALUES (`+strings.Join(places, ", ")+`)
ON CONFLICT (`+strings.Join(columns[:len(keys)], ", ")+`) DO NOTHING`, args...)
	if err != nil {
		if sqlState(err) == "42P10" { // invalid_column_reference
			return false, fmt.Errorf("create a row of %s: there is no unique constraint of exactly the columns %s; add one: %w",
				r.Table, strings.Join(keys, ", "), err)
		}
		return false, fmt.Errorf("create a row of %s: %w", r.Table, err)
	}
	return n == 1, nil
}

// compare lets PostgreSQL compare, by the types of the columns.
func (r Record) compare(ctx context.Context, q querier, keys, values []string) (differ []string, found bool, err error) {
	var where []string
	var args []any
	place := func(value any) string {
		args = append(args, value)
		return "$" + strconv.Itoa(len(args))
	}
	for _, name := range keys {
		where = append(where, quote(name)+" = "+place(r.Key[name]))
	}
	same := []string{"true"}
	for _, name := range values {
		same = append(same, quote(name)+" IS NOT DISTINCT FROM "+place(r.Values[name]))
	}
	equal := make([]bool, len(same))
	into := make([]any, len(same))
	for i := range equal {
		into[i] = &equal[i]
	}
	err = q.query(ctx, `SELECT `+strings.Join(same, ", ")+` FROM `+r.table()+` WHERE `+strings.Join(where, " AND "), args,
		func(scan func(...any) error) error {
			found = true
			return scan(into...)
		})
	if err != nil {
		return nil, false, fmt.Errorf("compare with the row of %s: %w", r.Table, err)
	}
	for i, name := range values {
		if !equal[i+1] {
			differ = append(differ, name)
		}
	}
	return differ, found, nil
}

func (r Record) table() string {
	schema, name, ok := strings.Cut(r.Table, ".")
	if !ok {
		return quote(r.Table)
	}
	return quote(schema) + "." + quote(name)
}
