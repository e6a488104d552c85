package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/admin"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A command is one process of walrelay with its whole output.
type command struct {
	t    *testing.T
	cmd  *osexec.Cmd
	gone chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

// Write is for the process.
func (c *command) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

func (c *command) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// launch starts walrelay with more variables in its environment.
func launch(t *testing.T, env []string, args ...string) *command {
	t.Helper()
	c := &command{t: t, cmd: osexec.Command(fixture.Binary(t), args...), gone: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = c, c
	c.cmd.Env = append(os.Environ(), env...)
	if err := c.cmd.Start(); err != nil {
		t.Fatalf("start walrelay %s: %v", args[0], err)
	}
	go func() {
		defer close(c.gone)
		_ = c.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.gone
		fixture.NoSecrets(t, "output of walrelay "+args[0], c.text())
		if t.Failed() {
			t.Logf("output of walrelay %s:\n%s", args[0], c.text())
		}
	})
	return c
}

// verb runs walrelay to its end.
func verb(t *testing.T, env []string, args ...string) (code int, output string) {
	t.Helper()
	c := launch(t, env, args...)
	select {
	case <-c.gone:
	case <-time.After(fixture.Patience):
		t.Fatalf("walrelay %s does not end", args[0])
	}
	return c.cmd.ProcessState.ExitCode(), c.text()
}

func (c *command) stop() int {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Fatal(err)
	}
	select {
	case <-c.gone:
	case <-time.After(fixture.Patience):
		c.t.Fatal("walrelay run does not end after SIGTERM")
	}
	return c.cmd.ProcessState.ExitCode()
}

var served = regexp.MustCompile(`"admin":"([0-9.:]+)"`)

// adminOf waits for the address on which a relay serves its status.
func adminOf(t *testing.T, text func() string) (addr string) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		if m := served.FindStringSubmatch(text()); m != nil {
			addr = m[1]
			return nil
		}
		return errors.New("the relay has not said where it serves its status")
	})
	return addr
}

func fetch(t *testing.T, addr, path string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer func() { _ = response.Body.Close() }()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return response.StatusCode, string(b)
}

// awaitReadiness waits until /readyz has the code and its body the part.
func awaitReadiness(t *testing.T, addr string, want int, part string) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		code, body := fetch(t, addr, "/readyz")
		if code != want || !strings.Contains(body, part) {
			return fmt.Errorf("/readyz = %d %q, want %d and %q", code, body, want, part)
		}
		return nil
	})
}

func metric(t *testing.T, addr, name string) string {
	t.Helper()
	_, body := fetch(t, addr, "/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// I6, I10.
func TestA15ARelayIsReadyOnlyWhileItDelivers(t *testing.T) {
	t.Parallel()
	broker := envtest.NATS(t, testenv.NATSConfig{})
	w := fixture.New(t, fixture.Config{NATS: broker, Flags: []string{"--admin", "127.0.0.1:0", "--ack-timeout", "1s"}})
	w.Place(3)
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	w.Stored(3)
	ask := []string{"status", "--json", "--source", w.Source, "--admin", addr}
	status := func(wantCode int) admin.Report {
		t.Helper()
		code, out := verb(t, nil, ask...)
		var answer struct {
			From  string       `json:"from"`
			Ready bool         `json:"ready"`
			Relay admin.Report `json:"relay"`
		}
		if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.From != "admin" {
			t.Fatalf("walrelay status --json: %v: %s", err, out)
		}
		if code != wantCode || answer.Ready != (wantCode == 0) {
			t.Errorf("walrelay status = %d, ready %v, want %d: %s", code, answer.Ready, wantCode, out)
		}
		return answer.Relay
	}
	envtest.Eventually(t, fixture.Patience, func() error {
		if got := metric(t, addr, "walrelay_lag_seconds"); got != "0" {
			return fmt.Errorf("walrelay_lag_seconds is %q, want 0 once everything is stored", got)
		}
		return nil
	})
	st := status(0)
	if st.Counters.Stored != 3 || len(st.Streams) != 1 || st.Streams[0].LastSequence != 3 || st.SlotState == nil || !st.SlotState.Active || st.DeadLetters == nil {
		t.Errorf("status is %+v, want 3 events stored, the stream's last sequence 3, slot and dead letters known", st)
	}

	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Place(2)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "no connection to NATS")
	if code, _ := fetch(t, addr, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz = %d while NATS is away, want 200: a restart mends nothing", code)
	}
	envtest.Eventually(t, fixture.Patience, func() error {
		if got := metric(t, addr, "walrelay_lag_seconds"); got == "" || strings.HasPrefix(got, "0") {
			return fmt.Errorf("walrelay_lag_seconds is %q while events wait for NATS, want a second or more", got)
		}
		return nil
	})
	if st = status(1); !strings.Contains(st.NotReady, "NATS") || st.Streams[0].InFlight+st.Streams[0].Queued != 2 {
		t.Errorf("status is %+v, want that 2 messages wait for NATS", st)
	}
	if code, out := verb(t, nil, "status", "--source", w.Source, "--admin", addr); code != 1 || !strings.Contains(out, "no: stream") {
		t.Errorf("walrelay status = %d, want 1 and what it waits for:\n%s", code, out)
	}
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReadiness(t, addr, http.StatusOK, "ready")
	w.Stored(5)

	if err := w.JetStream.DeleteStream(t.Context(), w.StreamName); err != nil {
		t.Fatal(err)
	}
	w.Place(1)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, w.StreamName)
	if !relay.Running() {
		t.Error("the relay ended because its stream was deleted")
	}
}

