package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// signKey makes a key with the command and gives its line and that of those who
// verify.
func signKey(t *testing.T, id, kind string) (line, verifiers string) {
	t.Helper()
	// It prints a secret because that is its work, so not by verb.
	out, err := osexec.Command(fixture.Binary(t), "sign-key", "--key-id", id, "--kind", kind).Output()
	if err != nil {
		t.Fatalf("walrelay sign-key: %v", err)
	}
	line = string(out)
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[0] != id || fields[1] != kind {
		t.Fatalf("walrelay sign-key prints %d words, want %s, %s and the key", len(fields), id, kind)
	}
	fixture.Secret(fields[2])
	if kind == envelope.KindHMAC {
		return line, line
	}
	file := filepath.Join(t.TempDir(), "key")
	writeSecret(t, file, line)
	code, public := verb(t, nil, "sign-key", "--public", file)
	if code != 0 || !strings.HasPrefix(public, id+" "+envelope.KindEd25519Public+" ") {
		t.Fatalf("walrelay sign-key --public = %d: %s", code, public)
	}
	return line, public
}

func replaceSecret(t *testing.T, path, text string) {
	t.Helper()
	writeSecret(t, path+".next", text)
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

// dropRole drops a role of the world's database, for the end of a test.
func dropRole(t *testing.T, w *fixture.World, role string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, statement := range []string{"DROP OWNED BY " + role, "DROP ROLE " + role} {
		if _, err := w.Pool.Exec(ctx, statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

// billing runs a consumer of the world with the rights that ship for one, until
// the test ends or stop is called.
func billing(t *testing.T, w *fixture.World, keys string) (stop func()) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), w.As(w.Source+"_billing")+"&pool_max_conns=12")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(w.BrokerAs("billing"), nats.CustomInboxPrefix("_INBOX_billing"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		t.Errorf("the consumer's user lacks a permission: %v", err)
	}))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	c, err := inbox.New(inbox.Config{
		Name: "billing", DB: pool, JetStream: js, Stream: w.StreamName, Subjects: []string{"outbox." + w.Source + ".order.>"},
		SignatureKeys: func() ([]byte, error) { return os.ReadFile(keys) },
	})
	if err != nil {
		t.Fatal(err)
	}
	inbox.On(c, "placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[map[string]any]) error {
		_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", e.ID)
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the consumer ended: %v", err)
		}
		conn.Close()
		pool.Close()
	}
	t.Cleanup(stop)
	return stop
}

