package e2e_test

import (
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I3, I6: a broker that goes away in the middle is waited for.
func TestABrokerThatIsStoppedAndKilledUnderLoadLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	broker := envtest.NATS(t, testenv.NATSConfig{})
	w := fixture.New(t, fixture.Config{NATS: broker, Stream: shortDuplicates, Flags: []string{"--ack-timeout", "1s"}})
	rnd := w.Random("instants")
	relay := w.Start()
	load := w.Load(fixture.LoadConfig{Writers: 3})
	for i := range 6 {
		before, err := w.LastSeq(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.AwaitRecorded(before + 1 + uint64(rnd.IntN(300)))
		down := broker.Stop
		if i%2 == 1 {
			down = broker.Kill
		}
		if err := down(t.Context()); err != nil {
			t.Fatal(err)
		}
		more(t, load, 20+rnd.Int64N(50))
		if err := broker.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	load.Stop()
	w.Check()
	if !relay.Running() {
		t.Error("the relay ended; it has to wait for the broker")
	}
	relay.Stop(fixture.Patience)
}

// I6: neither server needs to be there at the start.
func TestARelayThatStartsWithoutServersWaitsForThem(t *testing.T) {
	t.Parallel()
	cluster := envtest.Postgres(t, testenv.PGConfig{})
	broker := envtest.NATS(t, testenv.NATSConfig{})
	w := fixture.New(t, fixture.Config{Postgres: cluster, NATS: broker})
	w.Load(fixture.LoadConfig{Writers: 2, Transactions: 50}).Wait()
	if err := cluster.Stop(t.Context(), testenv.Fast); err != nil {
		t.Fatal(err)
	}
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	relay := w.Start()
	if reason := relay.Await("waiting", fixture.Patience); reason == "" {
		t.Error("the relay waits and does not say for what")
	}
	if err := cluster.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Check()
	relay.Stop(fixture.Patience)
}

// more waits until the workload has committed n further transactions.
func more(t *testing.T, load *fixture.Load, n int64) {
	t.Helper()
	target := load.Committed() + n
	envtest.Eventually(t, fixture.Patience, func() error { return load.Reached(target) })
}
