package compose_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

const (
	password   = "pass word"
	token      = "0123" // nats-server would take it for a number
	adminToken = "a-token-for-the-status-page"
	patience   = 30 * time.Second
)

// A stage is where the services are played: real servers in place of the
// images, a folder in place of /run/secrets.
type stage struct {
	services map[string]service
	here     *strings.Replacer
}

// command is a service's program, as its container would run it, or the one of
// its health check.
func (s stage) command(t *testing.T, name string, args []string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), build(t), args...)
	cmd.Env = append(os.Environ(), env...)
	for key, value := range s.services[name].Environment {
		cmd.Env = append(cmd.Env, key+"="+s.here.Replace(value))
	}
	return cmd
}

// Each service of our own image gets settings that exist, fit together and
// work: the one-shots end, the relay becomes healthy, an event arrives.
func TestTheServicesWorkTogether(t *testing.T) {
	services := shipped(t).Services
	secrets := t.TempDir()
	for name, value := range map[string]string{"postgres_password": password, "nats_token": token, "admin_token": adminToken} {
		if err := os.WriteFile(filepath.Join(secrets, name), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	postgres, broker := servers(t, services, secrets)
	admin := freeAddress(t)
	s := stage{services: services, here: strings.NewReplacer(
		"@postgres:5432/", "@"+postgres.Addr()+"/", "//nats:4222", "//"+broker.Addr(),
		"/run/secrets/", secrets+"/", ":9640", admin,
	)}

	for _, name := range []string{"migrate", "migrate-consumer"} {
		if text, err := s.command(t, name, services[name].Command).CombinedOutput(); err != nil {
			t.Fatalf("service %s: %v\n%s", name, err, text)
		}
		if text, err := s.command(t, name, services[name].Command, "WALRELAY_NONSENSE=1").CombinedOutput(); exitCode(err) != 2 {
			t.Errorf("service %s with a setting that does not exist: %v, want exit code 2\n%s", name, err, text)
		}
	}

	health := services["relay"].Health.Test
	if health[0] != "CMD" {
		t.Fatalf("the relay's health check is %q; its image has no shell", health)
	}
	if text, err := s.command(t, "relay", health[2:]).CombinedOutput(); exitCode(err) != 1 {
		t.Errorf("the health check without a relay: %v, want exit code 1\n%s", err, text)
	}
	relay := s.command(t, "relay", services["relay"].Command)
	var log bytes.Buffer
	relay.Stdout, relay.Stderr = &log, &log
	if err := envtest.Env(t).Child(relay); err != nil {
		t.Fatal(err)
	}
	envtest.Eventually(t, patience, func() error {
		if text, err := s.command(t, "relay", health[2:]).CombinedOutput(); err != nil {
			return fmt.Errorf("the health check: %w\n%s", err, text)
		}
		return nil
	})

	if code, body := scrapes(t, admin, adminToken); code != http.StatusOK || !strings.Contains(body, "walrelay_ready 1\n") {
		t.Errorf("/metrics with the token = %d, want 200 and walrelay_ready 1:\n%s", code, body)
	}
	if code, _ := scrapes(t, admin, ""); code != http.StatusUnauthorized {
		t.Errorf("/metrics without the token = %d, want 401", code)
	}
	conn, err := pgx.Connect(t.Context(), postgres.URL("shop"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('order', '1', 'order.placed', '{"customer": "ann", "cents": 500}')`); err != nil {
		t.Fatal(err)
	}
	arrives(t, broker, services["consumer"].Environment)

	if err := relay.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := relay.Wait(); err != nil {
		t.Errorf("the relay ended with %v\n%s", err, log.String())
	}
}

// servers starts what the images of PostgreSQL and NATS would be, with the
// settings, the passwords and the files that they are given.
func servers(t *testing.T, services map[string]service, secrets string) (*testenv.Postgres, *testenv.NATS) {
	t.Helper()
	s := services["postgres"]
	_, tag, _ := strings.Cut(s.Image, ":")
	version, err := strconv.Atoi(tag)
	if err != nil {
		t.Fatalf("image %s: %v", s.Image, err)
	}
	settings := map[string]string{"wal_level": "replica"} // the server's own default
	for i, word := range s.Command {
		if word == "-c" {
			name, value, _ := strings.Cut(s.Command[i+1], "=")
			settings[name] = value
		}
	}
	postgres := envtest.Postgres(t, testenv.PGConfig{Version: version, Settings: settings, HBA: []string{"host all all 127.0.0.1/32 scram-sha-256"}})
	user := s.Environment["POSTGRES_USER"]
	conn, err := pgx.Connect(t.Context(), postgres.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	// The image makes a superuser and a database of its name.
	name := pgx.Identifier{user}.Sanitize()
	for _, statement := range []string{
		"CREATE ROLE " + name + " SUPERUSER LOGIN PASSWORD '" + password + "'", "CREATE DATABASE " + name + " OWNER " + name,
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}

	t.Setenv("NATS_TOKEN", tokenOf(t, services["nats"], secrets))
	text, err := os.ReadFile(root + "/deploy/compose/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "nats.conf")
	// Its monitor would be in the way of another's.
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte("127.0.0.1:8222"), []byte("127.0.0.1:-1")), 0o600); err != nil {
		t.Fatal(err)
	}
	return postgres, envtest.NATS(t, testenv.NATSConfig{ConfigFile: file})
}

// tokenOf runs what the container of NATS runs, with a program in the server's
// place that tells what it was given.
func tokenOf(t *testing.T, s service, secrets string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nats-server"), []byte("#!/bin/sh\nprintf %s \"$NATS_TOKEN\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if len(s.Entrypoint) != 3 || len(s.Command) > 0 {
		t.Fatalf("NATS is started by %q %q, want a shell's script", s.Entrypoint, s.Command)
	}
	script := strings.ReplaceAll(s.Entrypoint[2], "/run/secrets/", secrets+"/")
	cmd := exec.CommandContext(t.Context(), s.Entrypoint[0], s.Entrypoint[1], script)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return string(text)
}

// arrives waits for the event in the stream and under the subject that the
// consumer is told, and demands the token.
func arrives(t *testing.T, broker *testenv.NATS, consumer map[string]string) {
	t.Helper()
	if nc, err := nats.Connect(broker.URL()); err == nil {
		nc.Close()
		t.Error("NATS asks for no token")
	}
	nc, err := nats.Connect(broker.URL(), nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	envtest.Eventually(t, patience, func() error {
		stream, err := js.Stream(t.Context(), consumer["STREAM"])
		if err != nil {
			return err
		}
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(consumer["SUBJECT"]))
		if err == nil && len(info.State.Subjects) != 1 {
			err = errors.New("the event is not there")
		}
		return err
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func exitCode(err error) int {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return 0
}
