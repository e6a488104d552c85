package e2e_test

import (
	"fmt"
	"net"
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

// leastPrivileges lets a role do what a relay does with PostgreSQL.
const leastPrivileges = `CREATE ROLE %[1]s LOGIN REPLICATION IN ROLE walrelay_relay`

// identity is what a relay shows of itself and trusts, in files that are
// replaced while it runs.
type identity struct{ root, cert, key string }

func newIdentity(t *testing.T) identity {
	t.Helper()
	dir := t.TempDir()
	return identity{root: filepath.Join(dir, "root.crt"), cert: filepath.Join(dir, "client.crt"), key: filepath.Join(dir, "client.key")}
}

// renew has everything signed by another CA.
func (i identity) renew(t *testing.T, ca *testenv.CA) {
	t.Helper()
	client := envtest.Issue(t)(ca.Client("relay"))
	for to, from := range map[string]string{i.root: ca.File(), i.cert: client.CertFile, i.key: client.KeyFile} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		writeSecret(t, to+".next", string(text))
		if err := os.Rename(to+".next", to); err != nil {
			t.Fatal(err)
		}
	}
}

// I5, I6, I10: certificates on all connections, with no more rights than needed
// on either side, and all of it replaced while the relay runs.
func TestA37ARelayThatVerifiesBothServersAndIsVerifiedByBoth(t *testing.T) {
	t.Parallel()
	before, after := envtest.CA(t, "before"), envtest.CA(t, "after")
	config := func(ca *testenv.CA) string {
		pair := envtest.Issue(t)(ca.Server("localhost"))
		return fmt.Sprintf(`tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }
			allow_non_tls: true # for the test itself
			no_auth_user: test
			accounts { SHOP { jetstream: enabled, users: [{user: test, password: test}, {user: relay, password: relay, permissions: {
				publish: ["outbox.shop.>", "$JS.API.STREAM.INFO.SHOP", "$JS.API.STREAM.MSG.GET.SHOP", "$JS.API.DIRECT.GET.SHOP", "$JS.API.DIRECT.GET.SHOP.>"],
				subscribe: ["_WALRELAY.>"]}}] } }`, pair.CertFile, pair.KeyFile, ca.File())
	}
	postgresTLS := func(ca *testenv.CA) testenv.PGTLS {
		return testenv.PGTLS{Server: envtest.Issue(t)(ca.Server("localhost")), ClientCA: ca.File()}
	}
	first := postgresTLS(before)
	cluster := envtest.Postgres(t, testenv.PGConfig{HBA: []string{"hostssl all relay 127.0.0.1/32 cert"}, TLS: &first})
	path := natsConfig(t, config(before))
	broker := envtest.NATS(t, testenv.NATSConfig{ConfigFile: path})
	w := fixture.New(t, fixture.Config{Postgres: cluster, NATS: broker, Superuser: true, Flags: observed()})
	w.Grant()
	w.Exec(fmt.Sprintf(leastPrivileges, "relay"))
	me := newIdentity(t)
	me.renew(t, before)
	relay := w.Start(
		"--database-url", fmt.Sprintf("host=localhost port=%d user=relay dbname=shop sslmode=verify-full sslrootcert=%s sslcert=%s sslkey=%s",
			cluster.Port(), me.root, me.cert, me.key),
		"--nats", fmt.Sprintf("tls://relay:relay@localhost:%d", broker.Port()), "--nats-ca", me.root, "--nats-cert", me.cert, "--nats-key", me.key,
		"--nats-inbox-prefix", "_WALRELAY",
	)
	addr := adminOf(t, relay.Text)
	w.Place(3)
	w.Stored(3)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	const mine = "FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'relay'"
	if n := fixture.Value[int](w, "SELECT count(*) "+mine+" AND ssl AND client_dn = '/CN=relay'"); n != 3 {
		t.Errorf("%d connections with TLS and the relay's certificate, want 3", n)
	}
	if n := fixture.Value[int](w, "SELECT count(*) "+mine+" AND NOT ssl"); n != 0 {
		t.Errorf("%d connections in plain text, want none", n)
	}

	// Both servers get certificates of another CA. What the relay has is old.
	if err := cluster.SetTLS(postgresTLS(after)); err != nil {
		t.Fatal(err)
	}
	restart(t, broker, func() { writeSecret(t, path, config(after)) })
	w.Place(3)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "unknown authority")
	w.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'")
	envtest.Eventually(t, fixture.Patience, func() error {
		if _, why := relay.State(); !strings.Contains(why, "unknown authority") || !strings.Contains(why, "localhost") || !strings.Contains(why, "sslmode=verify-full") {
			return fmt.Errorf("the reason %q does not name host, mode and reason", why)
		}
		return nil
	})
	me.renew(t, after)
	w.Stored(6)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	w.Check()
	relay.Stop(fixture.Patience)
}

