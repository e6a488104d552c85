package e2e_test

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A step of the runbook is a command or a statement.
type step struct {
	line     int
	language string // sh or sql
	text     string
}

// steps gives the blocks of a page that are to be run.
func steps(t *testing.T, path string) (all []step) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^ *```(sh|sql)\n(.*?)^ *```$")
	for _, m := range block.FindAllSubmatchIndex(page, -1) {
		line := 1 + strings.Count(string(page[:m[4]]), "\n")
		text := string(page[m[4]:m[5]])
		if language := string(page[m[2]:m[3]]); language == "sql" {
			all = append(all, step{line, language, text})
			continue
		}
		for i, command := range strings.Split(strings.TrimSpace(text), "\n") {
			all = append(all, step{line + i, "sh", strings.TrimSpace(command)})
		}
	}
	return all
}

// words divides a command as a shell does, as far as the runbook goes.
func words(command string) (all []string) {
	for _, m := range regexp.MustCompile(`"([^"]*)"|(\S+)`).FindAllStringSubmatch(command, -1) {
		all = append(all, m[1]+m[2])
	}
	return all
}

// What the runbook says to type can be typed: on a relay with two dead letters,
// in the order of the page, no command is misspelt and each does what it is for.
func TestTheRunbooksCommandsRun(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{}) // of its own: it is told to reload
	w := fixture.New(t, fixture.Config{Postgres: server})
	w.UpdateStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 })
	relay := w.Start("--admin", "127.0.0.1:0", "--retention", "720h")
	addr := adminOf(t, relay.Text)
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'placed', to_jsonb(repeat('x', 3000)))`)
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', '2', 'placed', '{}', '{"Nats-Msg-Id": "mine"}')`)
	w.Dead(2)
	w.UpdateStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 }) // what the runbook asks for before they are tried again
	w.Place(3)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	env := []string{
		"WALRELAY_DATABASE_URL=" + w.DatabaseURL, "WALRELAY_NATS=" + w.NATSURL, "WALRELAY_SOURCE=" + w.Source, "WALRELAY_ADMIN=" + addr, "WALRELAY_BY=the runbook",
		"WALRELAY_YES=true", // in place of the one who is asked
	}
	conn, err := pgx.Connect(t.Context(), w.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	ran := map[string]int{}
	for _, s := range steps(t, "../docs/runbook.md") {
		ran[s.language]++
		if s.language == "sql" {
			for _, statement := range strings.SplitAfter(strings.TrimSpace(s.text), ";\n") {
				if _, err := conn.PgConn().Exec(t.Context(), statement).ReadAll(); err != nil {
					t.Errorf("runbook.md:%d: %v\n%s", s.line, err, statement)
				}
			}
			continue
		}
		args := words(s.text)
		if args[0] != "walrelay" {
			t.Errorf("runbook.md:%d: %q is no command of walrelay; it is not run here", s.line, s.text)
			continue
		}
		code, out := verb(t, env, args[1:]...)
		want := 0
		if args[1] == "verify" || args[1] == "doctor" {
			want = code & 1 // what they find of this server is not the point: replicas, and dead letters that were discarded
		}
		if code != want {
			t.Errorf("runbook.md:%d: %s = %d, want %d:\n%s", s.line, s.text, code, want, out)
		}
	}
	if ran["sh"] < 12 || ran["sql"] < 4 {
		t.Errorf("%d commands and %d statements were run, want more: is this the runbook?", ran["sh"], ran["sql"])
	}
	if got := fixture.Value[string](w, `SELECT string_agg(resolution, ' ' ORDER BY id) FROM walrelay.dead_letter`); got != "requeued discarded" {
		t.Errorf("the dead letters were %s, want the first requeued and the second discarded", got)
	}
}
