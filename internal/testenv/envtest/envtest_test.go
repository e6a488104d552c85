package envtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

func TestASharedDatabaseIsDroppedWithItsSlots(t *testing.T) {
	var first string
	t.Run("first", func(t *testing.T) {
		first = envtest.SharedPostgres(t)
		conn, err := pgx.Connect(t.Context(), first)
		if err != nil {
			t.Fatal(err)
		}
		// Left open on purpose: dropping has to cope.
		if _, err := conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('left_over', 'pgoutput')"); err != nil {
			t.Fatal(err)
		}
	})
	second := envtest.SharedPostgres(t)
	if first == second {
		t.Fatalf("both tests got %s", first)
	}
	if conn, err := pgx.Connect(t.Context(), first); err == nil {
		_ = conn.Close(t.Context())
		t.Errorf("the first database is still there")
	}
	conn, err := pgx.Connect(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var slots int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_replication_slots").Scan(&slots); err != nil {
		t.Fatal(err)
	}
	if slots != 0 {
		t.Errorf("%d slots are left, want 0", slots)
	}
}
