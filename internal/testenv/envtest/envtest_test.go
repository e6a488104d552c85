package envtest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

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

// What a test waits for stands at the end of what is printed, also where servers
// of the process have a thousand goroutines.
func TestAHangingTestIsTold(t *testing.T) {
	t.Parallel()
	const role = "WALRELAY_TEST_HANG"
	if os.Getenv(role) != "" {
		hang(t)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.run", "^"+t.Name()+"$", "-test.timeout", "2s")
	cmd.Env = append(os.Environ(), role+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("the hanging test ended well")
	}
	if _, told, _ := strings.Cut(string(out), "What hangs:"); !strings.Contains(told, "envtest_test.hang(") || strings.Count(told, "\n") > 60 {
		t.Errorf("what hangs is not told, or not alone:\n%s", out)
	}
}

//go:noinline
func hang(t *testing.T) {
	t.Helper()
	<-make(chan struct{})
}
