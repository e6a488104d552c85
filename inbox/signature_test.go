package inbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func newKey(t *testing.T, kind, id string) envelope.Key {
	t.Helper()
	k, err := envelope.NewKey(kind, id)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// sign signs a message as the relay does.
func sign(k envelope.Key, m *nats.Msg) *nats.Msg {
	var headers []envelope.Header
	for name, values := range m.Header {
		headers = append(headers, envelope.Header{Name: name, Value: values[0]})
	}
	m.Header[envelope.HeaderSignature] = []string{k.Sign(m.Subject, m.Header[envelope.HeaderMsgID][0], headers, m.Data)}
	return m
}

// replaceFile replaces a file at once, as a mounted secret is.
func replaceFile(t *testing.T, path string, keys ...envelope.Key) {
	t.Helper()
	var text strings.Builder
	for _, k := range keys {
		fmt.Fprintln(&text, k.Public().Line())
	}
	if err := os.WriteFile(path+".next", []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

// I9, I10: what the relay has not signed has no effect, whatever it says, and is
// there for somebody to look at; what is genuine has its effect once, also where
// a forgery bears its id. A key that comes by rotation needs no restart.
func TestAMessageThatIsNotSignedBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	for _, order := range []inbox.Order{inbox.Unordered, inbox.PerAggregate} {
		for _, kind := range []string{envelope.KindHMAC, envelope.KindEd25519} {
			t.Run(fmt.Sprint(kind, order), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				k1, k2, foreign := newKey(t, kind, "k1"), newKey(t, kind, "k2"), newKey(t, kind, "k1")
				path := filepath.Join(t.TempDir(), "keys")
				replaceFile(t, path, k1)
				cfg := w.config("billing")
				cfg.Order = order
				cfg.Unreadable = inbox.Skip // is not for these
				cfg.SignatureKeys = func() ([]byte, error) { return os.ReadFile(path) }
				w.start(w.consumer("pgx", cfg, apply))

				genuine := event(uuid.NewString(), "a1", 1)
				stolen := genuine.Header[envelope.HeaderMsgID][0]
				// A forgery that comes before what is genuine, under its id.
				forged := event(uuid.NewString(), "a1", 666)
				forged.Header[envelope.HeaderEventID] = []string{stolen}
				w.publishMsg(forged)
				w.publishMsg(sign(foreign, event(uuid.NewString(), "a1", 667)))
				altered := sign(k1, event(uuid.NewString(), "a1", 668))
				altered.Header[envelope.HeaderAggregateID] = []string{"a2"}
				w.publishMsg(altered)
				w.publishMsg(sign(k1, genuine))
				early := event(uuid.NewString(), "a1", 2)
				w.publishMsg(sign(k2, early)) // nobody has told the consumer yet
				w.settled("billing")
				effects := func() (list string) {
					if err := w.pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(n::text, ' ' ORDER BY n), '') FROM effect`).Scan(&list); err != nil {
						t.Fatal(err)
					}
					return list
				}
				if got := effects(); got != "1" {
					t.Errorf("effects are of %s, want of the genuine one alone", got)
				}
				var letters string
				if err := w.pool.QueryRow(t.Context(), `SELECT string_agg(format('%s, id %s, aggregate %s', reason, coalesce(event_id, 'none'), coalesce(aggregate, 'none')), E'\n' ORDER BY sequence)
					FROM walrelay.consumer_dead_letter`).Scan(&letters); err != nil {
					t.Fatal(err)
				}
				var want []string
				for _, letter := range []string{"unsigned 1", "bad signature 2", "bad signature 3", "unknown key 5"} {
					i := strings.LastIndexByte(letter, ' ')
					want = append(want, letter[:i]+", id none, aggregate /SHOP:"+letter[i+1:])
				}
				if diff := cmp.Diff(strings.Join(want, "\n"), letters); diff != "" {
					t.Errorf("dead letters (-want +got):\n%s", diff)
				}

				// The key comes by rotation; both count until the old one is taken away.
				replaceFile(t, path, k1, k2)
				envtest.Eventually(t, 30*time.Second, func() error {
					w.publishMsg(sign(k2, event(uuid.NewString(), "a1", 3)))
					w.settled("billing")
					if got := effects(); !strings.HasPrefix(got, "1 3") {
						return fmt.Errorf("effects are of %s, want one of the new key", got)
					}
					return nil
				})
				// What came too early is applied by a requeue, a forgery never.
				if _, err := w.pool.Exec(t.Context(), `UPDATE walrelay.consumer_dead_letter SET requeue_at = clock_timestamp(), requeue_by = 'ann', requeue_why = 'a test'
					WHERE reason <> 'unknown key' OR sequence = (SELECT min(sequence) FROM walrelay.consumer_dead_letter WHERE reason = 'unknown key')`); err != nil {
					t.Fatal(err)
				}
				envtest.Eventually(t, 30*time.Second, func() error {
					if n := w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter WHERE requeue_at IS NOT NULL AND resolved_at IS NULL`); n > 0 {
						return fmt.Errorf("%d requeues are open", n)
					}
					return nil
				})
				if got := effects(); !strings.HasPrefix(got, "1 2 3") || strings.Contains(got, "66") {
					t.Errorf("effects are of %s, want of what is genuine alone", got)
				}
				if n := w.count(`SELECT count(*) FROM walrelay.consumer_dead_letter WHERE resolved_at IS NULL AND reason IN ('unsigned', 'bad signature')`); n != 3 {
					t.Errorf("%d forgeries stay open, want 3", n)
				}
				if n := w.count(`SELECT count(*) FROM effect WHERE event_id = $1`, stolen); n != 1 {
					t.Errorf("the event whose id was stolen has %d effects, want 1", n)
				}
			})
		}
	}
}

// I10: keys that cannot be read are said at once, and later do no harm.
func TestKeysOfSignaturesThatCannotBeReadAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config("billing")
	broken := errors.New("no such file")
	cfg.SignatureKeys = func() ([]byte, error) { return nil, broken }
	if _, err := inbox.New(cfg); !errors.Is(err, broken) || !strings.Contains(err.Error(), "SignatureKeys") {
		t.Errorf("New without keys: %v, want the setting and the cause", err)
	}
	k := newKey(t, envelope.KindHMAC, "k1")
	var fail error
	cfg.SignatureKeys = func() ([]byte, error) { return []byte(k.Line()), fail }
	c := w.consumer("pgx", cfg, apply)
	fail = broken
	m := sign(k, event(uuid.NewString(), "a1", 1))
	message := inbox.Message{Headers: m.Header, Subject: m.Subject, Raw: m.Data}
	if o, err := c.Apply(t.Context(), message); err != nil || o != inbox.Applied {
		t.Errorf("Apply of what is signed = %v, %v, want it applied", o, err)
	}
	message.Raw = []byte(`{"n": 5}`)
	if o, err := c.Apply(t.Context(), message); !errors.Is(err, envelope.ErrBadSignature) {
		t.Errorf("Apply of what was altered = %v, %v, want %v", o, err, envelope.ErrBadSignature)
	}
}
