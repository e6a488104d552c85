package libpq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/libpq"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

const (
	plain  = "plaintext"
	secure = "TLS"
)

// dials opens each of the two kinds of connection that a relay has, and says
// whether the server saw TLS on it.
func dials(ctx context.Context, conninfo string, admin *pgx.Conn) map[string]func() (string, error) {
	seen := func(pid uint32) (how string, err error) {
		if admin == nil {
			return "", nil
		}
		err = admin.QueryRow(ctx, `SELECT CASE WHEN ssl THEN 'TLS' ELSE 'plaintext' END FROM pg_stat_ssl WHERE pid = $1`, int(pid)).Scan(&how)
		return how, err
	}
	return map[string]func() (string, error){
		"SQL": func() (string, error) {
			cfg, err := libpq.Parse(conninfo)
			if err != nil {
				return "", err
			}
			conn, err := pgx.ConnectConfig(ctx, cfg)
			if err != nil {
				return "", libpq.Explain(err)
			}
			defer conn.Close(ctx) //nolint:errcheck // it has done its work
			return seen(conn.PgConn().PID())
		},
		"replication": func() (string, error) {
			cfg, err := libpq.Parse(conninfo)
			if err != nil {
				return "", err
			}
			conn, err := slot.Connect(ctx, slot.Config{Postgres: &cfg.Config})
			if err != nil {
				return "", libpq.Explain(err)
			}
			defer conn.Close()
			return seen(conn.Server().BackendPID)
		},
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// A grounds is three servers: with a certificate for localhost, with one that
// is over, and without TLS.
type grounds struct {
	ca, other              *testenv.CA
	good, expired, without *testenv.Postgres
	client, stranger       testenv.Pair
}

func newGrounds(t *testing.T) *grounds {
	t.Helper()
	g := &grounds{ca: envtest.CA(t, "ours"), other: envtest.CA(t, "another")}
	g.client = envtest.Issue(t)(g.ca.Client("certified"))
	g.stranger = envtest.Issue(t)(g.other.Client("certified"))
	hba := []string{
		"hostssl all certified 127.0.0.1/32 cert", "hostssl all encrypted 127.0.0.1/32 trust", "hostnossl all open 127.0.0.1/32 trust",
	}
	start := func(cfg testenv.PGConfig) *testenv.Postgres {
		p := envtest.Postgres(t, cfg)
		exec(t, connect(t, p.URL("postgres")), "CREATE ROLE certified LOGIN REPLICATION", "CREATE ROLE encrypted LOGIN REPLICATION", "CREATE ROLE open LOGIN REPLICATION")
		return p
	}
	g.good = start(testenv.PGConfig{HBA: hba, TLS: &testenv.PGTLS{Server: envtest.Issue(t)(g.ca.Server("localhost")), ClientCA: g.ca.File()}})
	g.expired = start(testenv.PGConfig{HBA: hba, TLS: &testenv.PGTLS{Server: envtest.Issue(t)(g.ca.Expired("localhost")), ClientCA: g.ca.File()}})
	g.without = start(testenv.PGConfig{})
	return g
}

// I10: each mode means what it means for libpq, on both connections. A failure
// names host, mode and reason, and where a mode forbids it nothing goes in
// plain text.
//
//nolint:tparallel // the subtests share servers, and are fast
func TestA37EachModeMeansTheSameOnBothConnections(t *testing.T) {
	t.Parallel()
	g := newGrounds(t)
	const (
		unknown  = "unknown authority"
		wrong    = "127.0.0.1"
		over     = "expired"
		refused  = "server refused TLS connection"
		noRoot   = "has no certificates to verify with"
		hbaNoTLS = "no encryption"
		hbaTLS   = "SSL encryption"
	)
	for _, c := range []struct {
		name   string
		server *testenv.Postgres
		host   string // localhost if empty
		user   string // postgres if empty
		root   *testenv.CA
		client *testenv.Pair
		want   map[string]string // by mode: plain, secure or a part of the error
	}{
		{"right name", g.good, "", "", g.ca, nil, map[string]string{
			"": secure, "disable": plain, "allow": plain, "prefer": secure, "require": secure, "verify-ca": secure, "verify-full": secure,
		}},
		{"wrong name", g.good, "127.0.0.1", "", g.ca, nil, map[string]string{
			"disable": plain, "allow": plain, "prefer": secure, "require": secure, "verify-ca": secure, "verify-full": wrong,
		}},
		{"expired", g.expired, "", "", g.ca, nil, map[string]string{
			"disable": plain, "allow": plain, "prefer": secure, "require": over, "verify-ca": over, "verify-full": over,
		}},
		{"unknown CA", g.good, "", "", g.other, nil, map[string]string{
			"disable": plain, "allow": plain, "prefer": secure, "require": unknown, "verify-ca": unknown, "verify-full": unknown,
		}},
		{"no root certificate", g.good, "", "", nil, nil, map[string]string{
			"prefer": secure, "require": secure, "verify-ca": noRoot, "verify-full": noRoot,
		}},
		{"no root certificate, expired", g.expired, "", "", nil, nil, map[string]string{"require": secure}},
		{"server without TLS", g.without, "", "", g.ca, nil, map[string]string{
			"": plain, "disable": plain, "allow": plain, "prefer": plain, "require": refused, "verify-ca": refused, "verify-full": refused,
		}},
		{"server that wants TLS", g.good, "", "encrypted", g.ca, nil, map[string]string{
			"": secure, "disable": hbaNoTLS, "allow": secure, "prefer": secure, "require": secure, "verify-full": secure,
		}},
		{"server that wants none", g.good, "", "open", g.ca, nil, map[string]string{
			"disable": plain, "allow": plain, "prefer": plain, "require": hbaTLS, "verify-full": hbaTLS,
		}},
		{"client certificate", g.good, "", "certified", g.ca, &g.client, map[string]string{
			"disable": hbaNoTLS, "allow": secure, "prefer": secure, "require": secure, "verify-ca": secure, "verify-full": secure,
		}},
		{"client certificate missing", g.good, "", "certified", g.ca, nil, map[string]string{
			"prefer": "connection requires a valid client certificate", "verify-full": "connection requires a valid client certificate",
		}},
		{"client certificate of another CA", g.good, "", "certified", g.ca, &g.stranger, map[string]string{
			"verify-full": "connection requires a valid client certificate",
		}},
	} {
		for mode, want := range c.want {
			host, user := c.host, c.user
			if host == "" {
				host = "localhost"
			}
			if user == "" {
				user = "postgres"
			}
			conninfo := fmt.Sprintf("host=%s port=%d user=%s dbname=postgres", host, c.server.Port(), user)
			if mode != "" {
				conninfo += " sslmode=" + mode
			}
			if c.root != nil {
				conninfo += " sslrootcert=" + c.root.File()
			}
			if c.client != nil {
				conninfo += " sslcert=" + c.client.CertFile + " sslkey=" + c.client.KeyFile
			}
			t.Run(c.name+"/"+mode, func(t *testing.T) {
				admin := connect(t, c.server.URL("postgres"))
				for kind, dial := range dials(t.Context(), conninfo, admin) {
					how, err := dial()
					if want == plain || want == secure {
						if err != nil || how != want {
							t.Errorf("%s connection: %q, %v, want %s", kind, how, err, want)
						}
						continue
					}
					if err == nil {
						t.Errorf("%s connection: %s, want an error with %q", kind, how, want)
						continue
					}
					named := []string{want, "sslmode=" + mode}
					if want != noRoot {
						named = append(named, host)
					}
					if mode == "require" && c.root != nil {
						named[1] = "sslmode=verify-ca" // libpq: a root certificate makes the one the other
					}
					for _, part := range named {
						if !strings.Contains(err.Error(), part) {
							t.Errorf("%s connection: error %q does not name %q", kind, err, part)
						}
					}
				}
			})
		}
	}
}

// A CA or client certificate that was replaced while the relay runs counts at
// its next connect, since it parses before each.
func TestA37RotatedCertificatesAreReadAtTheNextConnect(t *testing.T) {
	t.Parallel()
	before, after := envtest.CA(t, "before"), envtest.CA(t, "after")
	p := envtest.Postgres(t, testenv.PGConfig{
		HBA: []string{"hostssl all certified 127.0.0.1/32 cert"},
		TLS: &testenv.PGTLS{Server: envtest.Issue(t)(before.Server("localhost")), ClientCA: before.File()},
	})
	admin := connect(t, p.URL("postgres"))
	exec(t, admin, "CREATE ROLE certified LOGIN REPLICATION")
	dir := t.TempDir()
	root, cert, key := dir+"/root.crt", dir+"/client.crt", dir+"/client.key"
	replace := func(ca *testenv.CA) {
		client := envtest.Issue(t)(ca.Client("certified"))
		for to, from := range map[string]string{root: ca.File(), cert: client.CertFile, key: client.KeyFile} {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	replace(before)
	conninfo := fmt.Sprintf("postgres://certified@localhost:%d/postgres?sslmode=verify-full&sslrootcert=%s&sslcert=%s&sslkey=%s", p.Port(), root, cert, key)
	kinds := dials(t.Context(), conninfo, admin)
	for kind, dial := range kinds {
		if how, err := dial(); err != nil || how != secure {
			t.Fatalf("%s connection before: %q, %v", kind, how, err)
		}
	}
	if err := p.SetTLS(testenv.PGTLS{Server: envtest.Issue(t)(after.Server("localhost")), ClientCA: after.File()}); err != nil {
		t.Fatal(err)
	}
	for kind, dial := range kinds {
		envtest.Eventually(t, 20*time.Second, func() error {
			if _, err := dial(); err == nil || !strings.Contains(err.Error(), "unknown authority") {
				return fmt.Errorf("%s connection with the old files: %w, want an unknown authority", kind, err)
			}
			return nil
		})
	}
	replace(after)
	for kind, dial := range kinds {
		if how, err := dial(); err != nil || how != secure {
			t.Errorf("%s connection after: %q, %v", kind, how, err)
		}
	}
}

// sslnegotiation=direct is of PostgreSQL 17.
func TestA37DirectNegotiationWorksOnBothConnectionsAndNotWithAWeakMode(t *testing.T) {
	t.Parallel()
	ca := envtest.CA(t, "ours")
	p := envtest.Postgres(t, testenv.PGConfig{Version: 17, TLS: &testenv.PGTLS{Server: envtest.Issue(t)(ca.Server("localhost"))}})
	admin := connect(t, p.URL("postgres"))
	base := fmt.Sprintf("host=localhost port=%d user=postgres dbname=postgres sslnegotiation=direct", p.Port())
	for _, mode := range []string{"require", "verify-ca sslrootcert=" + ca.File(), "verify-full sslrootcert=" + ca.File()} {
		for kind, dial := range dials(t.Context(), base+" sslmode="+mode, admin) {
			if how, err := dial(); err != nil || how != secure {
				t.Errorf("%s connection, sslmode=%s: %q, %v, want TLS", kind, mode, how, err)
			}
		}
	}
	for _, mode := range []string{"disable", "allow"} {
		_, err := libpq.Parse(base + " sslmode=" + mode)
		if err == nil || !strings.Contains(err.Error(), "sslnegotiation=direct") {
			t.Errorf("Parse with sslmode=%s = %v, want an error", mode, err)
		}
	}
}

func TestExplainLeavesOtherErrorsAlone(t *testing.T) {
	t.Parallel()
	err := errors.New("something else")
	if got := libpq.Explain(err); got != err { //nolint:errorlint // the very same
		t.Errorf("Explain = %v, want %v", got, err)
	}
	if got := libpq.Explain(nil); got != nil {
		t.Errorf("Explain(nil) = %v", got)
	}
}
