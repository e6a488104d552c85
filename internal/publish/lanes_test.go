package publish_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

const keys = 37

// keyed gives event i, of one of a few aggregates.
func keyed(i int) (uint64, envelope.Position, *publish.Message) {
	tx, pos, m := event(i)
	m.Key = "order " + strconv.Itoa(i%keys)
	return tx, pos, m
}

func (r *rig) sendKeyed(from, to int) {
	r.t.Helper()
	r.sendEach(from, to, keyed)
}

// A foreigner writes to the stream all along, until the test ends.
func foreigner(t *testing.T, js jetstream.JetStream) (written *atomic.Int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	written = new(atomic.Int64)
	done.Go(func() {
		for ctx.Err() == nil {
			ask, end := context.WithTimeout(ctx, time.Second)
			if _, err := js.Publish(ask, "ev.foreign", []byte("x"), jetstream.WithRetryAttempts(0)); err == nil {
				written.Add(1)
			}
			end()
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return written
}

// ours is how many messages of ours the stream has.
func ours(t *testing.T, js jetstream.JetStream) int {
	t.Helper()
	st, err := js.Stream(t.Context(), "EV")
	check(t, err)
	info, err := st.Info(t.Context(), jetstream.WithSubjectFilter("ev.*"))
	check(t, err)
	n := 0
	for subject, count := range info.State.Subjects {
		if subject != "ev.foreign" {
			n += int(count)
		}
	}
	return n
}

// wantKeyed checks that the stream has the events [0, n) less those of skip
// once each, those of one key in order.
func wantKeyed(t *testing.T, js jetstream.JetStream, n int, skip ...int) {
	t.Helper()
	last := map[int]int{}
	seen := map[int]bool{}
	for _, id := range ids(t, js, n-len(skip)) {
		number, ours := strings.CutPrefix(id, "id-")
		if !ours {
			continue
		}
		i, err := strconv.Atoi(number)
		check(t, err)
		if seen[i] {
			t.Errorf("event %d is stored twice", i)
		}
		seen[i] = true
		if before, ok := last[i%keys]; ok && i < before {
			t.Errorf("event %d of key %d is stored behind event %d", i, i%keys, before)
		}
		last[i%keys] = i
	}
	for i := range n {
		if seen[i] == slices.Contains(skip, i) {
			t.Errorf("event %d is in the stream: %v, want %v", i, seen[i], !seen[i])
		}
	}
}

// I3.
func TestLanesStoreOnceAndInOrderOfEachKey(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	foreigner(t, js)
	r := lanesOn(t, openConn(t, srv.URL()), 0)
	r.sendKeyed(0, 5000)
	r.drain()
	wantKeyed(t, js, 5000)
	if got := r.totalStored(); got != 5000 {
		t.Errorf("Stored was told of %d, want 5000", got)
	}
	st := r.stream.Status()
	at, err := js.Stream(t.Context(), "EV")
	check(t, err)
	m, err := at.GetMsg(t.Context(), st.LastSeq)
	check(t, err)
	if !st.Healthy() || st.InFlight != 0 || st.Bytes != 0 || st.Queued != 0 || r.stream.LastAcked() != st.LastSeq ||
		m.Header.Get(envelope.HeaderMsgID) != st.MsgID || m.Header.Get(envelope.HeaderPosition) != st.Position.String() {
		t.Errorf("Status() = %+v; message there: %v", st, m.Header)
	}
	if _, has := m.Header[envelope.HeaderExpectedLastSeq]; has || m.Header.Get(envelope.HeaderExpectedStream) != "EV" {
		t.Errorf("message has headers %v", m.Header)
	}
	r.stop()
	if err := r.stream.Send(limited(t), 1, st.Position, &publish.Message{Subject: "ev.a", MsgID: "x"}); !errors.Is(err, publish.ErrStopped) {
		t.Errorf("Send after Run = %v, want ErrStopped", err)
	}
}

// I3, I5. The window of 100 ms says that only the reading of the stream helps,
// that of two minutes that only the id does.
func TestA44A45A46LanesSurviveCutsAndSwallowedAcks(t *testing.T) {
	t.Parallel()
	for name, window := range map[string]time.Duration{"100ms": 100 * time.Millisecond, "1s": time.Second, "2m": 2 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := envtest.EmbeddedNATS(t)
			js := admin(t, srv.URL())
			createStream(t, js, func(c *jetstream.StreamConfig) { c.Duplicates = window })
			foreigner(t, js)
			proxy := envtest.Proxy(t, srv.Addr())
			r := lanesOn(t, openConn(t, "nats://"+proxy.Addr()), 0, func(c *publish.Config) { c.AckTimeout = 300 * time.Millisecond })
			const n = 6000
			r.sendKeyed(0, 1)
			for k := range 6 {
				part := func(of int) int { return k*n/6 + of*n/24 }
				r.drain() // so that it is connected
				r.sendKeyed(max(1, part(0)), part(2))
				switch k % 3 {
				case 0:
					check(t, proxy.Swallow(testenv.Downstream))
					r.sendKeyed(part(2), part(3))
					r.waitFor("no answer")
					check(t, proxy.Release(testenv.Downstream))
				case 1:
					check(t, proxy.Cut())
					r.sendKeyed(part(2), part(3))
					r.waitFor("NATS")
					check(t, proxy.Restore())
				case 2: // stored, but the answers are cut off
					r.drain() // so that each key may have one in flight
					check(t, proxy.Hold(testenv.Downstream))
					r.sendKeyed(part(2), part(3))
					envtest.Eventually(t, 10*time.Second, func() error {
						if in, have := r.stream.Status().InFlight, ours(t, js); have < r.totalStored()+keys {
							return fmt.Errorf("%d in flight, %d in the stream, %d known to be", in, have, r.totalStored())
						}
						return nil
					})
					check(t, proxy.Cut())
					check(t, proxy.Release(testenv.Downstream))
					check(t, proxy.Restore())
				}
				r.sendKeyed(part(3), part(4))
			}
			r.drain()
			wantKeyed(t, js, n)
			if got := r.totalStored(); got != n {
				t.Errorf("Stored was told of %d, want %d", got, n)
			}
			t.Logf("%+v", r.stream.Status().Counters)
		})
	}
}

// I3, I5.
func TestA58A63LanesKeepOrderThroughLeadersThatGo(t *testing.T) {
	t.Parallel()
	servers := envtest.NATSCluster(t, 3, testenv.NATSConfig{})
	urls := servers[0].URL() + "," + servers[1].URL() + "," + servers[2].URL()
	js := admin(t, urls)
	createStream(t, js, func(c *jetstream.StreamConfig) { c.Replicas = 3 })
	foreigner(t, js)
	r := lanesOn(t, openConn(t, urls), 0)
	const n = 12000
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.sendKeyed(0, n)
	}()
	for k := range 6 {
		envtest.Eventually(t, 40*time.Second, func() error {
			if got := r.totalStored(); got < (k+1)*n/8 {
				return fmt.Errorf("%d stored; %+v", got, r.stream.Status())
			}
			return nil
		})
		if k%2 == 0 {
			_, _ = js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN.EV", nil, time.Second)
			continue
		}
		victim := servers[0]
		if info, err := r.conn.StreamInfo(t.Context(), "EV"); err == nil {
			for _, s := range servers {
				if s.Name() == info.Leader {
					victim = s
				}
			}
		}
		check(t, victim.Kill(t.Context()))
		check(t, victim.Start(t.Context()))
	}
	came(t, done)
	r.drain()
	wantKeyed(t, js, n)
	t.Logf("%+v", r.stream.Status().Counters)
}

