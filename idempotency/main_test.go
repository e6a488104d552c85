package idempotency_test

import (
	"context"
	"database/sql"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/walrelay/walrelay/idempotency"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		child(url)
		return
	}
	envtest.Main(m)
}

// database gives the URL of a database with the consumer's tables.
func database(t testing.TB) string {
	t.Helper()
	url := envtest.SharedPostgres(t)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Consumer(t.Context(), cfg, migrations.Config{}, nil); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	return url
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newDB(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// drivers runs a test with a store over each driver, on a database whose
// default isolation level is as strict as there is: a store must not depend on
// it.
func drivers(t *testing.T, test func(t *testing.T, s *idempotency.Store, url string)) {
	t.Parallel()
	open := map[string]func(context.Context, testing.TB, string) (*idempotency.Store, error){
		"pgx": func(ctx context.Context, t testing.TB, url string) (*idempotency.Store, error) {
			return idempotency.New(ctx, newPool(t, url), idempotency.Config{})
		},
		"database/sql": func(ctx context.Context, t testing.TB, url string) (*idempotency.Store, error) {
			return idempotency.NewSQL(ctx, newDB(t, url), idempotency.Config{})
		},
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			execute(t, url, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$`)
			s, err := open(t.Context(), t, url)
			if err != nil {
				t.Fatal(err)
			}
			test(t, s, url)
		})
	}
}

func execute(t testing.TB, url, statement string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// expire ends the lease of every key, as if its time had passed.
func expire(t testing.TB, url string) {
	t.Helper()
	execute(t, url, `UPDATE walrelay.effect SET lease_until = clock_timestamp() - interval '1 ms' WHERE lease_until IS NOT NULL`)
}