// I10.
func TestStatusFallsBackToPostgreSQLAndSaysSo(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: []string{"--admin", "off"}})
	ask := []string{"status", "--source", w.Source, "--admin", "off"}
	if code, out := verb(t, nil, ask...); code != 1 || !strings.Contains(out, "with --database-url PostgreSQL is asked") {
		t.Errorf("walrelay status = %d without anybody to ask, want 1 and what to set: %s", code, out)
	}
	ask = append(ask, "--database-url", w.DatabaseURL)
	if code, out := verb(t, nil, ask...); code != 1 || !strings.Contains(out, "this source has never run") {
		t.Errorf("walrelay status = %d before the first start, want 1 and that it never ran:\n%s", code, out)
	}
	w.Place(2)
	relay := w.Start()
	w.Stored(2)
	if code, out := verb(t, nil, ask...); code != 1 || !strings.Contains(out, "is held by pid") {
		t.Errorf("walrelay status = %d while a relay holds the slot, want 1 and by whom:\n%s", code, out)
	}
	relay.Stop(fixture.Patience)
	code, out := verb(t, nil, append(ask, "--json")...)
	var answer struct {
		From     string `json:"from"`
		NoRelay  string `json:"no_relay"`
		Database struct {
			Verdict string `json:"verdict"`
			Slot    struct {
				Active bool `json:"active"`
			} `json:"slot"`
			Witness struct {
				Streams map[string]struct {
					LastSeq uint64 `json:"last_seq"`
				} `json:"streams"`
			} `json:"witness"`
		} `json:"database"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatalf("walrelay status --json: %v: %s", err, out)
	}
	if code != 1 || answer.From != "postgresql" || answer.NoRelay == "" || answer.Database.Slot.Active ||
		!strings.Contains(answer.Database.Verdict, "is held by nobody") || answer.Database.Witness.Streams[w.StreamName].LastSeq != 2 {
		t.Errorf("walrelay status = %d, %+v, want 1, the slot held by nobody and sequence 2", code, answer)
	}
}

func TestDeadLettersAreListedAndShown(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: []string{"--admin", "127.0.0.1:0"}})
	w.Exec(`INSERT INTO walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
		VALUES ('00000000-0000-4000-8000-000000000001', 'order', '7', 'placed', '{"n": 1}', '{"Nats-Msg-Id": "mine"}')`)
	relay := w.Start()
	w.Dead(1)
	where := []string{"--database-url", w.DatabaseURL, "--source", w.Source}
	code, out := verb(t, nil, append([]string{"deadletters", "list", "--json", "--since", "1h"}, where...)...)
	var letter struct {
		ID      int64  `json:"id"`
		EventID string `json:"event_id"`
		Reason  string `json:"reason"`
		State   string `json:"state"`
		Payload []byte `json:"payload"`
	}
	if err := json.Unmarshal([]byte(out), &letter); code != 0 || err != nil {
		t.Fatalf("walrelay deadletters list = %d, %v: %s", code, err, out)
	}
	if letter.EventID != "00000000-0000-4000-8000-000000000001" || letter.State != "open" || letter.Reason == "" || letter.Payload != nil {
		t.Errorf("walrelay deadletters list gives %+v, want the open letter without its payload", letter)
	}
	if code, out := verb(t, nil, append([]string{"deadletters", "list"}, where...)...); code != 0 || !strings.Contains(out, letter.EventID) {
		t.Errorf("walrelay deadletters list = %d, want 0 and the event:\n%s", code, out)
	}
	for _, none := range [][]string{{"--reason", "other"}, {"--since", "2999-01-01T00:00:00Z"}, {"--source", "other"}} {
		args := append(append([]string{"deadletters", "list", "--json"}, where...), none...)
		if code, out := verb(t, nil, args...); code != 0 || out != "" {
			t.Errorf("walrelay deadletters list %q = %d, want 0 and nothing: %s", none, code, out)
		}
	}
	if code, out := verb(t, nil, append([]string{"deadletters", "show", fmt.Sprint(letter.ID)}, where...)...); code != 0 || !strings.Contains(out, `{"n": 1}`) {
		t.Errorf("walrelay deadletters show = %d, want 0 and the payload:\n%s", code, out)
	}
	if code, out := verb(t, nil, append([]string{"deadletters", "show", "999"}, where...)...); code != 1 || !strings.Contains(out, "no dead letter of that id") {
		t.Errorf("walrelay deadletters show of none = %d, want 1 and why: %s", code, out)
	}
	addr := adminOf(t, relay.Text)
	envtest.Eventually(t, fixture.Patience, func() error {
		if got := metric(t, addr, "walrelay_dead_letters_open"); got != "1" {
			return fmt.Errorf("walrelay_dead_letters_open is %q, want 1", got)
		}
		return nil
	})
}

// specialPassword is the one of A36.
const specialPassword = "p@ss:w/o#r%d?&=+ é'\"\\"

// shows gives the part of the password that a text repeats, in whatever form.
func shows(text string) string {
	for _, form := range []string{
		specialPassword, url.QueryEscape(specialPassword), url.UserPassword("", specialPassword).String(),
		"p@ss", "p%40ss", "w/o", "w%2Fo", "o#r", "o%23r", "r%d", "r%25d",
	} {
		if strings.Contains(text, form) {
			return form
		}
	}
	return ""
}

func secretFile(t *testing.T, text string) string {
	t.Helper()
	fixture.Secret(strings.TrimSuffix(text, "\n"))
	path := filepath.Join(t.TempDir(), "secret")
	writeSecret(t, path, text)
	return path
}

func writeSecret(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// I10.
//
//nolint:tparallel // the subtests take turns with one slot
func TestA36PasswordsOfAnyCharactersWorkInEveryFormAndAreShownNowhere(t *testing.T) {
	t.Parallel()
	cluster := envtest.Postgres(t, testenv.PGConfig{HBA: []string{"host all relay 127.0.0.1/32 scram-sha-256"}})
	broker := envtest.NATS(t, testenv.NATSConfig{User: "relay", Password: specialPassword})
	w := fixture.New(t, fixture.Config{Postgres: cluster, NATS: broker, Superuser: true})
	w.Exec("CREATE ROLE relay SUPERUSER LOGIN PASSWORD '" + strings.ReplaceAll(specialPassword, "'", "''") + "'")
	postgres, err := url.Parse(w.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	postgres.User = url.User("relay")
	without := postgres.String()
	postgres.User = url.UserPassword("relay", specialPassword)
	with := postgres.String()
	nats, err := url.Parse(w.NATSURL)
	if err != nil {
		t.Fatal(err)
	}
	natsWith := nats.String()
	nats.User = nil
	pairs := fmt.Sprintf("host=%s port=%s user=relay dbname=shop password='%s'", postgres.Hostname(), postgres.Port(),
		strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(specialPassword))
	file := secretFile(t, specialPassword+"\n")

	for _, form := range []struct {
		name string
		env  []string
		args []string
	}{
		{"URLs", nil, []string{"--database-url", with, "--nats", natsWith}},
		{"variables", []string{"WALRELAY_DATABASE_URL=" + with, "WALRELAY_NATS=" + natsWith}, nil},
		{"key=value", nil, []string{"--database-url", pairs, "--nats", nats.String(), "--nats-user", "relay", "--nats-password-file", file}},
		{"PGPASSWORD", []string{"PGPASSWORD=" + specialPassword}, []string{"--database-url", without, "--nats", natsWith}},
		{"files", nil, []string{"--database-url", without, "--database-password-file", file, "--nats", nats.String(), "--nats-user", "relay", "--nats-password-file", file}},
	} {
		t.Run(form.name, func(t *testing.T) {
			run := launch(t, form.env, append([]string{"run", "--source", w.Source, "--admin", "127.0.0.1:0", "--log-level", "debug"}, form.args...)...)
			addr := adminOf(t, run.text)
			awaitReadiness(t, addr, http.StatusOK, "ready")
			outputs := map[string]string{}
			for _, path := range []string{"/status", "/metrics", "/readyz", "/"} {
				_, outputs[path] = fetch(t, addr, path)
			}
			if code := run.stop(); code != 0 {
				t.Errorf("walrelay run = %d, want 0", code)
			}
			outputs["run"] = run.text()
			for _, args := range [][]string{{"config"}, {"config", "--json"}} {
				code, out := verb(t, form.env, append(args, form.args...)...)
				if code != 0 {
					t.Errorf("walrelay %v = %d: %s", args, code, out)
				}
				outputs[strings.Join(args, " ")] = out
			}
			for what, out := range outputs {
				if part := shows(out); part != "" {
					t.Errorf("%s shows %q of the password:\n%s", what, part, out)
				}
			}
		})
	}

	t.Run("token", func(t *testing.T) {
		guarded := envtest.NATS(t, testenv.NATSConfig{Token: specialPassword})
		bare, err := url.Parse(guarded.URL())
		if err != nil {
			t.Fatal(err)
		}
		bare.User = nil
		for _, args := range [][]string{{"--nats", guarded.URL()}, {"--nats", bare.String(), "--nats-token-file", file}} {
			code, out := verb(t, nil, append([]string{"migrate", "--stream", "TOKEN"}, args...)...)
			if code != 0 || shows(out) != "" {
				t.Errorf("walrelay migrate with a token = %d, want 0 and no secret: %s", code, out)
			}
		}
		if code, out := verb(t, nil, "migrate", "--stream", "TOKEN", "--nats", "nats://"+url.PathEscape("no"+specialPassword)+"@"+bare.Host); code != 1 || shows(out) != "" {
			t.Errorf("walrelay migrate with a wrong token = %d, want 1 and no secret: %s", code, out)
		}
	})

	// I6: a secret that is wrong is waited for, and read again.
	t.Run("a wrong password in a file, which is then corrected", func(t *testing.T) {
		forPostgres, forNATS := secretFile(t, "not "+specialPassword), secretFile(t, "not "+specialPassword)
		run := launch(t, nil, "run", "--source", w.Source, "--admin", "127.0.0.1:0", "--log-level", "debug", "--database-url", without,
			"--database-password-file", forPostgres, "--nats", nats.String(), "--nats-user", "relay", "--nats-password-file", forNATS)
		addr := adminOf(t, run.text)
		awaitReadiness(t, addr, http.StatusServiceUnavailable, "password authentication failed")
		writeSecret(t, forPostgres, specialPassword+"\r\n")
		awaitReadiness(t, addr, http.StatusServiceUnavailable, "no connection to NATS: ")
		_, status := fetch(t, addr, "/status")
		if !strings.Contains(strings.ToLower(status), "authorization violation") {
			t.Errorf("/status does not tell that NATS refuses the user:\n%s", status)
		}
		writeSecret(t, forNATS, specialPassword)
		awaitReadiness(t, addr, http.StatusOK, "ready")
		if code := run.stop(); code != 0 {
			t.Errorf("walrelay run = %d, want 0", code)
		}
		if part := shows(run.text() + status); part != "" {
			t.Errorf("walrelay run shows %q of the password", part)
		}
	})
}
