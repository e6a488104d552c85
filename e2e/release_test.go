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

// alternating gives a world with a second stream B for events of type paid, and a
// parked aggregate of which n events wait that go to the two streams in turn. The
// large one, counted from 1, has a body of 3,000 bytes. B remembers ids for the
// window.
func alternating(t *testing.T, n, large int, window time.Duration, flags ...string) (*fixture.World, *fixture.Relay) {
	t.Helper()
	w := fixture.New(t, fixture.Config{ProxyNATS: true, Stream: shortDuplicates, More: []string{"B"}, Flags: parked(append([]string{
		"--routes", `[{event_types: [paid], stream: B, subject: "b.{event_type}"}, {}]`,
	}, flags...)...)})
	makeStream(t, w, jetstream.StreamConfig{Name: "B", Subjects: []string{"b.>"}, Duplicates: window})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	place(w, "both", refusedHeaders, 1)
	for i := range n {
		kind, filler := "placed", ""
		if i%2 == 1 {
			kind = "paid"
		}
		if i+1 == large {
			filler = strings.Repeat("x", 3000)
		}
		w.Exec("SELECT e2e.place(gen_random_uuid(), 'both', $1, $2)", kind, filler)
	}
	w.Dead(n + 1)
	return w, relay
}

// sequencesAreRight demands that each released letter has the sequence under which its stream
// has it, so that it is opened again if the stream loses it.
func sequencesAreRight(t *testing.T, w *fixture.World) {
	t.Helper()
	messages, err := w.Messages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		const released = `SELECT coalesce(max(sequence), 0) FROM walrelay.dead_letter WHERE event_id = $1 AND resolution = 'released'`
		if got := fixture.Value[int64](w, released, m.Event.ID); got != int64(m.Seq) {
			t.Errorf("event %s is released as sequence %d of %s, want %d", m.Event.ID, got, m.Stream, m.Seq)
		}
	}
}

// rounds is how often a release has written how far it is.
func rounds(w *fixture.World) int64 {
	return fixture.Value[int64](w, `SELECT count(DISTINCT xmin::text) FROM walrelay.dead_letter WHERE resolution = 'released'`)
}

// I3: what goes to several streams is released to all of them at once: in order
// in each, and not one event at a time.
func TestParkedEventsOfSeveralStreamsAreReleasedTogether(t *testing.T) {
	t.Parallel()
	const n = 60
	w, relay := alternating(t, n, 0, 100*time.Millisecond)
	discardFirst(w)
	awaitReleased(t, w)
	w.Check()
	sequencesAreRight(t, w)
	if got := rounds(w); got > n/10 {
		t.Errorf("%d events were released in %d rounds, want a few", n, got)
	}
	relay.Stop(fixture.Patience)
}

// I1, I5: a stream refuses a released event while others are under way to another
// stream, which stores them. They are released, those behind it wait for it, and
// nothing is sent a second time, though no stream remembers it any more.
func TestAStreamRefusesAReleasedEventWhileAnotherTakesTheRest(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]struct {
		window time.Duration
		flags  []string
	}{
		"chain": {window: 100 * time.Millisecond},
		// Lanes want one of four times the wait for an answer.
		"lanes": {window: 4 * time.Second, flags: []string{"--ack-timeout", "1s", "--streams", "[{name: B, shared: true}]"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n, large = 60, 32 // an event for stream B
			w, relay := alternating(t, n, large, b.window, b.flags...)
			stream, err := w.JetStream.Stream(t.Context(), "B")
			if err != nil {
				t.Fatal(err)
			}
			cfg := stream.CachedInfo().Config
			cfg.MaxMsgSize = 2000 // the router does not know
			if _, err := w.JetStream.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			// Answers come when all has been handed over.
			if err := w.NATSProxy.Slow(testenv.Downstream, 300*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			discardFirst(w)
			envtest.Eventually(t, fixture.Patience, func() error {
				if !strings.Contains(relay.Text(), "others were under way to other streams") {
					return fmt.Errorf("no event was refused while others were under way")
				}
				return nil
			})
			if err := w.NATSProxy.Slow(testenv.Downstream, 0); err != nil {
				t.Fatal(err)
			}
			becomes(t, w, "the refused event is the first one", `SELECT count(*) = 1 FROM walrelay.dead_letter
				WHERE parked_behind = id AND resolved_at IS NULL AND reason <> 'parked'`)
			if got := counters(t, w, "both"); len(got) < large-1 {
				t.Errorf("events %v are stored, want all before the refused one", got)
			}
			if open := waiting(w); open >= n-large {
				t.Errorf("%d letters wait behind the refused one, want those alone that the other stream has not stored", open)
			}
			sequencesAreRight(t, w)
			discardFirst(w)
			awaitReleased(t, w)
			w.Check()
			sequencesAreRight(t, w)
			relay.Stop(fixture.Patience)
		})
	}
}

