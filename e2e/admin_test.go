package e2e_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I10: what the listener wants, `walrelay status` shows, and nobody learns it
// from the relay.
func TestStatusShowsWhatTheAdminListenerWants(t *testing.T) {
	t.Parallel()
	const token = "the-admin-token-of-this-test"
	ca, issue := envtest.CA(t, "walrelay tests"), envtest.Issue(t)
	own, operator := issue(ca.Server("127.0.0.1")), issue(ca.Client("operator"))
	file, wrong := secretFile(t, token+"\n"), secretFile(t, "another-token-of-this-test")
	tls := func(cert, key string) []string {
		return []string{"--admin-tls-cert", cert, "--admin-tls-key", key, "--admin-tls-client-ca", ca.File()}
	}
	w := fixture.New(t, fixture.Config{})
	ask := func(addr string, flags ...string) (int, string) {
		t.Helper()
		return verb(t, nil, append([]string{"status", "--source", w.Source, "--admin", addr}, flags...)...)
	}

	relay := w.Start("--admin", "127.0.0.1:0", "--admin-token-file", file)
	addr := adminOf(t, relay.Text)
	awaitReadiness(t, addr, http.StatusOK, "ok")
	if code, body := fetch(t, addr, "/metrics"); code != http.StatusUnauthorized || body != "unauthorized\n" {
		t.Errorf("/metrics without the token = %d %q, want 401 without detail", code, body)
	}
	if code, out := ask(addr, "--admin-token-file", file); code != 0 || !strings.Contains(out, "ready") {
		t.Errorf("walrelay status with the token = %d, want 0:\n%s", code, out)
	}
	for _, flags := range [][]string{nil, {"--admin-token-file", wrong}} {
		if code, out := ask(addr, flags...); code != 1 || !strings.Contains(out, "it wants the token of --admin-token-file") {
			t.Errorf("walrelay status %v = %d, want 1 and what is wanted:\n%s", flags, code, out)
		}
	}
	text := relay.Text()
	relay.Stop(fixture.Patience)

	relay = w.Start(append([]string{"--admin", "127.0.0.1:0"}, tls(own.CertFile, own.KeyFile)...)...)
	addr = adminOf(t, relay.Text)
	relay.Await("relaying", fixture.Patience)
	said := ""
	for _, c := range []struct {
		who   string
		flags []string
		code  int
	}{
		{"an operator with a certificate", tls(operator.CertFile, operator.KeyFile), 0},
		{"somebody without", []string{"--admin-tls-client-ca", ca.File()}, 1},
		{"somebody who trusts the system's certificates only", []string{"--admin-tls-cert", operator.CertFile, "--admin-tls-key", operator.KeyFile}, 1},
	} {
		code, out := ask(addr, c.flags...)
		said += out
		if code != c.code {
			t.Errorf("walrelay status of %s = %d, want %d:\n%s", c.who, code, c.code, out)
		}
	}
	relay.Stop(fixture.Patience)
	if strings.Contains(text+relay.Text()+said, token) {
		t.Error("a log or a status has the token")
	}
}
