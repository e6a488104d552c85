package envtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/testenv"
)

// SharedPostgres gives the URL of a fresh, empty database on a cluster that all
// tests of this process share, as superuser postgres. When the test ends the
// database is dropped, with its slots and whoever still uses them. Names of
// slots and roles are the cluster's: derive them from the database's.
func SharedPostgres(tb testing.TB) (url string) {
	tb.Helper()
	p, name, err := nextDatabase(tb.Context())
	if err != nil {
		tb.Fatalf("get a database: %v", err)
	}
	if err := p.CreateDatabase(tb.Context(), name); err != nil {
		tb.Fatalf("get a database: %v", err)
	}
	tb.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := dropDatabase(ctx, p.URL("postgres"), name); err != nil {
			tb.Errorf("drop database %q: %v", name, err)
		}
	})
	return p.URL(name)
}

// nextDatabase names a new database on the shared cluster, which the first call
// starts.
func nextDatabase(ctx context.Context) (*testenv.Postgres, string, error) {
	env, err := sharedEnv()
	if err != nil {
		return nil, "", err
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.postgres == nil {
		p, err := env.StartPostgres(ctx, testenv.PGConfig{Settings: map[string]string{
			"max_replication_slots": "60",
			"max_wal_senders":       "60",
			"max_connections":       "200",
		}})
		if err != nil {
			return nil, "", err
		}
		shared.postgres = p
	}
	shared.database++
	return shared.postgres, fmt.Sprintf("test_%d", shared.database), nil
}

func dropDatabase(ctx context.Context, url, name string) (err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	err = until(ctx, func() error {
		if _, err := conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
			WHERE database = $1 AND active`, name); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
			WHERE database = $1`, name); err != nil {
			return fmt.Errorf("drop its slots: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "DROP DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	return err
}
