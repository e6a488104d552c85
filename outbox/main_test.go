package outbox_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
	"github.com/walrelay/walrelay/outbox"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// database gives the URL of a database with walrelay's outbox.
func database(t testing.TB) string {
	t.Helper()
	url := envtest.SharedPostgres(t)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), cfg, migrations.Config{SchemaOnly: true}, nil); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	return url
}

func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func begin(t testing.TB, p *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	return tx
}

// drivers runs a test with a transaction of each driver: the same behaviour is
// asked of both. query runs a statement inside the transaction and gives its one
// text, or nothing for a statement without a result.
func drivers(t *testing.T, test func(t *testing.T, app func(outbox.Table, ...outbox.Event) error, query func(string) string)) {
	t.Parallel()
	t.Run("pgx", func(t *testing.T) {
		t.Parallel()
		tx := begin(t, pool(t, database(t)))
		test(t, func(table outbox.Table, events ...outbox.Event) error {
			return table.Append(t.Context(), tx, events...)
		}, func(q string) (s string) {
			if err := tx.QueryRow(t.Context(), q).Scan(&s); err != nil && !errors.Is(err, pgx.ErrNoRows) {
				t.Fatalf("%s: %v", q, err)
			}
			return s
		})
	})
	t.Run("database/sql", func(t *testing.T) {
		t.Parallel()
		db, err := sql.Open("pgx", database(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		test(t, func(table outbox.Table, events ...outbox.Event) error {
			return table.AppendSQL(t.Context(), tx, events...)
		}, func(q string) (s string) {
			if err := tx.QueryRowContext(t.Context(), q).Scan(&s); err != nil && !errors.Is(err, sql.ErrNoRows) {
				t.Fatalf("%s: %v", q, err)
			}
			return s
		})
	})
}
