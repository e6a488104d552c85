package testenv_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// value asks for one value as text.
func value(t *testing.T, url, query string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var text string
	if err := conn.QueryRow(t.Context(), query).Scan(&text); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return text
}

func exec(t *testing.T, url, query string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func TestAClusterRunsInTheAskedForVersionWithTheSettings(t *testing.T) {
	t.Parallel()
	for _, version := range []int{15, 16, 17, 18} {
		p := envtest.Postgres(t, testenv.PGConfig{Version: version, Settings: map[string]string{"application_name": `it's a \ test`}})
		for query, want := range map[string]string{
			"SELECT current_setting('server_version_num')::int / 10000 || ''": fmt.Sprint(version),
			"SHOW wal_level":        "logical",
			"SHOW application_name": `it's a \ test`,
			"SHOW TimeZone":         "UTC",
			"SHOW data_directory":   p.DataDir(),
		} {
			if got := value(t, p.URL("postgres"), query); got != want {
				t.Errorf("version %d: %s = %q, want %q", version, query, got, want)
			}
		}
	}
}

// What `make test-matrix` asks for is what runs.
func TestThePostgreSQLServerIsTheOneThatIsNamed(t *testing.T) {
	t.Parallel()
	want := os.Getenv("WALRELAY_TEST_PG")
	if want == "" {
		want = "15"
	}
	const query = "SELECT current_setting('server_version_num')::int / 10000 || ''"
	for kind, url := range map[string]string{
		"shared": envtest.SharedPostgres(t),
		"own":    envtest.Postgres(t, testenv.PGConfig{}).URL("postgres"),
	} {
		if got := value(t, url, query); got != want {
			t.Errorf("version of a cluster of the kind %q = %s, want %s", kind, got, want)
		}
	}
}

func TestTwoClustersHaveTwoSystemIdentifiers(t *testing.T) {
	t.Parallel()
	const query = "SELECT system_identifier::text FROM pg_control_system()"
	a, b := envtest.Postgres(t, testenv.PGConfig{}), envtest.Postgres(t, testenv.PGConfig{})
	idA, idB := value(t, a.URL("postgres"), query), value(t, b.URL("postgres"), query)
	if idA == idB {
		t.Errorf("both have the system identifier %s", idA)
	}
	if err := b.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatalf("start after a crash: %v", err)
	}
	if got := value(t, b.URL("postgres"), query); got != idB {
		t.Errorf("system identifier after recovery = %s, want %s", got, idB)
	}
}

func TestACommitSurvivesEveryWayToStop(t *testing.T) {
	t.Parallel()
	p := envtest.Postgres(t, testenv.PGConfig{})
	exec(t, p.URL("postgres"), "CREATE TABLE survivor (n int)")
	stop := map[string]func(context.Context) error{
		"kill":      p.Kill,
		"smart":     func(ctx context.Context) error { return p.Stop(ctx, testenv.Smart) },
		"fast":      func(ctx context.Context) error { return p.Stop(ctx, testenv.Fast) },
		"immediate": func(ctx context.Context) error { return p.Stop(ctx, testenv.Immediate) },
	}
	rows := 0
	for name, end := range stop {
		exec(t, p.URL("postgres"), "INSERT INTO survivor VALUES (1)")
		rows++
		if err := end(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := p.Pid(); got != 0 {
			t.Errorf("%s: Pid() = %d, want 0", name, got)
		}
		if err := p.Start(t.Context()); err != nil {
			t.Fatalf("start after %s: %v", name, err)
		}
		if got := value(t, p.URL("postgres"), "SELECT count(*)::text FROM survivor"); got != fmt.Sprint(rows) {
			t.Errorf("after %s: %s rows, want %d", name, got, rows)
		}
	}
}

func TestAPausedServerAnswersOnlyAfterResume(t *testing.T) {
	t.Parallel()
	p := envtest.Postgres(t, testenv.PGConfig{})
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if conn, err := pgx.Connect(ctx, p.URL("postgres")); err == nil {
		_ = conn.Close(t.Context())
		t.Error("a paused server answers")
	}
	if err := p.Resume(); err != nil {
		t.Fatal(err)
	}
	if got := value(t, p.URL("postgres"), "SELECT 'yes'"); got != "yes" {
		t.Errorf("after Resume: %q, want yes", got)
	}
}

func TestAPausedServerCanBeClosed(t *testing.T) {
	t.Parallel()
	p := envtest.Postgres(t, testenv.PGConfig{})
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatalf("Close() = %v, want nil", err)
	}
	if _, err := os.Stat(filepath.Dir(p.DataDir())); !os.IsNotExist(err) {
		t.Errorf("the cluster's folder is still there: %v", err)
	}
}

func TestAPasswordIsAskedForWhenTheRulesSaySo(t *testing.T) {
	t.Parallel()
	p := envtest.Postgres(t, testenv.PGConfig{HBA: []string{"host all all 127.0.0.1/32 scram-sha-256"}})
	exec(t, p.URL("postgres"), "CREATE ROLE clerk LOGIN PASSWORD 'right'")
	for password, want := range map[string]bool{"right": true, "wrong": false} {
		conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://clerk:%s@%s/postgres?sslmode=disable", password, p.Addr()))
		if (err == nil) != want {
			t.Errorf("connect with the %s password: %v", password, err)
		}
		if err == nil {
			_ = conn.Close(t.Context())
		}
	}
}

func TestAMissingVersionIsNamedWithTheFix(t *testing.T) {
	t.Parallel()
	_, err := envtest.Env(t).StartPostgres(t.Context(), testenv.PGConfig{Version: 9})
	const want = "PostgreSQL 9 is not installed; run `make deps`, or `go run ./internal/testenv/install 9` in the repository"
	if err == nil || err.Error() != want {
		t.Errorf("StartPostgres = %v, want %s", err, want)
	}
}

func TestAKilledServerLeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	p := envtest.Postgres(t, testenv.PGConfig{})
	// Its own segment, which only a server that stops in order removes.
	lines, err := os.ReadFile(filepath.Join(p.DataDir(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var key, id int
	if _, err := fmt.Sscan(strings.Split(string(lines), "\n")[6], &key, &id); err != nil {
		t.Fatalf("read the segment from %q: %v", lines, err)
	}
	exists := func() bool {
		text, err := os.ReadFile("/proc/sysvipc/shm")
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(fmt.Sprintf(`(?m)^ *%d +%d `, key, id)).Match(text)
	}
	if !exists() {
		t.Fatalf("segment %d is not there while the server runs", id)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if exists() {
		t.Errorf("segment %d is still there", id)
	}
}
