package walrelaytest_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
	"github.com/walrelay/walrelay/walrelaytest"
)

type paid struct {
	Amount int `json:"amount"`
}

func receive(ctx context.Context, tx pgx.Tx, e inbox.Event[paid]) error {
	if e.Data.Amount < 0 {
		return errors.New("an amount is not negative")
	}
	_, err := tx.Exec(ctx, `UPDATE account SET balance = balance + $1`, e.Data.Amount)
	return err
}

func consumerPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := envtest.SharedPostgres(t)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Consumer(t.Context(), cfg, migrations.Config{}, nil); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url+"&pool_max_conns=12")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE account AS SELECT 0 AS balance`); err != nil {
		t.Fatal(err)
	}
	return pool
}

func TestHandleRunsAHandlerInTheTestsOwnTransaction(t *testing.T) {
	pool := consumerPool(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is to be kept
	if err := walrelaytest.Handle(t, tx, receive, walrelaytest.Event{Type: "paid", Payload: paid{5}}); err != nil {
		t.Errorf("Handle() = %v, want no error", err)
	}
	if err := walrelaytest.Handle(t, tx, receive, walrelaytest.Event{Type: "paid", Payload: paid{-5}}); err == nil {
		t.Error("Handle() = nil, want the handler's error")
	}
	var balance int
	if err := tx.QueryRow(t.Context(), `SELECT balance FROM account`).Scan(&balance); err != nil || balance != 5 {
		t.Errorf("balance = %d, %v, want 5", balance, err)
	}
}

func TestDeliveriesAreAppliedOnce(t *testing.T) {
	pool := consumerPool(t)
	c, err := inbox.New(inbox.Config{Name: "bank", DB: pool})
	if err != nil {
		t.Fatal(err)
	}
	inbox.On(c, "paid", receive)
	balance := func(ctx context.Context) (n int, err error) {
		err = pool.QueryRow(ctx, `SELECT balance FROM account`).Scan(&n)
		return n, err
	}
	walrelaytest.DeliverTwice(t, c, walrelaytest.Event{Type: "paid", Payload: paid{5}})
	walrelaytest.AssertOnce(t, c, walrelaytest.Event{Type: "paid", Payload: paid{7}}, 10, 12, balance)
	got := failure(t.Context(), func(t testing.TB) {
		walrelaytest.Deliver(t, c, walrelaytest.Event{Type: "paid", Payload: paid{-1}})
	})
	if !strings.Contains(got, "not negative") {
		t.Errorf("Deliver() fails with %q, want the handler's error", got)
	}
	got = failure(t.Context(), func(t testing.TB) {
		walrelaytest.AssertOnce(t, c, walrelaytest.Event{Type: "paid", Payload: paid{1}}, 3, 99, balance)
	})
	if !strings.Contains(got, "= 13, want 99") {
		t.Errorf("AssertOnce() fails with %q, want both numbers", got)
	}
}
