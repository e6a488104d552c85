package e2e_test

import (
	"net/url"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I1, I2, I3, I5: the stream inside the relay survives each of its deaths, and
// what was acknowledged with it. What waits goes in atomic batches.
func TestAnEmbeddedJetStreamKilledManyTimesUnderLoadLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	kills := 8
	if long() {
		kills = 40
	}
	// It holds the port, and the stream that the world is made with.
	before := envtest.NATS(t, testenv.NATSConfig{})
	w := fixture.New(t, fixture.Config{NATS: before})
	if err := before.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(w.NATSURL)
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{"--nats", "embedded:" + t.TempDir(), "--embedded-listen", u.Host, "--atomic-batches", "always"}
	rnd := w.Random("instants")
	load := w.Load(fixture.LoadConfig{Writers: 3})
	stored := uint64(0)
	for i := range kills {
		relay := w.Start(flags...)
		w.AwaitRecorded(stored + 1 + uint64(rnd.IntN(150)))
		if stored, err = w.LastSeq(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			stream, err := w.JetStream.Stream(t.Context(), w.StreamName)
			if err != nil {
				t.Fatal(err)
			}
			if cfg := stream.CachedInfo().Config; !cfg.AllowAtomicPublish {
				t.Errorf("the stream is %+v, want one that takes atomic batches", cfg)
			}
		}
		relay.Kill()
	}
	relay := w.Start(flags...)
	relay.Await("relaying", fixture.Patience)
	load.Stop()
	w.Check() // reads the stream as any NATS client does
	relay.Stop(fixture.Patience)

	relay = w.Start(flags...)
	w.Place(1)
	w.Check()
	relay.Stop(fixture.Patience)
}
