package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// natsServerWith starts a nats-server with this configuration.
func natsServerWith(t *testing.T, format string, args ...any) *testenv.EmbeddedNATS {
	t.Helper()
	return envtest.EmbeddedNATS(t, testenv.NATSConfig{ConfigFile: secret(t, fmt.Sprintf(format, args...))})
}

func secret(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	replace(t, path, text)
	return path
}

func replace(t *testing.T, path, text string) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// relays opens the connection of a relay with the flags.
func (b *broker) relays(t *testing.T) *publish.Conn {
	t.Helper()
	conn, err := publish.Open(t.Context(), publish.ConnConfig{
		URLs: b.NATS, Options: b.options, InboxPrefix: b.NATSInboxPrefix, JSDomain: b.NATSDomain,
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// awaitNATS waits until the relay's connection is there, or until its reason
// has all of the parts.
func awaitNATS(t *testing.T, conn *publish.Conn, connected bool, parts ...string) {
	t.Helper()
	envtest.Eventually(t, 20*time.Second, func() error {
		st := conn.Status()
		if st.Connected != connected {
			return fmt.Errorf("connected: %v (%s), want %v", st.Connected, st.LastError, connected)
		}
		for _, part := range parts {
			if !strings.Contains(st.LastError, part) {
				return fmt.Errorf("the reason %q does not name %q", st.LastError, part)
			}
		}
		return nil
	})
}

// I10.
func TestA37NATSVerifiesTheServerAndShowsItsCertificate(t *testing.T) {
	t.Parallel()
	ca, other := envtest.CA(t, "ours"), envtest.CA(t, "another")
	good, expired := envtest.Issue(t)(ca.Server("localhost")), envtest.Issue(t)(ca.Expired("localhost"))
	client, stranger := envtest.Issue(t)(ca.Client("relay")), envtest.Issue(t)(other.Client("relay"))
	config := func(pair testenv.Pair, more string) string {
		return fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, %s }", pair.CertFile, pair.KeyFile, ca.File(), more)
	}
	secured := natsServerWith(t, "%s", config(good, "")).Port()
	over := natsServerWith(t, "%s", config(expired, "")).Port()
	mutual := natsServerWith(t, "%s", config(good, "verify: true")).Port()
	first := natsServerWith(t, "%s", config(good, "handshake_first: true")).Port()
	plain := natsServerWith(t, "").Port()
	at := func(scheme, host string, port int) string { return fmt.Sprintf("%s://%s:%d", scheme, host, port) }
	for name, c := range map[string]struct {
		broker broker
		want   string // empty: it connects
	}{
		"tls:// and own CA":           {broker{NATS: at("tls", "localhost", secured), NATSCA: ca.File()}, ""},
		"own CA turns TLS on":         {broker{NATS: at("nats", "localhost", secured), NATSCA: ca.File()}, ""},
		"wrong name":                  {broker{NATS: at("tls", "127.0.0.1", secured), NATSCA: ca.File()}, "127.0.0.1"},
		"expired":                     {broker{NATS: at("tls", "localhost", over), NATSCA: ca.File()}, "expired"},
		"unknown CA":                  {broker{NATS: at("tls", "localhost", secured), NATSCA: other.File()}, "unknown authority"},
		"the system's certificates":   {broker{NATS: at("tls", "localhost", secured)}, "unknown authority"},
		"TLS that the server demands": {broker{NATS: at("nats", "localhost", secured)}, "unknown authority"},
		"no fallback to plaintext":    {broker{NATS: at("tls", "localhost", plain)}, "secure connection not available"},
		"own CA, no plaintext":        {broker{NATS: at("nats", "localhost", plain), NATSCA: ca.File()}, "secure connection not available"},
		"client certificate":          {broker{NATS: at("tls", "localhost", mutual), NATSCA: ca.File(), NATSCert: client.CertFile, NATSKey: client.KeyFile}, ""},
		"client certificate missing":  {broker{NATS: at("tls", "localhost", mutual), NATSCA: ca.File()}, "tls"},
		"of another CA":               {broker{NATS: at("tls", "localhost", mutual), NATSCA: ca.File(), NATSCert: stranger.CertFile, NATSKey: stranger.KeyFile}, "tls"},
		"TLS first":                   {broker{NATS: at("tls", "localhost", first), NATSCA: ca.File(), NATSTLSFirst: true}, ""},
		"TLS first turns TLS on":      {broker{NATS: at("nats", "localhost", first), NATSCA: ca.File(), NATSTLSFirst: true}, ""},
		"TLS first, wrong name":       {broker{NATS: at("tls", "127.0.0.1", first), NATSCA: ca.File(), NATSTLSFirst: true}, "127.0.0.1"},
		"no TLS first":                {broker{NATS: at("tls", "localhost", first), NATSCA: ca.File()}, "localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := c.broker.relays(t)
			if c.want != "" {
				_, host, _ := strings.Cut(c.broker.NATS, "://")
				awaitNATS(t, conn, false, host, c.want)
				if name == "no TLS first" {
					return // the other verbs say that they waited in vain
				}
			} else {
				awaitNATS(t, conn, true)
			}
			nc, err := c.broker.connect("test")
			switch {
			case c.want == "" && err != nil:
				t.Errorf("connect = %v", err)
			case c.want != "" && err == nil:
				nc.Close()
				t.Errorf("connect worked, want an error with %q", c.want)
			case c.want != "" && !strings.Contains(err.Error(), c.want):
				t.Errorf("connect = %v, want an error with %q", err, c.want)
			case err == nil:
				if _, err := nc.TLSConnectionState(); err != nil {
					t.Errorf("connect worked without TLS: %v", err)
				}
				nc.Close()
			}
		})
	}
}

// A relay that runs reads the CA at its next connect, and says meanwhile why
// there is none.
func TestA37ARotatedNATSCAIsReadAtTheNextConnect(t *testing.T) {
	t.Parallel()
	before, after := envtest.CA(t, "before"), envtest.CA(t, "after")
	config := func(ca *testenv.CA) string {
		pair := envtest.Issue(t)(ca.Server("localhost"))
		return fmt.Sprintf("tls { cert_file: %q, key_file: %q }", pair.CertFile, pair.KeyFile)
	}
	text := func(ca *testenv.CA) string {
		b, err := os.ReadFile(ca.File())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	path := secret(t, config(before))
	server := envtest.NATS(t, testenv.NATSConfig{ConfigFile: path})
	file := secret(t, text(before))
	conn := (&broker{NATS: fmt.Sprintf("tls://localhost:%d", server.Port()), NATSCA: file}).relays(t)
	awaitNATS(t, conn, true)
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	replace(t, path, config(after))
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitNATS(t, conn, false, "localhost", "unknown authority")
	replace(t, file, text(after))
	awaitNATS(t, conn, true)
}

func TestEveryWayToSayWhoWeAreWorksForEveryVerb(t *testing.T) {
	t.Parallel()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	o := newOperator(t)
	users := natsServerWith(t, "authorization { users: [{user: relay, password: %q}, {nkey: %s}] }", special, public).Addr()
	token := natsServerWith(t, "authorization { token: %q }", special).Addr()
	jwts := natsServerWith(t, "%s", o.config).Addr()
	const encoded = "p%40ss%3Aw%2Fo%23r%25d%3F%26%3D%2B%20%C3%A9%27%22%5C"
	file := secret(t, special+"\n")
	for name, c := range map[string]struct{ right, wrong broker }{
		"user in the URL": {
			broker{NATS: "nats://relay:" + encoded + "@" + users}, broker{NATS: "nats://relay:" + encoded + "x@" + users},
		},
		"password file": {
			broker{NATS: users, NATSUser: "relay", NATSPasswordFile: file}, broker{NATS: users, NATSUser: "other", NATSPasswordFile: file},
		},
		"nkey": {broker{NATS: users, NATSNkey: secret(t, string(seed)+"\n")}, broker{NATS: users}},
		"token in the URL": {
			broker{NATS: "nats://" + encoded + "@" + token}, broker{NATS: "nats://x" + encoded + "@" + token},
		},
		"token file": {broker{NATS: token, NATSTokenFile: file}, broker{NATS: token, NATSTokenFile: secret(t, "x\n")}},
		"creds":      {broker{NATS: jwts, NATSCreds: secret(t, o.creds(time.Hour))}, broker{NATS: jwts, NATSCreds: secret(t, newOperator(t).creds(time.Hour))}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			awaitNATS(t, c.right.relays(t), true)
			nc, err := c.right.connect("test")
			if err != nil {
				t.Fatalf("connect = %v", err)
			}
			nc.Close()
			wrong := c.wrong.relays(t)
			awaitNATS(t, wrong, false, "uthorization")
			if st := wrong.Status(); strings.Contains(st.LastError, "p@ss") || strings.Contains(st.LastError, "p%40ss") {
				t.Errorf("the reason shows a secret: %s", st.LastError)
			}
			nc, err = c.wrong.connect("test")
			if err == nil {
				nc.Close()
				t.Fatal("connect worked with the wrong secret")
			}
			if host := c.wrong.NATS[strings.LastIndex(c.wrong.NATS, "@")+1:]; !strings.Contains(err.Error(), host) ||
				strings.Contains(err.Error(), "p@ss") || strings.Contains(err.Error(), "p%40ss") {
				t.Errorf("connect = %v, want host %s and no secret", err, host)
			}
		})
	}
}

// I6.
func TestA60AUserJWTThatExpiresIsReadAgainWhenItIsReplaced(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	server := natsServerWith(t, "%s", o.config)
	file := secret(t, o.creds(2*time.Second))
	conn := (&broker{NATS: server.URL(), NATSCreds: file}).relays(t)
	awaitNATS(t, conn, true)
	// It expires, the server throws us out, and the client gives up; and again.
	awaitNATS(t, conn, false, "uth")
	envtest.Eventually(t, 20*time.Second, func() error {
		if st := conn.Status(); st.Rebuilds < 2 {
			return fmt.Errorf("%d clients were replaced, want 2", st.Rebuilds)
		}
		return nil
	})
	replace(t, file, o.creds(time.Hour))
	awaitNATS(t, conn, true)
}

// An operator signs one account, in which users may do everything.
type operator struct {
	t       *testing.T
	account nkeys.KeyPair
	config  string // of a server
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	must := func(pair nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		public, err := pair.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		return pair, public
	}
	key, id := must(nkeys.CreateOperator())
	account, accountID := must(nkeys.CreateAccount())
	_, systemID := must(nkeys.CreateAccount())
	sign := func(text string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	claims := jwt.NewOperatorClaims(id)
	claims.SystemAccount = systemID
	return &operator{t: t, account: account, config: fmt.Sprintf(
		"operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %s, %s: %s }\n",
		sign(claims.Encode(key)), systemID,
		accountID, sign(jwt.NewAccountClaims(accountID).Encode(key)), systemID, sign(jwt.NewAccountClaims(systemID).Encode(key)),
	)}
}

// creds is a credentials file for a user that expires.
func (o *operator) creds(validity time.Duration) string {
	o.t.Helper()
	user, err := nkeys.CreateUser()
	if err != nil {
		o.t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		o.t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		o.t.Fatal(err)
	}
	claims := jwt.NewUserClaims(public)
	claims.Expires = time.Now().Add(validity).Unix()
	text, err := claims.Encode(o.account)
	if err != nil {
		o.t.Fatal(err)
	}
	creds, err := jwt.FormatUserConfig(text, seed)
	if err != nil {
		o.t.Fatal(err)
	}
	return string(creds)
}
