package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walrelay/walrelay/idempotency"
)

func orders(t testing.TB) string {
	t.Helper()
	url := database(t)
	execute(t, url, `CREATE SCHEMA shop`)
	execute(t, url, `CREATE TABLE shop.orders (tenant int, id text, amount numeric, "Note" text, at timestamptz, body jsonb, PRIMARY KEY (tenant, id))`)
	return url
}

func order(amount int, note any) idempotency.Record {
	return idempotency.Record{
		Table: "shop.orders",
		Key:   map[string]any{"tenant": 1, "id": "a"},
		Values: map[string]any{
			"amount": amount, "Note": note, "at": time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC), "body": `{"b": 1, "a": 2}`,
		},
	}
}

func TestACreateIsRepeatedOrRefused(t *testing.T) {
	t.Parallel()
	url := orders(t)
	pool, db := newPool(t, url), newDB(t, url)
	create := map[string]func(idempotency.Record) (bool, error){
		"pgx": func(r idempotency.Record) (created bool, err error) {
			err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				created, err = idempotency.CreateOrMatch(t.Context(), tx, r)
				if errors.Is(err, idempotency.ErrMismatch) {
					// The transaction is still fit for use.
					if _, perr := tx.Exec(t.Context(), `SELECT 1`); perr != nil {
						t.Errorf("after a mismatch: %v", perr)
					}
				}
				return err
			})
			return created, err
		},
		"database/sql": func(r idempotency.Record) (bool, error) {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return false, err
			}
			defer func() { _ = tx.Rollback() }()
			created, err := idempotency.CreateOrMatchSQL(t.Context(), tx, r)
			return created, errors.Join(err, tx.Commit())
		},
	}
	for name, create := range create {
		execute(t, url, `TRUNCATE shop.orders`)
		for i, want := range []bool{true, false} {
			if created, err := create(order(5, nil)); err != nil || created != want {
				t.Errorf("%s: call %d = %t, %v, want %t", name, i, created, err, want)
			}
		}
		_, err := create(order(6, "n"))
		var mismatch *idempotency.MismatchError
		if !errors.Is(err, idempotency.ErrMismatch) || !errors.As(err, &mismatch) {
			t.Fatalf("%s: other values: %v, want a MismatchError", name, err)
		}
		if diff := cmp.Diff([]string{"Note", "amount"}, mismatch.Columns); diff != "" {
			t.Errorf("%s: columns (-want +got):\n%s", name, diff)
		}
	}
}

func TestManyCreatesAtOnceCreateOne(t *testing.T) {
	t.Parallel()
	url := orders(t)
	pool := newPool(t, url)
	var created atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				ok, err := idempotency.CreateOrMatch(t.Context(), tx, order(5, "n"))
				if ok {
					created.Add(1)
				}
				return err
			}); err != nil {
				t.Errorf("CreateOrMatch: %v", err)
			}
		})
	}
	all.Wait()
	if created.Load() != 1 {
		t.Errorf("%d creates say that they created, want 1", created.Load())
	}
}

func TestARecordThatCannotBeCreatedNamesTheFix(t *testing.T) {
	t.Parallel()
	url := orders(t)
	pool := newPool(t, url)
	for want, record := range map[string]idempotency.Record{
		"unique constraint": {Table: "shop.orders", Key: map[string]any{"id": "a"}},
		"must be set":       {Table: "shop.orders"},
		"shop.nowhere":      {Table: "shop.nowhere", Key: map[string]any{"id": "a"}},
	} {
		if err := inTx(t, pool, func(ctx context.Context, tx pgx.Tx) error {
			_, err := idempotency.CreateOrMatch(ctx, tx, record)
			return err
		}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error about %s", err, want)
		}
	}
	if _, err := idempotency.CreateOrMatch(t.Context(), nil, order(1, nil)); err == nil {
		t.Error("CreateOrMatch without a transaction is taken")
	}
	if _, err := idempotency.CreateOrMatchSQL(t.Context(), nil, order(1, nil)); err == nil {
		t.Error("CreateOrMatchSQL without a transaction is taken")
	}
}

func inTx(t testing.TB, pool *pgxpool.Pool, f func(context.Context, pgx.Tx) error) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return f(t.Context(), tx) })
}
