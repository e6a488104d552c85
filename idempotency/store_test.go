package idempotency_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walrelay/walrelay/idempotency"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestAMissingTableNamesTheCommand(t *testing.T) {
	t.Parallel()
	url := envtest.SharedPostgres(t)
	_, err := idempotency.New(t.Context(), newPool(t, url), idempotency.Config{})
	_, sqlErr := idempotency.NewSQL(t.Context(), newDB(t, url), idempotency.Config{})
	for _, err := range []error{err, sqlErr} {
		if err == nil || !strings.Contains(err.Error(), "`walrelay migrate --consumer`") {
			t.Errorf("New without the table: %v, want the command", err)
		}
	}
}

func TestScopesDoNotMeet(t *testing.T) {
	t.Parallel()
	pool := newPool(t, database(t))
	for _, scope := range []string{"", "a", "b"} {
		s, err := idempotency.New(t.Context(), pool, idempotency.Config{Scope: scope})
		if err != nil {
			t.Fatal(err)
		}
		if result, err := s.Do(t.Context(), "k", option{}, fails(errProvider)); !errors.Is(err, idempotency.ErrUncertain) || result.Replayed {
			t.Errorf("scope %q: Do = %+v, %v, want a call of its own", scope, result, err)
		}
		if listed, err := s.Uncertain(t.Context(), 0); err != nil || len(listed) != 1 || listed[0].Scope != scope {
			t.Errorf("scope %q: Uncertain = %+v, %v, want its own alone", scope, listed, err)
		}
	}
	for _, cfg := range []idempotency.Config{{Scope: "a/b"}, {Scope: strings.Repeat("x", 65)}, {SettleTimeout: -1}} {
		if _, err := idempotency.New(t.Context(), pool, cfg); err == nil {
			t.Errorf("New(%+v) is taken", cfg)
		}
	}
}

func TestTheIntentIsDurableWhateverTheRoleSays(t *testing.T) {
	t.Parallel()
	url := database(t)
	execute(t, url, `CREATE TABLE seen (setting text)`)
	execute(t, url, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.seen VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END'`)
	execute(t, url, `CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE ON walrelay.effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()`)
	s, err := idempotency.New(t.Context(), newPool(t, url+"&options=-csynchronous_commit%3Doff"), idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, _ = s.Do(t.Context(), "k", honoured, fails(errProvider))
	}
	var settings string
	if err := newPool(t, url).QueryRow(t.Context(), `SELECT string_agg(setting, ' ') FROM seen`).Scan(&settings); err != nil {
		t.Fatal(err)
	}
	if want := "on on on on"; settings != want {
		t.Errorf("synchronous_commit at each commit = %q, want %q", settings, want)
	}
}

func TestADatabaseThatComesBackInTimeIsTold(t *testing.T) {
	t.Parallel()
	url := database(t)
	proxied := envtest.Proxy(t, strings.Split(strings.SplitAfter(url, "@")[1], "/")[0])
	through := strings.Replace(url, strings.Split(strings.SplitAfter(url, "@")[1], "/")[0], proxied.Addr(), 1)
	s, err := idempotency.New(t.Context(), newPool(t, through), idempotency.Config{SettleTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Do(t.Context(), "k", option{}, func(context.Context, call) ([]byte, error) {
		if err := proxied.Cut(); err != nil {
			t.Error(err)
		}
		time.AfterFunc(300*time.Millisecond, func() { _ = proxied.Restore() })
		return []byte("v"), nil
	})
	if err != nil {
		t.Errorf("Do: %v, want the outcome stored when the database is back", err)
	}
	// Down for good: the caller has the outcome, and nobody else.
	short, err := idempotency.New(t.Context(), newPool(t, through), idempotency.Config{SettleTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	result, err := short.Do(t.Context(), "k2", option{}, func(context.Context, call) ([]byte, error) {
		return []byte("v"), proxied.Cut()
	})
	if !errors.Is(err, idempotency.ErrNotStored) || string(result.Value) != "v" {
		t.Errorf("Do = %+v, %v, want ErrNotStored beside the result", result, err)
	}
}

const childURL = "WALRELAY_TEST_IDEMPOTENCY_CHILD"

// child holds a lease until somebody writes a line to it, and then completes.
func child(url string) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	s, err := idempotency.New(ctx, pool, idempotency.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = s.Do(ctx, "k", option{Lease: 300 * time.Millisecond, KeyHonouredFor: time.Hour}, func(_ context.Context, c call) ([]byte, error) {
		fmt.Println("token", c.Token)
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		return []byte("from the child"), err
	})
	fmt.Println("end:", err)
}

// startChild gives the child, its input, its output and the token of its lease.
func startChild(t *testing.T, url string) (cmd *exec.Cmd, in io.Writer, out *bufio.Reader, token int64) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), childURL+"="+url)
	cmd.Stderr = os.Stderr
	in, err = cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out = bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(line, "token %d", &token); err != nil {
		t.Fatalf("child said %q: %v", line, err)
	}
	return cmd, in, out, token
}

// takeOver waits until the lease has run out by itself and takes it.
func takeOver(t *testing.T, s *store, above int64) {
	t.Helper()
	var token int64
	envtest.Eventually(t, 20*time.Second, func() error {
		_, err := s.Do(t.Context(), "k", honoured, func(_ context.Context, c call) ([]byte, error) {
			token = c.Token
			return []byte("from the taker"), nil
		})
		return err
	})
	if token <= above {
		t.Errorf("token of the taker = %d, want more than the child's %d", token, above)
	}
}

func TestALeaseOfAKilledProcessIsTakenOver(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, url string) {
		cmd, _, _, token := startChild(t, url)
		if err := cmd.Process.Kill(); err != nil { // SIGKILL
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if _, err := s.Do(t.Context(), "k", honoured, returns("at once")); err != nil && !errors.Is(err, idempotency.ErrInProgress) {
			t.Errorf("Do before the lease is over: %v, want ErrInProgress", err)
		}
		takeOver2 := func() (idempotency.Result, error) { return s.Do(t.Context(), "k", honoured, returns("from the taker")) }
		envtest.Eventually(t, 20*time.Second, func() error { _, err := takeOver2(); return err })
		result, err := takeOver2()
		if err != nil || result.Token <= token {
			t.Errorf("Do = %+v, %v, want a token above the dead one's %d", result, err, token)
		}
	})
}

func TestALateCompletionOfAPausedProcessIsRejected(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, url string) {
		cmd, in, out, token := startChild(t, url)
		takeOver(t, s, token)
		if _, err := io.WriteString(in, "go on\n"); err != nil {
			t.Fatal(err)
		}
		line, err := out.ReadString('\n')
		if err != nil || !strings.Contains(line, idempotency.ErrLeaseLost.Error()) {
			t.Errorf("child said %q (%v), want that its lease is lost", line, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		result, err := s.Do(t.Context(), "k", honoured, never(t))
		if err != nil || string(result.Value) != "from the taker" {
			t.Errorf("Do = %q, %v, want the taker's result", result.Value, err)
		}
	})
}
