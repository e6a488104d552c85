package publish_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// forgets is the duplicate window of streams whose leader forgets ids while it
// has no majority.
const forgets = time.Second

// A minority is the leader of a stream of three with its followers, which the
// test freezes: the leader takes messages and cannot store them, and forgets
// their ids when the duplicate window has passed.
type minority struct {
	t         *testing.T
	js        jetstream.JetStream
	leader    *testenv.NATS
	followers []*testenv.NATS
}

func newMinority(t *testing.T) *minority {
	t.Helper()
	servers := envtest.NATSCluster(t, 3, testenv.NATSConfig{})
	m := &minority{t: t, js: admin(t, servers[0].URL()+","+servers[1].URL()+","+servers[2].URL())}
	createStream(t, m.js, func(c *jetstream.StreamConfig) { c.Replicas, c.Duplicates = 3, forgets })
	st, err := m.js.Stream(t.Context(), "EV")
	check(t, err)
	for _, s := range servers {
		if s.Name() == st.CachedInfo().Cluster.Leader {
			m.leader = s
		} else {
			m.followers = append(m.followers, s)
		}
	}
	return m
}

// open gives a relay's connection, to the leader alone.
func (m *minority) open() *publish.Conn { return openConn(m.t, m.leader.URL()) }

func (m *minority) quick(c *publish.Config) { c.AckTimeout = 200 * time.Millisecond }

func (m *minority) freeze() {
	m.t.Helper()
	for _, s := range m.followers {
		check(m.t, s.Pause())
	}
}

func (m *minority) thaw() {
	m.t.Helper()
	for _, s := range m.followers {
		check(m.t, s.Resume())
	}
}

// sent gives a relay that has stored one event of each key, and whose next ones
// the leader has taken and cannot store.
func (m *minority) sent() *rig {
	m.t.Helper()
	r := lanesOn(m.t, m.open(), 0, m.quick)
	r.sendKeyed(0, keys)
	r.drain()
	m.freeze()
	r.sendKeyed(keys, 2*keys)
	envtest.Eventually(m.t, 8*time.Second, func() error {
		if c := r.stream.Status().Counters; c.WrongSequence == 0 {
			return fmt.Errorf("no message is in process; %+v", c)
		}
		return nil
	})
	return r
}

// forgotten waits until a leader has forgotten what it was sent up to now.
func forgotten() {
	<-time.After(forgets + forgets/4) // the window itself: nothing tells that it has passed
}

// again waits until the relay has tried some again, with or without answer.
func (m *minority) again(r *rig) {
	m.t.Helper()
	tries := func() uint64 { c := r.stream.Status().Counters; return c.WrongSequence + c.Timeouts }
	const some = 4
	had := tries()
	envtest.Eventually(m.t, 8*time.Second, func() error {
		if n := tries() - had; n < some {
			return fmt.Errorf("%d attempts; %+v", n, r.stream.Status())
		}
		return nil
	})
}

// I5.
func TestA63LanesSendNothingAgainThatALeaderWithoutMajorityHasTaken(t *testing.T) {
	t.Parallel()
	m := newMinority(t)
	r := m.sent()
	forgotten()
	m.again(r)
	m.thaw()
	r.sendKeyed(2*keys, 3*keys)
	r.drain()
	wantKeyed(t, m.js, 3*keys)
	t.Logf("%+v", r.stream.Status().Counters)
}

// I5: the next process knows nothing of what the one before has sent.
func TestA63LanesOfANewProcessSendNothingAgainThatALeaderWithoutMajorityHasTaken(t *testing.T) {
	t.Parallel()
	m := newMinority(t)
	m.sent().stop()
	forgotten()
	r := lanesOn(t, m.open(), 0, m.quick)
	r.sendKeyed(keys, 3*keys)
	m.thaw()
	r.drain()
	wantKeyed(t, m.js, 3*keys)
	if got := r.totalStored(); got != 2*keys {
		t.Errorf("Stored was told of %d, want %d", got, 2*keys)
	}
	t.Logf("%+v", r.stream.Status().Counters)
}

// I5: as above, where all of it is stored before the first message of the new
// process asks, and forgotten.
func TestLanesFindAllThatTheProcessBeforeHadStoredBehindTheTail(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js, func(c *jetstream.StreamConfig) { c.Duplicates = forgets })
	before := lanesOn(t, openConn(t, srv.URL()), 0)
	r := lanesOn(t, openConn(t, srv.URL()), 0) // has read the tail
	before.sendKeyed(0, keys)
	before.drain()
	before.stop()
	forgotten()
	r.sendKeyed(0, 2*keys)
	r.drain()
	wantKeyed(t, js, 2*keys)
	r.wantTold(2*keys, 2*time.Second)
}

// I6: while one key is in doubt the others flow, so that what is acknowledged
// grows while the stream is asked for its end.
func TestLanesInDoubtTakeWhatFlowsMeanwhileForNoLoss(t *testing.T) {
	t.Parallel()
	srv := envtest.EmbeddedNATS(t)
	js := admin(t, srv.URL())
	createStream(t, js)
	foreigner(t, js)
	const n, sessions = 1000, 10
	for k := range sessions {
		var log bytes.Buffer // its handler locks, and the end of Run is awaited
		r := lanesOn(t, openConn(t, srv.URL()), 0, func(c *publish.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		r.sendKeyed(k*n, (k+1)*n)
		r.drain()
		r.stop()
		if text := log.String(); strings.Contains(text, "acknowledged") {
			t.Fatalf("session %d: %s", k, text)
		}
	}
	wantKeyed(t, js, sessions*n)
}
