package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A service is a running consumer whose handler fails until it is fixed.
type service struct {
	t     *testing.T
	url   string
	pool  *pgxpool.Pool
	js    jetstream.JetStream
	fixed atomic.Bool
	stop  func() // can be called again
}

func newService(t *testing.T, retention time.Duration) *service {
	t.Helper()
	s := &service{t: t, url: envtest.SharedPostgres(t)}
	if code, _, stderr := call("migrate", "--consumer", "--database-url", s.url); code != exitDone {
		t.Fatalf("walrelay migrate --consumer = %d: %s", code, stderr)
	}
	var err error
	if s.pool, err = pgxpool.New(t.Context(), s.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	if _, err := s.pool.Exec(t.Context(), `CREATE TABLE effect (event_id text PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(envtest.EmbeddedNATS(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if s.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if _, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}}); err != nil {
		t.Fatal(err)
	}
	c, err := inbox.New(inbox.Config{
		Name: "billing", DB: s.pool, JetStream: s.js, Stream: "SHOP", Concurrency: 1, CheckInterval: 50 * time.Millisecond, ReceiptRetention: retention,
	})
	if err != nil {
		t.Fatal(err)
	}
	inbox.On(c, "placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[[]byte]) error {
		if !s.fixed.Load() {
			return inbox.Permanent(errors.New("no such account"))
		}
		_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, e.ID)
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// fail publishes events until there are that many dead letters.
func (s *service) fail(n int) {
	s.t.Helper()
	for i := range n {
		m := nats.NewMsg("shop.order.placed")
		m.Header[envelope.HeaderMsgID] = []string{fmt.Sprint("event-", i+1)}
		m.Header[envelope.HeaderAggregateType] = []string{"order"}
		m.Header[envelope.HeaderAggregateID] = []string{"42"}
		m.Header[envelope.HeaderEventType] = []string{"placed"}
		m.Data = []byte(`{"amount": 5}`)
		if _, err := s.js.PublishMsg(s.t.Context(), m); err != nil {
			s.t.Fatal(err)
		}
		envtest.Eventually(s.t, 10*time.Second, func() error {
			if got := s.count(`SELECT count(*) FROM walrelay.consumer_dead_letter`); got != i+1 {
				return fmt.Errorf("dead letters = %d, want %d", got, i+1)
			}
			return nil
		})
	}
}

func (s *service) count(query string) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), query).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// verb calls the command and compares its exit code.
func (s *service) verb(want int, args ...string) string {
	s.t.Helper()
	code, stdout, stderr := call(append(args, "--database-url", s.url)...)
	if code != want {
		s.t.Errorf("walrelay %s = %d, want %d: %s%s", strings.Join(args, " "), code, want, stdout, stderr)
	}
	return stdout + stderr
}

func contains(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
}

func TestDeadLettersOfAConsumerAreListedRequeuedAndDiscarded(t *testing.T) {
	t.Parallel()
	s := newService(t, 0)
	s.fail(3)
	list := []string{"deadletters", "list", "--consumer", "billing"}
	contains(t, s.verb(exitDone, list...), "event-1", "event-2", "event-3", "order/42", "no such account", "permanent", "open")
	var l struct {
		ID      int64
		EventID string `json:"event_id"`
		Payload []byte
		History []struct{ Did, By, Why, Error string }
	}
	first, _, _ := strings.Cut(s.verb(exitDone, append(list, "--json")...), "\n")
	if err := json.Unmarshal([]byte(first), &l); err != nil || l.ID != 1 || l.EventID != "event-1" || l.Payload != nil {
		t.Errorf("list --json begins with %s (%v), want dead letter 1 without its payload", first, err)
	}
	contains(t, s.verb(exitDone, "deadletters", "--consumer", "billing", "show", "1"), `{"amount": 5}`, "SHOP, sequence 1", envelope.HeaderMsgID)
	if out := s.verb(exitDone, append(list, "--reason", "attempts")...); strings.Contains(out, "event-") {
		t.Errorf("list --reason attempts shows others:\n%s", out)
	}

	requeue := func(more ...string) []string {
		return append([]string{"deadletters", "requeue", "--consumer", "billing", "--by", "ann"}, more...)
	}
	contains(t, s.verb(exitUsage, requeue("1")...), "--why")
	contains(t, s.verb(exitUsage, requeue("--why", "x")...), "give ids")
	contains(t, s.verb(exitUsage, requeue("1", "--all", "--why", "x")...), "not both")
	contains(t, s.verb(exitFailed, requeue("1", "77", "--why", "x", "--yes")...), "has the id 77")
	contains(t, s.verb(exitUsage, requeue("1", "--why", "x")...), "add --yes") // nobody is there to be asked
	contains(t, s.verb(exitDone, requeue("--all", "--why", "x", "--dry-run")...), "3 of consumer", "event-3")
	if got := s.count(`SELECT count(*) FROM walrelay.consumer_dead_letter WHERE history = '[]' AND requeue_at IS NULL`); got != 3 {
		t.Fatalf("dead letters that nothing was done about = %d, want 3", got)
	}
	contains(t, s.verb(exitFailed, requeue("1", "--why", "try it", "--yes", "--wait", "20s")...), "applied: 0, failed again: 1")
	s.fixed.Store(true)
	contains(t, s.verb(exitDone, requeue("1", "2", "--why", "account made", "--yes", "--wait", "20s")...), "applied: 2, failed again: 0")
	if got := s.count(`SELECT count(*) FROM effect e JOIN walrelay.receipt r USING (event_id)`); got != 2 {
		t.Errorf("effects with receipts = %d, want 2", got)
	}

	discard := []string{"deadletters", "discard", "--consumer", "billing", "--by", "bob", "--why", "a test order"}
	contains(t, s.verb(exitDone, append(discard, "--all", "--dry-run")...), "1 of consumer", "event-3")
	contains(t, s.verb(exitDone, append(discard, "3", "--yes")...), "discarded: 1")
	contains(t, s.verb(exitDone, append(discard, "--all", "--yes")...), "no open dead letter")
	contains(t, s.verb(exitFailed, append(discard, "3", "--yes")...), "has the id 3")
	if got := s.count(`SELECT count(*) FROM effect`); got != 2 {
		t.Errorf("effects = %d, want 2: one was discarded", got)
	}

	if out := s.verb(exitDone, list...); strings.Contains(out, "event-") {
		t.Errorf("dead letters are still open:\n%s", out)
	}
	contains(t, s.verb(exitDone, append(list, "--all")...), "requeued", "discarded")
	if err := json.Unmarshal([]byte(s.verb(exitDone, "deadletters", "show", "1", "--json", "--consumer", "billing")), &l); err != nil {
		t.Fatal(err)
	}
	var did []string
	for _, h := range l.History {
		did = append(did, strings.Join(strings.Fields(strings.Join([]string{h.Did, h.By, h.Why, h.Error}, " ")), " "))
	}
	if got, want := strings.Join(did, "; "), "requeue ann try it; failed no such account; requeue ann account made; applied"; got != want {
		t.Errorf("history = %q, want %q", got, want)
	}
	contains(t, s.verb(exitDone, "deadletters", "show", "3", "--consumer", "billing"), "discard by bob: a test order")
}

func TestVerbsOfAConsumerNameWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := newService(t, 0)
	s.fail(1)
	for _, args := range [][]string{
		{"deadletters", "list", "--consumer", "biling"},
		{"deadletters", "show", "1", "--consumer", "biling"},
		{"deadletters", "requeue", "--all", "--why", "x", "--yes", "--consumer", "biling"},
		{"cleanup", "--consumer", "biling", "--yes"},
	} {
		contains(t, s.verb(exitFailed, args...), `no consumer "biling"`, "there is billing")
	}
	contains(t, s.verb(exitUsage, "deadletters", "requeue", "1", "--why", "x", "--yes"), "--consumer")
	contains(t, s.verb(exitFailed, "deadletters", "list", "--consumer", "billing", "--schema", "other"), "walrelay migrate --consumer")
	code, _, stderr := call("deadletters", "list", "--consumer", "billing", "--database-url", envtest.SharedPostgres(t))
	if code != exitFailed {
		t.Errorf("walrelay deadletters list of an empty database = %d, want %d", code, exitFailed)
	}
	contains(t, stderr, "walrelay migrate --consumer")
}

// A68, A69.
func TestCleanupDeletesReceiptsThatAreOlderThanTheServiceKeepsThem(t *testing.T) {
	t.Parallel()
	s := newService(t, 60*24*time.Hour)
	envtest.Eventually(t, 10*time.Second, func() error {
		if s.count(`SELECT count(*) FROM walrelay.consumer WHERE receipt_retention = interval '60 days'`) != 1 {
			return errors.New("the service has not noted its retention")
		}
		return nil
	})
	s.stop() // it deletes old receipts by itself now and then
	fill := func(days int) {
		_, err := s.pool.Exec(t.Context(), `INSERT INTO walrelay.receipt (consumer, event_id, at)
			SELECT 'billing', $1::int || '-' || n, now() - $1::int * interval '1 day' FROM generate_series(1, 3000) AS n`, days)
		if err != nil {
			t.Fatal(err)
		}
	}
	fill(61)
	fill(40)
	cleanup := []string{"cleanup", "--consumer", "billing"}
	contains(t, s.verb(exitDone, append(cleanup, "--dry-run")...), "3000 receipts", "1440h0m0s")
	contains(t, s.verb(exitUsage, cleanup...), "add --yes")
	if got := s.count(`SELECT count(*) FROM walrelay.receipt`); got != 6000 {
		t.Errorf("receipts = %d, want 6000 still", got)
	}
	contains(t, s.verb(exitDone, append(cleanup, "--yes")...), "deleted: 3000 receipts")
	contains(t, s.verb(exitDone, append(cleanup, "--receipt-retention", "720h", "--dry-run")...), "3000 receipts", "is applied again when it comes again")
	contains(t, s.verb(exitDone, append(cleanup, "--receipt-retention", "720h", "--yes")...), "deleted: 3000 receipts")
	contains(t, s.verb(exitUsage, append(cleanup, "--receipt-retention", "a month")...), "--receipt-retention")
	if got := s.count(`SELECT count(*) FROM walrelay.receipt`); got != 0 {
		t.Errorf("receipts = %d, want none", got)
	}
	// A service in another language is known by its receipts alone.
	if _, err := s.pool.Exec(t.Context(), `SELECT walrelay.receive('node', '1')`); err != nil {
		t.Fatal(err)
	}
	contains(t, s.verb(exitDone, "cleanup", "--consumer", "node", "--yes"), "0 receipts", "720h0m0s")
}

func TestReceiptsThatAreKeptForEverAreNotCleanedUnasked(t *testing.T) {
	t.Parallel()
	s := newService(t, -1)
	envtest.Eventually(t, 10*time.Second, func() error {
		if s.count(`SELECT count(*) FROM walrelay.consumer WHERE kept_for_ever`) != 1 {
			return errors.New("the service has not noted its retention")
		}
		return nil
	})
	contains(t, s.verb(exitFailed, "cleanup", "--consumer", "billing", "--yes"), "for ever", "--receipt-retention")
}
