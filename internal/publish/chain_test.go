package publish_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I3.
func TestMessagesAreStoredOnceAndInOrder(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	r := startOn(t, openConn(t, srv.URL()), 0, unhurried)
	r.send(0, 5000)
	r.drain()
	wantStored(t, js, 5000)
	if got := r.totalStored(); got != 5000 {
		t.Errorf("Stored was told of %d, want 5000", got)
	}
	st := r.stream.Status()
	if !st.Healthy() || st.LastSeq != 5000 || st.MsgID != "id-4999" || st.InFlight != 0 || st.Bytes != 0 || st.Counters.Resyncs != 1 {
		t.Errorf("Status() = %+v", st)
	}
	r.stop()
	if err := r.stream.Send(limited(t), 1, st.Position, &publish.Message{Subject: "ev.a", MsgID: "x"}); !errors.Is(err, publish.ErrStopped) {
		t.Errorf("Send after Run = %v, want ErrStopped", err)
	}
}

// I3, I5.
func TestA44A59AServerThatIsKilledLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	chains(t, func(t *testing.T, start starter) {
		srv := envtest.NATS(t, testenv.NATSConfig{})
		js := admin(t, srv.URL())
		createStream(t, js, noDedup)
		r := start(t, openConn(t, srv.URL()), 0)
		const n = 12000
		for k := range 4 {
			r.send(k*n/4, k*n/4+n/8)
			if err := srv.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.send(k*n/4+n/8, (k+1)*n/4)
			r.waitFor("NATS")
			if err := srv.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		r.drain()
		wantStored(t, js, n)
	})
}

// noDedup makes the duplicate window useless, so that only the chain protects.
func noDedup(c *jetstream.StreamConfig) { c.Duplicates = 100 * time.Millisecond }

// I3, I5.
func TestA58A63LeadersThatStepDownBreakNoOrder(t *testing.T) {
	t.Parallel()
	chains(t, func(t *testing.T, start starter) {
		servers := envtest.NATSCluster(t, 3, testenv.NATSConfig{})
		urls := servers[0].URL() + "," + servers[1].URL() + "," + servers[2].URL()
		js := admin(t, urls)
		createStream(t, js, noDedup, func(c *jetstream.StreamConfig) { c.Replicas = 3 })
		r := start(t, openConn(t, urls), 0)
		const n = 20000
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.send(0, n)
		}()
		for k := range 8 {
			envtest.Eventually(t, 30*time.Second, func() error {
				if got := r.totalStored(); got < (k+1)*n/10 {
					return fmt.Errorf("%d stored; %+v", got, r.stream.Status())
				}
				return nil
			})
			if k%4 == 3 {
				victim := servers[(k/4)%3]
				if err := victim.Kill(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := victim.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				continue
			}
			_, _ = js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN.EV", nil, time.Second)
		}
		came(t, done)
		r.drain()
		wantStored(t, js, n)
		t.Logf("%+v", r.stream.Status().Counters)
	})
}

// I3, I5.
func TestA44A45AcksThatAreSwallowedAndCutsLoseNothing(t *testing.T) {
	t.Parallel()
	chains(t, func(t *testing.T, start starter) {
		srv := envtest.EmbeddedNATS(t)
		js := admin(t, srv.URL())
		createStream(t, js, noDedup)
		proxy := envtest.Proxy(t, srv.Addr())
		r := start(t, openConn(t, "nats://"+proxy.Addr()), 0)
		const n = 6000
		for k := range 3 {
			r.send(k*n/3, k*n/3+n/6)
			if k%2 == 0 {
				check(t, proxy.Swallow(testenv.Downstream))
				r.send(k*n/3+n/6, k*n/3+n/6+100)
				check(t, proxy.Release(testenv.Downstream))
			} else {
				check(t, proxy.Cut())
				r.send(k*n/3+n/6, k*n/3+n/6+100)
				check(t, proxy.Restore())
			}
			r.send(k*n/3+n/6+100, (k+1)*n/3)
		}
		r.drain()
		wantStored(t, js, n)
	})
}

func TestTheStreamComesUpWithoutAServerAndGoesOnWhenItIsThere(t *testing.T) {
	t.Parallel()
	srv := envtest.NATS(t, testenv.NATSConfig{})
	createStream(t, admin(t, srv.URL()))
	check(t, srv.Stop(t.Context()))
	conn := openConn(t, srv.URL())
	s := publish.New(conn, publish.Config{Stream: "EV", Source: source})
	got := make(chan error, 1)
	go func() {
		_, err := s.Tail(limited(t))
		got <- err
	}()
	envtest.Eventually(t, 10*time.Second, func() error {
		if st := s.Status(); st.State != publish.StateWaiting {
			return fmt.Errorf("state %v", st.State)
		}
		return nil
	})
	check(t, srv.Start(t.Context()))
	check(t, came(t, got))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// I7.
func TestSendBlocksAtTheWindowAndAtTheByteBound(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	proxy := envtest.Proxy(t, srv.Addr())
	r := startOn(t, openConn(t, "nats://"+proxy.Addr()), 0, func(c *publish.Config) {
		c.Window, c.MaxBytes, c.AckTimeout = 64, 100_000, 30*time.Second
	})
	r.send(0, 64)
	r.drain()
	check(t, proxy.Hold(testenv.Downstream))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		r.send(64, 3000)
	}()
	envtest.Eventually(t, 5*time.Second, func() error {
		if st := r.stream.Status(); st.InFlight != 64 || st.Queued != 0 {
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
		if st.Bytes < 99_000 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	check(t, proxy.Release(testenv.Downstream))
	check(t, proxy.Restore())
	came(t, sent)
	r.drain()
	wantStored(t, js, 3000)
}

func TestA52ASubjectOverTheControlLineIsRefusedAndTheClientLives(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	r := startOn(t, openConn(t, srv.URL()), 0)
	r.send(0, 100)
	tx, pos, m := event(100)
	m.Subject = "ev." + strings.Repeat("x", 5000)
	check(t, r.stream.Send(limited(t), tx, pos, m))
	r.send(101, 200)
	r.drain()
	wantStored(t, js, 200, 100)
	if len(r.refused) != 1 || r.refused[0].Reason != publish.ReasonIllegal {
		t.Errorf("refused %d events, want the one", len(r.refused))
	}
	if st := r.conn.Status(); st.Rebuilds > 0 {
		t.Errorf("the client was built anew: %+v", st)
	}
}
