package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// natsConfig writes a nats-server configuration.
func natsConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	writeSecret(t, path, text)
	return path
}

// restart stops the broker, runs change, and starts it again.
func restart(t *testing.T, broker *testenv.NATS, change func()) {
	t.Helper()
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	change()
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// as is the broker's URL with a user and a password, or with the user left out.
func as(t *testing.T, w *fixture.World, user *url.Userinfo) string {
	t.Helper()
	u, err := url.Parse(w.NATSURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = user
	return u.String()
}

// I5, I6, I10: after two refusals the client closes for good; the relay does
// not.
func TestA60CredentialsThatAreRefusedForAWhileAreReadAgainUntilTheyWork(t *testing.T) {
	t.Parallel()
	config := func(password string) string {
		return fmt.Sprintf(`accounts { SHOP { jetstream: enabled, users: [{user: test, password: test}, {user: relay, password: %q}] } }
			no_auth_user: test`, password)
	}
	for _, secret := range []string{"secret-one", "secret-two", "secret-three"} {
		fixture.Secret(secret)
	}
	path := natsConfig(t, config("secret-one"))
	broker := envtest.NATS(t, testenv.NATSConfig{ConfigFile: path})
	w := fixture.New(t, fixture.Config{NATS: broker, Stream: shortDuplicates, Flags: observed()})
	file := secretFile(t, "secret-one\n")
	relay := w.Start("--nats", as(t, w, nil), "--nats-user", "relay", "--nats-password-file", file)
	addr := adminOf(t, relay.Text)
	w.Place(3)
	w.Stored(3)
	awaitReadiness(t, addr, http.StatusOK, "ready")

	// They expire and come back.
	restart(t, broker, func() { writeSecret(t, path, config("secret-two")) })
	w.Place(3)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "uthorization")
	awaitRefused(t, broker, 5)
	restart(t, broker, func() { writeSecret(t, path, config("secret-one")) })
	w.Stored(6)
	awaitReadiness(t, addr, http.StatusOK, "ready")

	// They expire, and the file is replaced.
	restart(t, broker, func() { writeSecret(t, path, config("secret-three")) })
	w.Place(3)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "uthorization")
	next := file + ".next"
	writeSecret(t, next, "secret-three\n")
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
	w.Stored(9)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	w.Check()
	_, status := fetch(t, addr, "/status")
	if strings.Contains(relay.Text()+status, "secret-") {
		t.Error("log or status shows a password")
	}
	// Once an outage, not once an attempt.
	if got := strings.Count(relay.Text(), "closed for good"); got < 1 || got > 2 {
		t.Errorf("the log says %d times that the client was closed for good, want once an outage", got)
	}
	relay.Stop(fixture.Patience)
}

// awaitRefused waits until the broker has refused somebody n times; the client
// closes for good after two.
func awaitRefused(t *testing.T, broker *testenv.NATS, n int) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		text, err := os.ReadFile(broker.LogFile())
		if err != nil {
			return err
		}
		if got := strings.Count(string(text), "authentication error"); got < n {
			return fmt.Errorf("the broker refused somebody %d times, want %d", got, n)
		}
		return nil
	})
}

// I3, I6, I10: a missing permission has a name, and what is behind waits in
// order.
func TestA61AMissingPermissionIsNamedAndWaitedFor(t *testing.T) {
	t.Parallel()
	config := func(publish, subscribe string) string {
		return fmt.Sprintf(`accounts { SHOP { jetstream: enabled, users: [{user: test, password: test},
			{user: relay, password: relay, permissions: {publish: {allow: [%s]}, subscribe: {allow: [%s]}}}] } }
			no_auth_user: test`, publish, subscribe)
	}
	const api, placed, all = `"$JS.API.>"`, `"$JS.API.>", "outbox.*.order.placed"`, `"$JS.API.>", "outbox.>"`
	path := natsConfig(t, config(placed, `"_INBOX.>"`))
	broker := envtest.NATS(t, testenv.NATSConfig{ConfigFile: path})
	w := fixture.New(t, fixture.Config{NATS: broker, Stream: shortDuplicates, Flags: observed()})
	relay := w.Start("--nats", as(t, w, url.UserPassword("relay", "relay")))
	addr := adminOf(t, relay.Text)
	w.Place(2)
	w.Stored(2)
	w.Exec("SELECT e2e.place(gen_random_uuid(), 'a1', 'sent', '')")
	w.Place(2)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, fmt.Sprintf("not permitted to publish %q", "outbox."+w.Source+".order.sent"))
	w.Stored(2)
	w.Dead(0)
	restart(t, broker, func() { writeSecret(t, path, config(all, `"_INBOX.>"`)) })
	w.Stored(5)
	awaitReadiness(t, addr, http.StatusOK, "ready")

	restart(t, broker, func() { writeSecret(t, path, config(all, `"other"`)) })
	w.Place(1)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "not permitted to subscribe to")
	restart(t, broker, func() { writeSecret(t, path, config(api, `"_INBOX.>"`)) })
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "not permitted to publish")
	restart(t, broker, func() { writeSecret(t, path, config(all, `"_INBOX.>"`)) })
	w.Stored(6)
	w.Check()
	relay.Stop(fixture.Patience)
}
