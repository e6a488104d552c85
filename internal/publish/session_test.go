package publish_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A witness is what one session leaves to the next.
type witness struct {
	settled int // events before it are stored, the first of a transaction
	floor   uint64
	acked   uint64
}

// I1, I3, I5. Sessions end anywhere, the witness is as old as it may be, the
// slot falls back further still, and each pause is longer than the duplicate
// window: reading the tail from the floor is all that protects.
func TestA46SessionsThatEndAnywhereStoreEachEventOnce(t *testing.T) {
	t.Parallel()
	const (
		window = 500 * time.Millisecond
		n      = 3000
	)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js, func(c *jetstream.StreamConfig) { c.Duplicates = window })
	foreigner(t, js)
	proxy := envtest.Proxy(t, srv.Addr())
	conn := openConn(t, "nats://"+proxy.Addr())
	var w witness
	sessions, passed := 0, 0
	for w.settled < n {
		last := sessions >= 8
		end := n
		if !last {
			end = min(n, w.settled+random.IntN(800))
		}
		next, skipped := sessionOf(t, conn, w, 3*random.IntN(w.settled/3+1), end, random.Float64(), last)
		if !last {
			check(t, proxy.Cut()) // whatever is still in flight is lost
			check(t, proxy.Restore())
			// A witness that was written at some time before the end.
			next.settled = w.settled + 3*random.IntN((next.settled-w.settled)/3+1)
		}
		w = witness{settled: next.settled, acked: next.acked, floor: next.floorOf(next.settled)}
		sessions++
		passed += skipped
		ended := time.Now()
		envtest.Eventually(t, 10*time.Second, func() error {
			if since := time.Since(ended); since < window+50*time.Millisecond {
				return fmt.Errorf("the stream remembers ids for %v", window-since)
			}
			return nil
		})
	}
	wantKeyed(t, js, n)
	t.Logf("%d sessions, %d events were recognised", sessions, passed)
}

type ended struct {
	witness
	floorOf func(settled int) uint64
}

// sessionOf runs lanes as a relay would: the slot sends the events from from
// on, of which w.settled is the first that may be missing, and the session ends
// when that share of those before end is stored, or all.
func sessionOf(t *testing.T, conn *publish.Conn, w witness, from, end int, share float64, drain bool) (out ended, skipped int) {
	t.Helper()
	var mu sync.Mutex
	stored := map[uint64]int{}
	note := func(run publish.StoredRun) {
		mu.Lock()
		defer mu.Unlock()
		stored[run.Tx] += run.N
	}
	l := publish.NewLanes(conn, publish.Config{Stream: "EV", Source: source, Window: 16, Stored: note})
	at := func(i int) envelope.Position {
		_, pos, _ := keyed(i)
		return pos
	}
	tail, err := l.Tail(limited(t))
	check(t, err)
	held, _, err := l.ReadTail(limited(t), w.floor, at(w.settled), nil)
	check(t, err)
	seen, err := dedup.NewSeen("EV", held, at(w.settled), dedup.Slot{Confirmed: at(from).Commit, WALEnd: 1 << 20, Epoch: 1})
	check(t, err)
	l.Begin(t.Context(), tail, w.acked)
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- l.Run(ctx) }()
	sent, patient := 0, limited(t)
	for i := from; i < end; i++ {
		tx, pos, m := keyed(i)
		check(t, seen.Pass(pos, m.MsgID))
		if seen.Stored(pos) {
			note(publish.StoredRun{Tx: tx, N: 1})
			skipped++
			continue
		}
		sent++
		check(t, l.Send(patient, tx, pos, m))
	}
	envtest.Eventually(t, 10*time.Second, func() error {
		if c := l.Status().Counters; float64(c.Acks+c.Found) < share*float64(sent) {
			return fmt.Errorf("%d of %d are stored", c.Acks+c.Found, sent)
		}
		return nil
	})
	if drain {
		check(t, l.Drain(limited(t)))
	}
	cancel()
	check(t, came(t, running))
	settled := w.settled
	for settled < end && stored[uint64(1+settled/3)] == 3 {
		settled += 3
	}
	return ended{
		witness: witness{settled: settled, acked: l.LastAcked()},
		floorOf: func(settled int) uint64 { return l.Floor(at(settled)) },
	}, skipped
}
