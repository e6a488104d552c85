package publish_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

const source = "shop"

// A rig is one stream under test with what it told us.
type rig struct {
	t      *testing.T
	conn   *publish.Conn
	stream publish.Publisher
	cancel context.CancelFunc
	ended  chan struct{}
	runErr error

	mu      sync.Mutex
	stored  map[uint64]int
	total   int
	refused []publish.Refused
}

func openConn(t *testing.T, urls string, opts ...nats.Option) *publish.Conn {
	t.Helper()
	conn, err := publish.Open(t.Context(), publish.ConnConfig{
		URLs: urls, RequestTimeout: time.Second,
		Options: func() ([]nats.Option, error) { return opts, nil },
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// patience is longer than anything here may take: what exceeds it hangs.
const patience = 2 * time.Minute

// limited is the test's context with an end, for calls that may wait for ever.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, fmt.Errorf("nothing for %v", patience))
	t.Cleanup(cancel)
	return ctx
}

// came waits for a value, or the end, of what a goroutine of the test tells.
func came[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-limited(t).Done():
		t.Fatalf("nothing came for %v", patience)
	}
	return v
}

// startOn runs a chain on conn from the stream's end.
func startOn(t *testing.T, conn *publish.Conn, lastAcked uint64, change ...func(*publish.Config)) *rig {
	t.Helper()
	return startAs(t, conn, func(cfg publish.Config) publish.Publisher {
		told := uint64(0)
		stored := cfg.Stored
		cfg.Stored = func(run publish.StoredRun) {
			if run.Tx < told {
				t.Errorf("Stored(%d) after Stored(%d)", run.Tx, told)
			}
			told = run.Tx
			stored(run)
		}
		return publish.New(conn, cfg)
	}, lastAcked, change...)
}

// lanesOn runs lanes on conn.
func lanesOn(t *testing.T, conn *publish.Conn, lastAcked uint64, change ...func(*publish.Config)) *rig {
	t.Helper()
	return startAs(t, conn, func(cfg publish.Config) publish.Publisher { return publish.NewLanes(conn, cfg) }, lastAcked, change...)
}

// A starter is startOn or lanesOn.
type starter func(t *testing.T, conn *publish.Conn, lastAcked uint64, change ...func(*publish.Config)) *rig

// unhurried is for tests that want no doubt about any attempt: a server that a
// busy machine does not run for a second is no trouble of theirs.
func unhurried(c *publish.Config) { c.AckTimeout = 30 * time.Second }

// batchesOn runs a chain on conn that sends batches wherever it can.
func batchesOn(t *testing.T, conn *publish.Conn, lastAcked uint64, change ...func(*publish.Config)) *rig {
	t.Helper()
	return startOn(t, conn, lastAcked, append(change, func(c *publish.Config) { c.Batching = publish.BatchAlways })...)
}

// chains runs a test of a chain in both of its ways.
func chains(t *testing.T, test func(t *testing.T, start starter)) {
	t.Helper()
	each(t, test, map[string]starter{"chain": startOn, "batches": batchesOn})
}

// both runs a test of what chain and lanes have in common. Events without a key
// are one lane, so that their order is that of the chain.
func both(t *testing.T, test func(t *testing.T, start starter)) {
	t.Helper()
	each(t, test, map[string]starter{"chain": startOn, "batches": batchesOn, "lanes": lanesOn})
}

func each(t *testing.T, test func(t *testing.T, start starter), starters map[string]starter) {
	t.Helper()
	for name, start := range starters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start)
		})
	}
}

func startAs(
	t *testing.T, conn *publish.Conn, build func(publish.Config) publish.Publisher, lastAcked uint64, change ...func(*publish.Config),
) *rig {
	t.Helper()
	r := &rig{t: t, conn: conn, ended: make(chan struct{}), stored: map[uint64]int{}}
	cfg := publish.Config{
		Stream: "EV", Source: source, AckTimeout: time.Second, LossConfirm: 200 * time.Millisecond, RetryMost: 200 * time.Millisecond,
		Stored: func(run publish.StoredRun) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.stored[run.Tx] += run.N
			r.total += run.N
		},
		Refused: func(_ context.Context, refused publish.Refused) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.refused = append(r.refused, refused)
			return nil
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	r.stream = build(cfg)
	tail, err := r.stream.Tail(limited(t))
	if err != nil {
		t.Fatalf("Tail: %v; status %+v", err, r.stream.Status())
	}
	r.stream.Begin(t.Context(), tail, lastAcked)
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() {
		defer close(r.ended)
		r.runErr = r.stream.Run(ctx)
	}()
	t.Cleanup(r.stop)
	return r
}

func (r *rig) stop() {
	r.cancel()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.t.Errorf("Run goes on %v after the end of its context; status %+v", patience, r.stream.Status())
	}
}

func event(i int) (uint64, envelope.Position, *publish.Message) {
	pos := envelope.Position{Epoch: 1, Commit: envelope.LSN(1000 + i/3), Index: uint64(i % 3)}
	return uint64(1 + i/3), pos, &publish.Message{
		Subject: "ev." + strconv.Itoa(i%7), MsgID: "id-" + strconv.Itoa(i), Body: []byte("body " + strconv.Itoa(i)),
		Headers: []envelope.Header{{Name: envelope.HeaderSource, Value: source}, {Name: envelope.HeaderPosition, Value: pos.String()}},
	}
}