// I3, I5.
func TestA44A59LanesSurviveAServerThatIsKilled(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{})
	js := admin(t, srv.URL())
	createStream(t, js)
	foreigner(t, js)
	r := lanesOn(t, openConn(t, srv.URL()), 0)
	const n = 6000
	for k := range 3 {
		r.sendKeyed(k*n/3, k*n/3+n/6)
		check(t, srv.Kill(t.Context()))
		r.sendKeyed(k*n/3+n/6, (k+1)*n/3)
		r.waitFor("NATS")
		check(t, srv.Start(t.Context()))
	}
	r.drain()
	wantKeyed(t, js, n)
}

// I3, I6.
func TestA50AFullStreamIsWaitedForInLanes(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 100, jetstream.DiscardNew })
	r := lanesOn(t, openConn(t, srv.URL()), 0)
	r.sendKeyed(0, 450)
	r.waitFor("is full: maximum messages exceeded")
	r.wantTold(100, 2*time.Second)
	envtest.Eventually(t, 5*time.Second, func() error { // once the first are all refused
		if st := r.stream.Status(); st.InFlight > 1 || st.Counters.Environment < 2 {
			return fmt.Errorf("%d in flight to a full stream, want one attempt at a time", st.InFlight)
		}
		return nil
	})
	createStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1000, jetstream.DiscardNew })
	r.drain()
	wantKeyed(t, js, 450)
}