// I1, I5: while a stream refuses a released event, a heal parks an older one in
// front of it. That one is not taken for stored: it waits with the others.
func TestWhatIsParkedInFrontOfARefusedEventMeanwhileIsNotLost(t *testing.T) {
	t.Parallel()
	const n, large = 20, 10
	w := fixture.New(t, fixture.Config{ProxyNATS: true, Stream: shortDuplicates, Flags: parked()})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	place(w, "one", refusedHeaders, 1)
	for i := range n {
		filler := ""
		if i+1 == large {
			filler = strings.Repeat("x", 3000)
		}
		w.Exec("SELECT e2e.place(gen_random_uuid(), 'one', 'placed', $1)", filler)
	}
	w.Dead(n + 1)
	stream, err := w.JetStream.Stream(t.Context(), w.StreamName)
	if err != nil {
		t.Fatal(err)
	}
	before := stream.CachedInfo().State.LastSeq
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgSize = 2000 // the router does not know
	if _, err := w.JetStream.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	// The oldest one is not there yet.
	older := fixture.Value[int64](w, `UPDATE walrelay.dead_letter SET resolved_at = clock_timestamp(), resolution = 'test' WHERE id = (
		SELECT min(id) FROM walrelay.dead_letter WHERE parked_behind <> id) RETURNING id`)
	if err := w.NATSProxy.Slow(testenv.Downstream, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	discardFirst(w)
	envtest.Eventually(t, fixture.Patience, func() error {
		info, err := stream.Info(t.Context())
		if err == nil && info.State.LastSeq == before {
			err = fmt.Errorf("nothing is under way")
		}
		return err
	})
	w.Exec(`UPDATE walrelay.dead_letter SET resolved_at = NULL, resolution = NULL WHERE id = $1`, older)
	becomes(t, w, "an event is refused", "SELECT count(*) = 1 FROM walrelay.dead_letter WHERE resolved_at IS NULL AND parked_behind = id AND reason <> 'parked'")
	if err := w.NATSProxy.Slow(testenv.Downstream, 0); err != nil {
		t.Fatal(err)
	}
	becomes(t, w, "the refused event is the first one, and the older one waits behind it", `SELECT count(*) = 1 FROM walrelay.dead_letter o
		JOIN walrelay.dead_letter first USING (aggregate_type, aggregate_id) WHERE o.id = $1 AND o.resolved_at IS NULL AND o.parked_behind <> o.id
			AND first.parked_behind = first.id AND first.resolved_at IS NULL AND first.reason <> 'parked'`, older)
	discardFirst(w)
	awaitReleased(t, w)
	// The first one and the large one were discarded.
	if got := counters(t, w, "one"); len(got) != n-1 {
		t.Errorf("events %v are stored, want %d", got, n-1)
	}
	sequencesAreRight(t, w)
	relay.Stop(fixture.Patience)
}

// I3: what a heal finds after newer events of the aggregate were stored is late,
// also where it has to wait for its turn among parked ones.
func TestAHealedEventThatWasParkedIsReleasedAsLate(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: parked("--heal-limit", "1000")})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	place(w, "a", "{}", 1)
	w.Stored(1)
	proven(t, w)
	w.Exec(fmt.Sprintf("ALTER PUBLICATION %q DROP TABLE walrelay.outbox", w.Source))
	relay.Await("waiting", fixture.Patience)
	place(w, "a", "{}", 2) // unseen
	w.Exec(fmt.Sprintf("ALTER PUBLICATION %q ADD TABLE walrelay.outbox", w.Source))
	place(w, "a", "{}", 1)
	place(w, "a", refusedHeaders, 1)
	place(w, "a", "{}", 1)
	w.Dead(4) // the refused one, what follows it, and the two that were found
	gap(t, w, "unseen", "healed")
	discardFirst(w)
	awaitReleased(t, w)
	messages, err := w.Messages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var late []bool
	for _, m := range messages {
		late = append(late, m.Event.Late)
	}
	if seen := counters(t, w, "a"); !slices.Equal(seen, []int64{1, 4, 2, 3, 6}) || !slices.Equal(late, []bool{false, false, true, true, false}) {
		t.Errorf("events %v are stored, late: %v; want those found, 2 and 3, behind 4 and late", seen, late)
	}
	w.Check()
	relay.Stop(fixture.Patience)
}

// I1, I3: released letters that are open again, since the stream has lost them,
// are released again though they waited behind several letters.
func TestLettersOfSeveralRoundsThatAreOpenAgainAreReleased(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, Flags: parked()})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	for range 3 {
		place(w, "a", refusedHeaders, 1)
		place(w, "a", "{}", 2)
		becomes(t, w, "two letters wait", "SELECT count(*) = 2 FROM walrelay.dead_letter WHERE parked_behind <> id AND resolved_at IS NULL")
		discardFirst(w)
		awaitReleased(t, w)
	}
	relay.Stop(fixture.Patience)
	stream, err := w.JetStream.Stream(t.Context(), w.StreamName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Exec("UPDATE walrelay.dead_letter SET resolved_at = NULL, resolved_by = NULL, resolution = NULL, sequence = NULL WHERE resolution = 'released'")
	relay = w.Start()
	awaitReleased(t, w)
	if seen := counters(t, w, "a"); !slices.Equal(seen, []int64{2, 3, 5, 6, 8, 9}) {
		t.Errorf("events %v are stored, want those that were lost, in order", seen)
	}
	relay.Stop(fixture.Patience)
}