func (r *rig) send(from, to int) {
	r.t.Helper()
	r.sendEach(from, to, event)
}

func (r *rig) sendEach(from, to int, nth func(i int) (uint64, envelope.Position, *publish.Message)) {
	r.t.Helper()
	ctx := limited(r.t)
	for i := from; i < to; i++ {
		tx, pos, m := nth(i)
		if err := r.stream.Send(ctx, tx, pos, m); err != nil {
			r.t.Fatalf("Send(%d): %v; status %+v", i, err, r.stream.Status())
		}
	}
}

// sendWhileItRuns sends until Run has ended by itself, which may come before all
// is sent, and gives how many were taken.
func (r *rig) sendWhileItRuns(from, to int, nth func(i int) (uint64, envelope.Position, *publish.Message)) (taken int) {
	r.t.Helper()
	ctx := limited(r.t)
	for i := from; i < to; i++ {
		tx, pos, m := nth(i)
		switch err := r.stream.Send(ctx, tx, pos, m); {
		case errors.Is(err, publish.ErrStopped):
			return i - from
		case err != nil:
			r.t.Fatalf("Send(%d): %v; status %+v", i, err, r.stream.Status())
		}
	}
	return to - from
}

func (r *rig) drain() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 60*time.Second)
	defer cancel()
	if err := r.stream.Drain(ctx); err != nil {
		r.t.Fatalf("Drain: %v; status %+v", err, r.stream.Status())
	}
}

func (r *rig) totalStored() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// wantTold waits until Stored was told of n. Status may know of them before, as
// Stored is told by one goroutine at a time.
func (r *rig) wantTold(n int, within time.Duration) {
	r.t.Helper()
	envtest.Eventually(r.t, within, func() error {
		if got := r.totalStored(); got != n {
			return fmt.Errorf("Stored was told of %d, want %d", got, n)
		}
		return nil
	})
}

// waitFor waits until the stream says that it waits for something with text.
func (r *rig) waitFor(text string) {
	r.t.Helper()
	envtest.Eventually(r.t, 20*time.Second, func() error {
		if st := r.stream.Status(); !strings.Contains(st.Reason, text) {
			return fmt.Errorf("state %v, reason %q, want %q in it", st.State, st.Reason, text)
		}
		return nil
	})
	if st := r.stream.Status(); st.Healthy() {
		r.t.Errorf("Healthy() = true while waiting for %q", text)
	}
}

// runEnds waits for Run's error.
func (r *rig) runEnds() error {
	r.t.Helper()
	select {
	case <-r.ended:
		return r.runErr
	case <-time.After(20 * time.Second):
		r.t.Fatalf("Run goes on; status %+v", r.stream.Status())
		return nil
	}
}

// admin gives a client of the test's own.
func admin(t *testing.T, url string, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, append(opts, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))...)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatalf("jetstream: %v", err)
	}
	return js
}

func createStream(t *testing.T, js jetstream.JetStream, change ...func(*jetstream.StreamConfig)) {
	t.Helper()
	cfg := jetstream.StreamConfig{Name: "EV", Subjects: []string{"ev.>"}, AllowAtomicPublish: true}
	for _, f := range change {
		f(&cfg)
	}
	envtest.MakeStream(t, js, cfg)
}

// wantStored checks that the stream has exactly the events [0, n) in order,
// less those of skip.
func wantStored(t *testing.T, js jetstream.JetStream, n int, skip ...int) {
	t.Helper()
	var want []string
	for i := range n {
		if !slices.Contains(skip, i) {
			want = append(want, "id-"+strconv.Itoa(i))
		}
	}
	got := ids(t, js, len(want))
	for k := range max(len(got), len(want)) {
		if k >= len(got) || k >= len(want) || got[k] != want[k] {
			t.Fatalf("stream has %d messages, want %d; first difference at %d: %v", len(got), len(want), k, got[max(0, min(k, len(got))-2):min(len(got), k+3)])
		}
	}
}

func ids(t *testing.T, js jetstream.JetStream, atLeast int) []string {
	t.Helper()
	var s jetstream.Stream
	envtest.Eventually(t, 30*time.Second, func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		s, err = js.Stream(ctx, "EV")
		if err != nil {
			return err
		}
		if n := s.CachedInfo().State.Msgs; n < uint64(atLeast) {
			return fmt.Errorf("stream has %d messages, want %d", n, atLeast)
		}
		return nil
	})
	total := int(s.CachedInfo().State.Msgs)
	var out []string
	envtest.Eventually(t, 30*time.Second, func() (err error) {
		out, err = readIDs(t, s, total) // a cluster may be electing
		return err
	})
	return out
}

func readIDs(t *testing.T, s jetstream.Stream, total int) ([]string, error) {
	t.Helper()
	// Without a limit the client makes its consumer anew for ever.
	c, err := s.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{MaxResetAttempts: 1})
	if err != nil {
		return nil, err
	}
	var out []string
	for len(out) < total {
		batch, err := c.Fetch(min(500, total-len(out)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return nil, err
		}
		had := len(out)
		for m := range batch.Messages() {
			out = append(out, m.Headers().Get(envelope.HeaderMsgID))
		}
		if batch.Error() != nil {
			return nil, batch.Error()
		}
		if len(out) == had {
			return nil, fmt.Errorf("read %d messages, want %d", had, total)
		}
	}
	return out, nil
}
