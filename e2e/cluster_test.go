package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// leaderOf is the server that leads the world's stream.
func leaderOf(t *testing.T, w *fixture.World, servers []*testenv.NATS) *testenv.NATS {
	t.Helper()
	var leader *testenv.NATS
	envtest.Eventually(t, fixture.Patience, func() error {
		stream, err := w.JetStream.Stream(t.Context(), w.StreamName)
		if err != nil {
			return err
		}
		name := ""
		if c := stream.CachedInfo().Cluster; c != nil {
			name = c.Leader
		}
		for i, s := range servers {
			if name == fmt.Sprintf("n%d", i+1) {
				leader = s
				return nil
			}
		}
		return fmt.Errorf("the stream has no leader")
	})
	return leader
}

// I1, I3, I5, I6: leaders that step down, a rolling restart, the loss of a
// follower, of the leader and of the majority, while events flow into a chain and
// into lanes.
func TestANATSClusterInTroubleLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	servers := envtest.NATSCluster(t, 3, testenv.NATSConfig{})
	urls := make([]string, len(servers))
	for i, s := range servers {
		urls[i] = s.URL()
	}
	const lanes = "LANES"
	w := fixture.New(t, fixture.Config{
		NATSURLs: strings.Join(urls, ","), Stream: shortDuplicates, More: []string{lanes}, Shared: []string{lanes},
		Flags: []string{
			"--ack-timeout", "1s", "--streams", "[{name: " + lanes + ", shared: true}]",
			"--routes", `[{event_types: [paid], stream: ` + lanes + `, subject: "lanes.{event_type}"}, {}]`,
		},
	})
	makeStream(t, w, jetstream.StreamConfig{Name: lanes, Subjects: []string{"lanes.>"}, Replicas: 3, Duplicates: 10 * time.Second})
	if stream, err := w.JetStream.Stream(t.Context(), w.StreamName); err != nil || stream.CachedInfo().Config.Replicas != 3 {
		t.Fatalf("the stream has not three replicas (%v): the drill would drill nothing", err)
	}
	relay := w.Start()
	load := w.Load(fixture.LoadConfig{Writers: 2, Pause: 20 * time.Millisecond})
	// on waits until events flow again.
	on := func() {
		t.Helper()
		before, err := w.LastSeq(t.Context())
		for ; err != nil; before, err = w.LastSeq(t.Context()) {
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
		w.AwaitRecorded(before + 30)
	}
	do := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	w.AwaitRecorded(50)
	for _, name := range []string{w.StreamName, lanes} {
		if _, err := w.Conn.Request("$JS.API.STREAM.LEADER.STEPDOWN."+name, nil, 5*time.Second); err != nil {
			t.Logf("step down: %v", err)
		}
		on()
	}
	for _, s := range servers { // a rolling restart
		do(s.Stop(t.Context()))
		more(t, load, 10)
		do(s.Start(t.Context()))
		on()
	}
	follower := func(leader *testenv.NATS) *testenv.NATS {
		return servers[slices.IndexFunc(servers, func(s *testenv.NATS) bool { return s != leader })]
	}
	leader := leaderOf(t, w, servers)
	for _, s := range []*testenv.NATS{follower(leader), leader} {
		do(s.Kill(t.Context()))
		on() // without it
		do(s.Start(t.Context()))
		on()
	}

	leader = leaderOf(t, w, servers)
	other := follower(leader)
	do(leader.Kill(t.Context()), other.Kill(t.Context()))
	more(t, load, 50) // into the void
	do(leader.Start(t.Context()), other.Start(t.Context()))
	on()
	load.Stop()
	w.Check()
	if s, err := w.JetStream.Stream(t.Context(), lanes); err != nil || s.CachedInfo().State.LastSeq == 0 || s.CachedInfo().Config.Replicas != 3 {
		t.Errorf("stream %s holds nothing on three servers (%v): the drill drilled half", lanes, err)
	}
	if !relay.Running() {
		t.Error("the relay ended; it has to wait for the cluster")
	}
	relay.Stop(fixture.Patience)
}