// I6.
func TestA61OneSubjectWithoutPermissionHoldsBackItsKeysAlone(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{ConfigFile: confFile(t, permissionsConf)})
	js := admin(t, srv.URL(), nats.UserInfo("admin", "secret"))
	createStream(t, js)
	r := lanesOn(t, openConn(t, srv.URL(), nats.UserInfo("relay", "secret")), 0)
	const n = 600
	var denied []int
	r.sendEach(0, n, func(i int) (uint64, envelope.Position, *publish.Message) {
		tx, pos, m := keyed(i)
		m.Subject = "ev." + strconv.Itoa(1+i%2)
		if i%keys == 5 && i/keys >= 2 || i%keys == 11 && i/keys >= 4 {
			if i/keys == 2 || i%keys == 11 && i/keys == 4 {
				m.Subject = "ev.3"
			}
			denied = append(denied, i)
		}
		return tx, pos, m
	})
	r.waitFor(`2 of 2 aggregates with waiting events are held back: not permitted to publish "ev.3"`)
	wantKeyed(t, js, n, denied...)
	r.wantTold(n-len(denied), 2*time.Second)
}

// I6.
func TestA58ASubjectThatIsNotCoveredHoldsBackItsKeysAlone(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	r := lanesOn(t, openConn(t, srv.URL()), 0)
	const n = 400
	var waiting []int
	r.sendEach(0, n, func(i int) (uint64, envelope.Position, *publish.Message) {
		tx, pos, m := keyed(i)
		if i%keys < 3 && i >= 2*keys {
			waiting = append(waiting, i)
			if i < 3*keys {
				m.Subject = "elsewhere.x"
			}
		}
		return tx, pos, m
	})
	r.waitFor(`3 of 3 aggregates with waiting events are held back: no stream covers subject "elsewhere.x": stream "EV" has subjects ["ev.>"]`)
	wantKeyed(t, js, n, waiting...)
	createStream(t, js, func(c *jetstream.StreamConfig) { c.Subjects = []string{"ev.>", "elsewhere.>"} })
	r.drain()
	wantKeyed(t, js, n)
	if st := r.stream.Status(); !st.Healthy() {
		t.Errorf("Status() = %+v", st)
	}
}

