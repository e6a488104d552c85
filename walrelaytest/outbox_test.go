package walrelaytest_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
	"github.com/walrelay/walrelay/outbox"
	"github.com/walrelay/walrelay/walrelaytest"
)

// A failing is a test that notes its failure instead of failing.
type failing struct {
	testing.TB
	ctx     context.Context
	message string
}

func (f *failing) Helper()                  {}
func (f *failing) Context() context.Context { return f.ctx }
func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure gives the message of a helper that failed, and nothing if it passed.
func failure(ctx context.Context, f func(t testing.TB)) string {
	t := &failing{ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(t)
	}()
	<-done
	return t.message
}

func outboxTx(t *testing.T) (pgx.Tx, string) {
	t.Helper()
	url := envtest.SharedPostgres(t)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), cfg, migrations.Config{SchemaOnly: true}, nil); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx, url
}

func TestOnlyEventsOfTheTransactionItselfCount(t *testing.T) {
	t.Parallel()
	tx, url := outboxTx(t)
	event := outbox.Event{AggregateType: "order", AggregateID: "1", Type: "order.placed", Payload: 1}
	if err := outbox.Append(t.Context(), tx, event); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	second, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Rollback() }()
	walrelaytest.AssertNothingAppendedSQL(t, second, walrelaytest.Match{})
	if _, err := second.ExecContext(t.Context(), `SAVEPOINT s`); err != nil {
		t.Fatal(err)
	}
	if err := outbox.AppendSQL(t.Context(), second, event); err != nil {
		t.Fatal(err)
	}
	walrelaytest.AssertAppendedSQL(t, second, walrelaytest.Match{AggregateID: "1"})
}

func TestAMatchComparesWhatItNames(t *testing.T) {
	t.Parallel()
	tx, _ := outboxTx(t)
	if err := outbox.Append(t.Context(), tx,
		outbox.Event{AggregateType: "order", AggregateID: "1", Type: "order.placed", Payload: json.RawMessage(`{"n": 12345678901234567890, "s": "x"}`)}.WithHeader("Tenant", "a"),
		outbox.Event{AggregateType: "order", AggregateID: "2", Type: "order.paid"},
	); err != nil {
		t.Fatal(err)
	}
	for _, m := range []walrelaytest.Match{
		{AggregateID: "1"},
		{Type: "order.paid", AggregateType: "order"},
		{Count: 2},
		{Payload: json.RawMessage(`{"s":"x","n":12345678901234567890}`)},
		{Headers: map[string]string{"Tenant": "a"}},
	} {
		if got := failure(t.Context(), func(tb testing.TB) { walrelaytest.AssertAppended(tb, tx, m) }); got != "" {
			t.Errorf("AssertAppended(%s) failed: %s", m, got)
		}
		if got := failure(t.Context(), func(tb testing.TB) { walrelaytest.AssertNothingAppended(tb, tx, m) }); !strings.Contains(got, "order.placed") {
			t.Errorf("AssertNothingAppended(%s): %q, want a failure that shows what was appended", m, got)
		}
	}
	for _, m := range []walrelaytest.Match{
		{},
		{AggregateID: "3"},
		{AggregateType: "other"},
		{Type: "order.placed", Count: 2},
		{Payload: json.RawMessage(`{"s":"x","n":12345678901234567891}`)},
		{Headers: map[string]string{"Tenant": "b"}},
		{Headers: map[string]string{"Other": ""}},
		{Payload: json.RawMessage(`{`)},
	} {
		if got := failure(t.Context(), func(tb testing.TB) { walrelaytest.AssertAppended(tb, tx, m) }); got == "" {
			t.Errorf("AssertAppended(%s) passed, want a failure", m)
		}
	}
}