// I10: each URL is used for its own connections, a password file for both, and
// two that lead to different databases deliver nothing.
func TestA35SeparateURLsAreUsedEachForItsOwnConnections(t *testing.T) {
	t.Parallel()
	cluster := envtest.Postgres(t, testenv.PGConfig{HBA: []string{"host all writer,reader 127.0.0.1/32 scram-sha-256"}})
	w := fixture.New(t, fixture.Config{Postgres: cluster, Superuser: true, Flags: observed()})
	w.Grant()
	w.Exec(fmt.Sprintf(leastPrivileges, "writer"))
	w.Exec("ALTER ROLE writer NOREPLICATION PASSWORD 'secret-one'; CREATE ROLE reader LOGIN REPLICATION PASSWORD 'secret-one'")
	file := secretFile(t, "secret-one\n")
	sql := fmt.Sprintf("postgres://writer@%s/shop", cluster.Addr())
	relay := w.Start("--database-url", sql, "--database-password-file", file,
		"--replication-url", fmt.Sprintf("host=127.0.0.1 port=%d user=reader dbname=shop", cluster.Port()))
	w.Place(3)
	w.Stored(3)
	for role, user := range map[string]string{"sql": "writer", "listen": "writer", "slot": "reader"} {
		if got := fixture.Value[string](w, "SELECT usename::text FROM pg_stat_activity WHERE application_name = 'walrelay shop ' || $1::text", role); got != user {
			t.Errorf("the %s connection is of user %s, want %s", role, got, user)
		}
	}
	w.Check()
	relay.Stop(fixture.Patience)

	if err := cluster.CreateDatabase(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	astray := w.Start("--database-url", sql, "--database-password-file", file,
		"--replication-url", fmt.Sprintf("postgres://reader@%s/other", cluster.Addr()))
	addr := adminOf(t, astray.Text)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, `leads to database "other", the SQL connection to "shop"`)
	if text := relay.Text() + astray.Text(); strings.Contains(text, "secret-one") {
		t.Error("the log shows a password")
	}
	astray.Stop(fixture.Patience)
}

// The stream is in a domain behind a leaf node; the relay and the verbs reach it
// from there.
func TestAStreamInAnotherJetStreamDomainIsReachedThroughALeafNode(t *testing.T) {
	t.Parallel()
	port, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := port.Addr().String()
	if err := port.Close(); err != nil {
		t.Fatal(err)
	}
	hub := envtest.NATS(t, testenv.NATSConfig{ConfigFile: natsConfig(t, fmt.Sprintf("jetstream { domain: hub }\nleafnodes { listen: %q }", address))})
	leaf := envtest.NATS(t, testenv.NATSConfig{ConfigFile: natsConfig(t, fmt.Sprintf("jetstream { domain: leaf }\nleafnodes { remotes: [{ url: %q }] }", "nats://"+address))})
	w := fixture.New(t, fixture.Config{NATS: hub})
	there := []string{"--nats", leaf.URL(), "--nats-domain", "hub"}
	relay := w.Start(there...)
	w.Place(3)
	w.Stored(3)
	w.Check()
	relay.Stop(fixture.Patience)
	if code, out := verb(t, nil, append([]string{"tail", "--stream", w.StreamName, "--from", "start", "--count", "3"}, there...)...); code != 0 || strings.Count(out, "order.placed") < 3 {
		t.Errorf("walrelay tail = %d: %s", code, out)
	}
	if code, out := verb(t, nil, append([]string{"migrate", "--stream", "MADE", "--subjects", "made.>"}, there...)...); code != 0 {
		t.Errorf("walrelay migrate --stream = %d: %s", code, out)
	}
	if _, err := w.JetStream.Stream(t.Context(), "MADE"); err != nil {
		t.Errorf("the stream that migrate made is not in the hub: %v", err)
	}
}

// A14: a standby first in the list is passed over by the relay and by the other
// verbs.
func TestA14AStandbyFirstInTheListIsPassedOver(t *testing.T) {
	t.Parallel()
	primary := envtest.Postgres(t, testenv.PGConfig{})
	w := fixture.New(t, fixture.Config{Postgres: primary, Flags: observed()})
	if err := primary.Stop(t.Context(), testenv.Fast); err != nil {
		t.Fatal(err)
	}
	standby := envtest.Postgres(t, testenv.PGConfig{
		Version: primary.Version(), DataFrom: primary.DataDir(), Standby: true,
		Settings: map[string]string{"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", primary.Port())},
	})
	if err := primary.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	both := (&url.URL{Scheme: "postgres", User: url.User("postgres"), Host: standby.Addr() + "," + primary.Addr(), Path: "/shop"}).String()
	relay := w.Start("--database-url", both)
	w.Place(3)
	w.Stored(3)
	w.Check()
	relay.Stop(fixture.Patience)
	if code, out := verb(t, nil, "migrate", "--database-url", both, "--source", "shop"); code != 0 {
		t.Errorf("walrelay migrate = %d: %s", code, out)
	}
	// Alone it is named for what it is.
	alone := w.Start("--database-url", standby.URL("shop"))
	awaitReadiness(t, adminOf(t, alone.Text), http.StatusServiceUnavailable, "is a standby")
	alone.Stop(fixture.Patience)
}