// I3.
func TestOneKeysPoisonIsRefusedBeforeItsNextEventAndOthersFlow(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 })
	answer := make(chan struct{})
	asked := make(chan struct{})
	r := lanesOn(t, openConn(t, srv.URL()), 0, func(c *publish.Config) {
		note := c.Refused
		c.Refused = func(ctx context.Context, refused publish.Refused) error {
			close(asked)
			select {
			case <-answer:
				return note(ctx, refused)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	const n, bad = 500, 3*keys + 9
	var behind []int
	r.sendEach(0, n, func(i int) (uint64, envelope.Position, *publish.Message) {
		tx, pos, m := keyed(i)
		if i == bad {
			m.Body = make([]byte, 3000)
		}
		if i%keys == bad%keys && i >= bad {
			behind = append(behind, i)
		}
		return tx, pos, m
	})
	came(t, asked)
	// While the dead letter is not durable, only its key waits.
	wantKeyed(t, js, n, behind...)
	if st := r.stream.Status(); st.Healthy() || st.Queued != len(behind) {
		t.Errorf("Status() = %+v, want %d queued", st, len(behind))
	}
	close(answer)
	r.drain()
	wantKeyed(t, js, n, bad)
	_, pos, m := keyed(bad)
	if len(r.refused) != 1 || r.refused[0].Reason != publish.ReasonTooLarge || r.refused[0].Position != pos ||
		r.refused[0].Message.MsgID != m.MsgID || len(r.refused[0].Message.Body) != 3000 {
		t.Fatalf("refused %+v", r.refused)
	}
}

// I7.
func TestLanesHoldNoMoreThanTheByteBound(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	proxy := envtest.Proxy(t, srv.Addr())
	r := lanesOn(t, openConn(t, "nats://"+proxy.Addr()), 0, func(c *publish.Config) {
		c.Window, c.MaxBytes, c.AckTimeout = 16, 100_000, 30*time.Second
	})
	r.sendKeyed(0, 64)
	r.drain()
	check(t, proxy.Hold(testenv.Downstream))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		r.sendKeyed(64, 3000)
	}()
	envtest.Eventually(t, 5*time.Second, func() error {
		st := r.stream.Status()
		if st.Bytes > 100_000 || st.InFlight > 16 {
			t.Fatalf("holds %d bytes with %d in flight, bounds are 100000 and 16", st.Bytes, st.InFlight)
		}
		if st.InFlight < 16 || st.Bytes < 98_000 && st.Queued < 16*16-16 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	check(t, proxy.Cut()) // an outage: now it queues to the byte bound
	envtest.Eventually(t, 5*time.Second, func() error {
		st := r.stream.Status()
		if st.Bytes > 100_000 {
			t.Fatalf("holds %d bytes, bound is 100000", st.Bytes)
		}
		if st.Bytes < 98_000 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	check(t, proxy.Release(testenv.Downstream))
	check(t, proxy.Restore())
	came(t, sent)
	r.drain()
	wantKeyed(t, js, 3000)
}

// I7. One key that is held back takes memory only for its own events.
func TestABlockedKeyFillsTheByteBoundAndThenSendWaits(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	r := lanesOn(t, openConn(t, srv.URL()), 0, func(c *publish.Config) { c.MaxBytes = 50_000 })
	tx, pos, m := keyed(0)
	m.Subject = "elsewhere.x"
	check(t, r.stream.Send(limited(t), tx, pos, m))
	r.waitFor("elsewhere.x")
	sent := make(chan int, 1)
	go func() {
		for i := 1; ; i++ {
			tx, pos, m := keyed(i)
			m.Key = "order " + strconv.Itoa(i%2)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := r.stream.Send(ctx, tx, pos, m)
			cancel()
			switch {
			case err == nil:
			case errors.Is(err, context.DeadlineExceeded) && r.stream.Status().Bytes < 45_000:
				i-- // a busy machine's second, not the bound
			default:
				sent <- i
				return
			}
		}
	}()
	n := came(t, sent)
	st := r.stream.Status()
	if st.Bytes > 50_000 || st.Bytes < 45_000 {
		t.Errorf("holds %d bytes when Send waits, bound is 50000", st.Bytes)
	}
	r.wantTold(n/2, 2*time.Second)
}

// I3, I5.
func TestA49AnIdWhoseMessageIsGoneHoldsBackItsKeyAlone(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js, func(c *jetstream.StreamConfig) { c.Duplicates = 3 * time.Second })
	r := lanesOn(t, openConn(t, srv.URL()), 0)
	r.sendKeyed(0, 1)
	r.drain()
	r.stop()
	st, err := js.Stream(t.Context(), "EV")
	check(t, err)
	check(t, st.Purge(t.Context()))
	r = lanesOn(t, r.conn, 1)
	r.sendKeyed(0, 200)
	r.waitFor("the message at sequence 1 is gone")
	r.wantTold(200-6, 2*time.Second)
	r.drain()
	wantKeyed(t, js, 200)
}

// I5. An attempt without an answer whose message is consumed at once is known
// by its id, and by the sequence that the duplicate reply names.
func TestAWorkQueueThatIsDrainedAtOnceGetsNothingTwice(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	consumer, err := js.CreateConsumer(t.Context(), "EV", jetstream.ConsumerConfig{Durable: "worker", AckPolicy: jetstream.AckExplicitPolicy})
	check(t, err)
	var mu sync.Mutex
	got := map[string]int{}
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		mu.Lock()
		got[m.Headers().Get(envelope.HeaderMsgID)]++
		mu.Unlock()
		_ = m.DoubleAck(t.Context())
	})
	check(t, err)
	t.Cleanup(consuming.Stop)
	proxy := envtest.Proxy(t, srv.Addr())
	r := lanesOn(t, openConn(t, "nats://"+proxy.Addr()), 0, unhurried)
	const n = 2000
	r.sendKeyed(0, 1)
	for k := range 4 {
		r.drain() // so that it is connected
		r.sendKeyed(max(1, k*n/4), k*n/4+n/8)
		r.drain() // so that each key may have one in flight
		check(t, proxy.Hold(testenv.Downstream))
		r.sendKeyed(k*n/4+n/8, (k+1)*n/4)
		envtest.Eventually(t, 10*time.Second, func() error {
			mu.Lock()
			defer mu.Unlock()
			if in := r.stream.Status().InFlight; in != keys || len(got) < r.totalStored()+keys {
				return fmt.Errorf("%d in flight, %d consumed, %d known to be stored", in, len(got), r.totalStored())
			}
			return nil
		})
		check(t, proxy.Cut())
		check(t, proxy.Release(testenv.Downstream))
		check(t, proxy.Restore())
	}
	r.drain()
	envtest.Eventually(t, 10*time.Second, func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(got) != n {
			return fmt.Errorf("%d events were consumed, want %d", len(got), n)
		}
		return nil
	})
	for id, times := range got {
		if times != 1 {
			t.Errorf("event %s was consumed %d times", id, times)
		}
	}
}

func TestA62AStreamMadeAnewThatOthersFilledUpIsAGap(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	proxy := envtest.Proxy(t, srv.Addr())
	r := lanesOn(t, openConn(t, "nats://"+proxy.Addr()), 0)
	r.sendKeyed(0, 10)
	r.drain()
	check(t, proxy.Cut())
	check(t, js.DeleteStream(t.Context(), "EV"))
	createStream(t, js)
	fill(t, js, 20)
	check(t, proxy.Restore())
	var gap *publish.GapError
	if err := r.runEnds(); !errors.As(err, &gap) || !gap.Recreated() || gap.Acked != 10 || gap.LastSeq != 20 {
		t.Fatalf("Run() = %v, want a gap", err)
	}
}

// fill has another writer add n messages.
func fill(t *testing.T, js jetstream.JetStream, n int) {
	t.Helper()
	for range n {
		envtest.Eventually(t, 10*time.Second, func() error {
			_, err := js.Publish(t.Context(), "ev.foreign", nil)
			return err
		})
	}
}

// What others write behind the loss of a stream's end hides it from the last
// sequence, but not from the message that was acknowledged last.
func TestA62ALossThatOthersFilledUpIsAGap(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{})
	js := admin(t, srv.URL())
	createStream(t, js)
	proxy := envtest.Proxy(t, srv.Addr())
	r := lanesOn(t, openConn(t, "nats://"+proxy.Addr()), 0)
	r.sendKeyed(0, 10)
	r.drain()
	check(t, srv.Stop(t.Context()))
	before := t.TempDir()
	check(t, os.CopyFS(before, os.DirFS(srv.StoreDir())))
	check(t, srv.Start(t.Context()))
	r.sendKeyed(10, 20)
	r.drain()
	check(t, proxy.Cut())
	check(t, srv.Stop(t.Context()))
	check(t, os.RemoveAll(srv.StoreDir()))
	check(t, os.CopyFS(srv.StoreDir(), os.DirFS(before)))
	check(t, srv.Start(t.Context()))
	fill(t, js, 20)
	check(t, proxy.Restore())
	r.sendKeyed(20, 21)
	var gap *publish.GapError
	if err := r.runEnds(); !errors.As(err, &gap) || gap.Recreated() || !gap.Replaced || gap.Acked != 20 || gap.LastSeq != 30 {
		t.Fatalf("Run() = %v, want a gap", err)
	}
}

func TestA62AStreamThatEndsBelowTheWitnessIsAGapInLanes(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	createStream(t, admin(t, srv.URL()))
	r := lanesOn(t, openConn(t, srv.URL()), 15)
	r.sendWhileItRuns(0, 10, keyed)
	var gap *publish.GapError
	if err := r.runEnds(); !errors.As(err, &gap) || gap.Recreated() || gap.Acked != 15 || gap.LastSeq != 0 {
		t.Fatalf("Run() = %v, want a gap from 0 to 15", err)
	}
}

// I5. Whatever is stored in whatever order, reading from the floor of a
// position shows every event at it or later.
func TestTheTailFromAFloorShowsAllLaterEvents(t *testing.T) {
	t.Parallel()
	for _, kind := range []jetstream.RetentionPolicy{jetstream.LimitsPolicy, jetstream.WorkQueuePolicy} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			srv := envtest.EmbeddedNATS(t)
			js := admin(t, srv.URL())
			createStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = kind })
			foreigner(t, js)
			r := lanesOn(t, openConn(t, srv.URL()), 0, func(c *publish.Config) { c.Window = 64 })
			const n = 3000
			var floors [n]uint64
			r.sendKeyed(0, 1)
			r.drain() // so that it flows
			r.sendEach(1, n, func(i int) (uint64, envelope.Position, *publish.Message) {
				tx, pos, m := keyed(i)
				if i%keys == 4 { // far behind the others
					m.Key = "slow"
				}
				return tx, pos, m
			})
			r.drain()
			late := nats.NewMsg("ev.late")
			for name, value := range map[string]string{
				envelope.HeaderSource: source, envelope.HeaderOrigin: "replay/7", envelope.HeaderMsgID: "wire", envelope.HeaderPosition: "1/0/FFFF/0",
			} {
				late.Header.Set(name, value)
			}
			ack, err := js.PublishMsg(t.Context(), late)
			check(t, err)
			lanes, ok := r.stream.(*publish.Lanes)
			if !ok {
				t.Fatalf("stream is a %T", r.stream)
			}
			for i := range n {
				_, pos, _ := keyed(i)
				floors[i] = lanes.Floor(pos)
			}
			if floors[n-1] < 1000 {
				t.Errorf("the floor of the last event is %d, want it near the end", floors[n-1])
			}
			for range 5 {
				i := rand.IntN(n)
				_, since, _ := keyed(i)
				seen, last, err := publish.NewLanes(r.conn, publish.Config{Stream: "EV", Source: source}).ReadTail(t.Context(), floors[i], since, nil)
				check(t, err)
				if last < ack.Sequence || len(seen) != n-i {
					t.Errorf("from floor %d of event %d: %d events up to %d, want %d up to %d or more", floors[i], i, len(seen), last, n-i, ack.Sequence)
				}
				for k := i; k < n; k++ {
					if _, pos, m := keyed(k); seen[pos] != m.MsgID {
						t.Fatalf("from floor %d of event %d: event %d is %q", floors[i], i, k, seen[pos])
					}
				}
			}
		})
	}
}

