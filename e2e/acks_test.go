package e2e_test

import (
	"errors"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I1, I6: an acknowledgement that does not come means that nobody knows.
func TestA44AcknowledgementsThatAreLateLostOrCutLoseNothing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyNATS: true, Stream: shortDuplicates, Flags: []string{"--ack-timeout", "500ms", "--window", "128"}})
	relay := w.Start()
	load := w.Load(fixture.LoadConfig{Writers: 3})
	step := func(f func() error) {
		t.Helper()
		if err := f(); err != nil {
			t.Fatal(err)
		}
		more(t, load, 30)
	}
	for range 3 {
		step(w.NATSProxy.Cut)
		step(w.NATSProxy.Restore)
		// Later than the relay waits: each is unknown, and then comes after all.
		step(func() error { return w.NATSProxy.Slow(testenv.Downstream, 700*time.Millisecond) })
		step(func() error { return w.NATSProxy.Release(testenv.Downstream) })
		step(func() error { return w.NATSProxy.Swallow(testenv.Downstream) })
		step(func() error { return w.NATSProxy.Release(testenv.Downstream) })
		before, err := w.LastSeq(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.AwaitRecorded(before + 50)
	}
	load.Stop()
	w.Check()
	relay.Stop(fixture.Patience)
}

// I2: on a change of connection the client settles every pending publish; that
// does not mean that they are stored.
func TestA45AConnectionThatIsCutInTheMiddleOfAWindowConfirmsOnlyWhatIsStored(t *testing.T) {
	t.Parallel()
	broker := envtest.NATS(t, testenv.NATSConfig{})
	w := fixture.New(t, fixture.Config{NATS: broker, ProxyNATS: true, Stream: shortDuplicates, Flags: []string{"--ack-timeout", "1s", "--window", "512"}})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	w.Exec("INSERT INTO e2e.aggregate VALUES ('a1')")
	for i, cut := range []func() error{
		func() error { return errors.Join(w.NATSProxy.Cut(), w.NATSProxy.Restore()) },
		func() error { return errors.Join(broker.Stop(t.Context()), broker.Start(t.Context())) },
		func() error { return errors.Join(broker.Kill(t.Context()), broker.Start(t.Context())) },
	} {
		w.Exec("SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', repeat('x', 500)) FROM generate_series(1, 3000)")
		w.AwaitRecorded(uint64(3000*i + 200))
		if err := cut(); err != nil {
			t.Fatal(err)
		}
		w.AwaitRecorded(uint64(3000 * (i + 1)))
	}
	w.Check()
	relay.Stop(fixture.Patience)
}
