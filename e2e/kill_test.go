package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I1, I2, I3, I4, I5: whatever the instant of its death, the relay goes on where
// the stream ends.
func TestARelayKilledAtTwentyRandomInstantsLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	const kills = 20
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, Flags: []string{"--window", "64"}})
	rnd := w.Random("instants")
	load := w.Load(fixture.LoadConfig{Writers: 4})
	for i := range kills {
		relay := w.Start()
		if rnd.IntN(4) == 0 {
			// Early: while it connects, takes the slot or reads the stream's end.
			instant(t.Context(), time.Duration(rnd.Int64N(int64(400*time.Millisecond))))
		} else {
			before, err := w.LastSeq(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			w.AwaitRecorded(before + 1 + uint64(rnd.IntN(200)))
		}
		relay.Kill()
		if t.Failed() {
			t.Fatalf("failed at kill %d", i+1)
		}
	}
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	load.Stop()
	w.Check()
	relay.Stop(fixture.Patience)
}

// I5: the duplicate window has nothing to do with it.
func TestTenStopsAndStartsStoreNothingTwiceWithAnEmptyDuplicateWindow(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, Flags: []string{"--status-interval", "10s"}})
	load := w.Load(fixture.LoadConfig{Writers: 2})
	for range 10 {
		before, err := w.LastSeq(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		relay := w.Start()
		w.AwaitRecorded(before + 100)
		relay.Stop(fixture.Patience)
	}
	relay := w.Start()
	load.Stop()
	w.Check()
	relay.Stop(fixture.Patience)
}

// lockLetters keeps everybody from writing dead letters until unlock is called.
func lockLetters(t *testing.T, w *fixture.World) (unlock func()) {
	t.Helper()
	lock, err := w.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) })
	if _, err := lock.Exec(t.Context(), "LOCK TABLE walrelay.dead_letter IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := lock.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// I1, I3: an event that waits for its dead letter holds back what is behind it,
// also over the death of the relay.
func TestARelayKilledBetweenARefusalAndItsDeadLetterRecordsItBeforeWhatIsBehind(t *testing.T) {
	t.Parallel()
	for _, unlockFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("unlocked before the restart=%t", unlockFirst), func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{})
			w.Exec("INSERT INTO e2e.aggregate VALUES ('a1')")
			w.Exec("SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', '')")
			relay := w.Start()
			w.Stored(1)

			unlock := lockLetters(t, w)
			w.Exec(`SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', '', '{"Nats-Rollup": "all"}')`)
			w.Exec("SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', '') FROM generate_series(1, 50)")
			waits := func() error { return w.WaitsForLock(t.Context()) }
			envtest.Eventually(t, fixture.Patience, waits)
			relay.Kill()
			w.Stored(1) // nothing from behind the poison row

			if !unlockFirst {
				relay = w.Start()
				envtest.Eventually(t, fixture.Patience, waits)
				w.Stored(1)
			}
			unlock()
			if unlockFirst {
				relay = w.Start()
			}
			w.Stored(51)
			if letters := w.Dead(1); letters[0].Reason != "reserved_header" {
				t.Errorf("the dead letter's reason is %q, want reserved_header", letters[0].Reason)
			}
			w.Check()
			relay.Stop(fixture.Patience)
		})
	}
}

// instant waits for a moment that nothing else tells from others; it is never a
// wait for something to happen.
func instant(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// shortDuplicates makes the duplicate window as short as JetStream allows.
func shortDuplicates(cfg *jetstream.StreamConfig) { cfg.Duplicates = 100 * time.Millisecond }