// The end may be gone, and a consumer cannot be had by everyone.
func TestTheTailIsReadOverGapsAndWithoutConsumers(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{ConfigFile: confFile(t, permissionsConf)})
	js := admin(t, srv.URL(), nats.UserInfo("admin", "secret"))
	createStream(t, js)
	r := lanesOn(t, openConn(t, srv.URL(), nats.UserInfo("admin", "secret")), 0)
	const n = 1200
	r.sendKeyed(0, n)
	r.drain()
	st, err := js.Stream(t.Context(), "EV")
	check(t, err)
	for seq := uint64(1); seq <= n; seq++ {
		if seq%7 == 0 || seq > n-20 || seq < 10 {
			check(t, st.DeleteMsg(t.Context(), seq))
		}
	}
	have, err := st.Info(t.Context())
	check(t, err)
	for _, user := range []string{"admin", "relay"} {
		conn := openConn(t, srv.URL(), nats.UserInfo(user, "secret"))
		seen, last, err := publish.NewLanes(conn, publish.Config{Stream: "EV", Source: source}).ReadTail(t.Context(), 0, envelope.Position{}, nil)
		check(t, err)
		if len(seen) != int(have.State.Msgs) || last != n {
			t.Errorf("%s sees %d events up to %d, want %d up to %d", user, len(seen), last, have.State.Msgs, n)
		}
	}
	left := 0
	for range st.ListConsumers(t.Context()).Info() {
		left++
	}
	if left > 0 {
		t.Errorf("%d consumers are left", left)
	}
}