// I4, I9, I10: each message is signed, wherever it comes from, and a key is
// replaced while all runs. The consumer has the rights that ship for one, also
// when its database has forgotten what it applied.
func TestEveryMessageIsSignedAndAConsumerTakesNoOther(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: observed("--shared")})
	first, firstPublic := signKey(t, "k1", envelope.KindEd25519)
	second, _ := signKey(t, "k2", envelope.KindHMAC)
	key, keys := filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "keys")
	writeSecret(t, key, first)
	writeSecret(t, keys, firstPublic+second)

	if code, out := verb(t, nil, "migrate", "--consumer", "--database-url", w.As(fixture.RoleAdmin)); code != 0 {
		t.Fatalf("walrelay migrate --consumer = %d: %s", code, out)
	}
	w.Grant()
	role := w.Source + "_billing"
	w.Exec(fmt.Sprintf("CREATE TABLE effect (id text); CREATE ROLE %s LOGIN IN ROLE %s; GRANT INSERT ON effect TO %s", role, fixture.RoleConsumer, role))
	t.Cleanup(func() { dropRole(t, w, role) })
	stop := billing(t, w, keys)
	effects := func(n int) {
		t.Helper()
		envtest.Eventually(t, fixture.Patience, func() error {
			if got := fixture.Value[int](w, "SELECT count(*) FROM effect"); got != n {
				return fmt.Errorf("%d effects, want %d", got, n)
			}
			return nil
		})
		if got := fixture.Value[int](w, "SELECT count(DISTINCT id) FROM effect"); got != n {
			t.Errorf("%d events have effects, want %d", got, n)
		}
	}

	relay := w.Start("--sign-key-file", key)
	w.Place(5)
	effects(5)
	proven(t, w)
	database, broker := w.RelayFlags()
	if code, out := verb(t, nil, append(append([]string{"replay", "--yes", "--new-id", "--since", "1h"}, database...), broker...)...); code != 0 {
		t.Fatalf("walrelay replay = %d: %s", code, out)
	}
	w.Stored(10)
	// Somebody else writes to the stream, as he may where it is shared.
	if _, err := w.JetStream.Publish(t.Context(), "outbox."+w.Source+".order.placed", []byte(`{"n": 1}`), jetstream.WithMsgID("forged")); err != nil {
		t.Fatal(err)
	}
	w.Place(1)
	effects(6)
	// Another key, while the relay runs.
	replaceSecret(t, key, second)
	envtest.Eventually(t, fixture.Patience, func() error {
		if !strings.Contains(relay.Text(), "the key that signs messages was replaced") {
			return errors.New("the relay has not taken up the new key")
		}
		return nil
	})
	relay.Await("relaying", fixture.Patience)
	w.Place(5)
	effects(11)
	relay.Stop(fixture.Patience)
	w.Exec("SELECT pg_drop_replication_slot($1)", w.Source)
	insertMany(w, 20)
	relay = w.Start("--sign-key-file", key)
	effects(31)

	all, err := envelope.ParseKeys([]byte(firstPublic + second))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, m := range w.Stored(37) {
		err := envelope.Verify(all, m.Subject, m.Header, m.Body)
		signer, _, _ := strings.Cut(strings.TrimPrefix(m.Header.Get(envelope.HeaderSignature), "v1 "), " ")
		origin, _, _ := strings.Cut(m.Event.Origin, "/")
		kinds[fmt.Sprintf("%s %s %v", origin, signer, err)]++
	}
	want := map[string]int{" k1 <nil>": 6, "replay k1 <nil>": 5, "  message is not signed": 1, " k2 <nil>": 5, "heal k2 <nil>": 20}
	if fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("messages by origin, key and verdict: %v, want %v", kinds, want)
	}
	if got := fixture.Value[string](w, "SELECT string_agg(reason, ', ') FROM walrelay.consumer_dead_letter"); got != "unsigned" {
		t.Errorf("the consumer's dead letters are %s, want that of the foreign message", got)
	}

	// A failover of the consumer's database: it forgets, and compares.
	stop()
	w.Exec("DELETE FROM effect; DELETE FROM walrelay.receipt; UPDATE walrelay.consumer SET verified = 0")
	billing(t, w, keys)
	effects(31)
	relay.Stop(fixture.Patience)
}

// A key that cannot be used is named before anything starts, and not shown.
func TestASigningKeyThatCannotBeUsedIsNamed(t *testing.T) {
	t.Parallel()
	secret := fixture.NewSecret()
	for text, want := range map[string]string{
		"k1 hmac-sha256 " + secret: "--sign-key-file",
		secret:                     "line 1: want an id, a kind and base64",
		"k1 ed25519-public MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=": "a public key does not sign",
	} {
		file := filepath.Join(t.TempDir(), "key")
		writeSecret(t, file, text)
		if code, out := verb(t, nil, "run", "--database-url", "postgres://relay@127.0.0.1:1/shop", "--nats", "127.0.0.1:1", "--sign-key-file", file); code != 2 || !strings.Contains(out, want) {
			t.Errorf("walrelay run with key %.20q = %d: %s, want 2 and %q", text, code, out, want)
		}
	}
	if code, out := verb(t, nil, "run", "--database-url", "postgres://relay@127.0.0.1:1/shop", "--nats", "127.0.0.1:1", "--sign-key-file", "/nowhere"); code != 2 || !strings.Contains(out, "cannot be read") {
		t.Errorf("walrelay run without the key's file = %d: %s", code, out)
	}
}
