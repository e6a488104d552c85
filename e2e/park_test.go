package e2e_test

import (
	"encoding/json"
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

// parked are the flags of a relay that parks.
func parked(flags ...string) []string { return append([]string{"--on-poison", "park"}, flags...) }

const refusedHeaders = `{"Nats-Rollup": "all"}`

// place writes n events of an aggregate, each in a transaction of its own.
func place(w *fixture.World, aggregate, headers string, n int) {
	w.Exec("INSERT INTO e2e.aggregate VALUES ($1) ON CONFLICT DO NOTHING", aggregate)
	for range n {
		w.Exec("SELECT e2e.place(gen_random_uuid(), $1, 'placed', '', $2::jsonb)", aggregate, headers)
	}
}

// discardFirst gives up the open first letters of all parked aggregates, as an
// operator would.
func discardFirst(w *fixture.World) {
	w.Exec(`UPDATE walrelay.dead_letter SET resolved_at = clock_timestamp(), resolved_by = 'test', resolution = 'discarded'
		WHERE parked_behind = id AND resolved_at IS NULL`)
}

// waiting is how many letters wait behind others.
func waiting(w *fixture.World) int64 {
	return fixture.Value[int64](w, `SELECT count(*) FROM walrelay.dead_letter WHERE parked_behind <> id AND resolved_at IS NULL`)
}

// awaitReleased waits until nothing is parked any more.
func awaitReleased(t *testing.T, w *fixture.World) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		open := fixture.Value[int64](w, `SELECT count(*) FROM walrelay.dead_letter WHERE resolved_at IS NULL`)
		jobs := fixture.Value[int64](w, `SELECT count(*) FROM walrelay.job WHERE kind = 'release' AND ended_at IS NULL`)
		if open+jobs > 0 {
			return fmt.Errorf("%d dead letters and %d releases are open, want none", open, jobs)
		}
		return nil
	})
}

// counters gives the counters of an aggregate's events in the order in which a
// consumer sees them.
func counters(t *testing.T, w *fixture.World, aggregate string) (seen []int64) {
	t.Helper()
	messages, err := w.Messages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		var body struct {
			N int64 `json:"n"`
		}
		if m.Event.AggregateID == aggregate && json.Unmarshal(m.Body, &body) == nil {
			seen = append(seen, body.N)
		}
	}
	return seen
}

// inOrder demands that a consumer sees of every aggregate all events in the
// order of their commits, without those that were discarded.
func inOrder(t *testing.T, w *fixture.World) {
	t.Helper()
	for _, aggregate := range fixture.Value[[]string](w, `SELECT array_agg(id) FROM e2e.aggregate`) {
		seen := counters(t, w, aggregate)
		if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) {
			t.Errorf("events of aggregate %s are seen in the order %v, want that of the commits, each once", aggregate, seen)
		}
	}
}

// I1, I3: what follows a refused event of its aggregate waits, other aggregates
// do not; once it is dealt with all comes in order, before what is new.
func TestEventsBehindARefusedOneOfTheirAggregateWaitAndAreReleasedInOrder(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: parked()})
	w.Start()
	place(w, "bad", "{}", 3)
	place(w, "bad", refusedHeaders, 1)
	place(w, "bad", "{}", 2)
	place(w, "bad", refusedHeaders, 1) // refused as well, when its turn comes
	place(w, "bad", `{"tenant": "acme"}`, 2)
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'bad', 'placed', 'null'),
		('order', 'bad', 'placed', jsonb_build_object('n', 10, 'filler', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 30000) i)))`)
	place(w, "good", "{}", 5)
	letters := w.Dead(8)
	w.Stored(8)
	for i, d := range letters {
		if want := []string{"reserved_header", "parked"}[min(i, 1)]; d.Reason != want {
			t.Errorf("dead letter %d has reason %s, want %s", i+1, d.Reason, want)
		}
	}
	if got := counters(t, w, "good"); len(got) != 5 {
		t.Errorf("%d events of another aggregate are stored, want 5", len(got))
	}

	discardFirst(w)
	w.Stored(10)
	envtest.Eventually(t, fixture.Patience, func() error {
		first := fixture.Value[string](w, `SELECT coalesce(string_agg(reason, ' '), 'none') FROM walrelay.dead_letter WHERE parked_behind = id AND resolved_at IS NULL`)
		if first != "reserved_header" || waiting(w) != 4 {
			return fmt.Errorf("the rest waits behind %s, %d letters; want it behind the next one that was refused, 4 letters", first, waiting(w))
		}
		return nil
	})
	discardFirst(w)
	awaitReleased(t, w)
	place(w, "bad", "{}", 1)
	messages := w.Stored(15)
	if got, want := counters(t, w, "bad"), []int64{1, 2, 3, 5, 6, 8, 9, 10, 10}; !slices.Equal(without(got, 0), want) {
		t.Errorf("a consumer sees the events %v, want %v", got, want)
	}
	for _, m := range messages {
		released := strings.HasPrefix(m.Header.Get("Walrelay-Origin"), "release/")
		if m.Event.Live() == released || released && !m.Event.HasPosition {
			t.Errorf("headers of message %d are %v, want a released one to have its position", m.Seq, m.Header)
		}
		if string(m.Body) == `{"n": 8, "filler": ""}` && m.Header.Get("tenant") != "acme" {
			t.Errorf("headers of message %d are %v, want those of its row", m.Seq, m.Header)
		}
	}
	if n := fixture.Value[int64](w, `SELECT count(*) FROM walrelay.dead_letter WHERE resolution = 'released' AND sequence IS NULL`); n > 0 {
		t.Errorf("of %d released letters it is not known where the stream has them", n)
	}
	w.Check()
}

func without(list []int64, n int64) []int64 {
	return slices.DeleteFunc(slices.Clone(list), func(m int64) bool { return m == n })
}

// I1, I2, I3, I5: the relay is killed while it parks and while it releases.
func TestParkingAndReleasingSurviveKillsUnderLoad(t *testing.T) {
	t.Parallel()
	const kills = 5
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, Flags: parked("--window", "64", "--dead-letter-limit", "100000")})
	rnd := w.Random("instants")
	load := w.Load(fixture.LoadConfig{Writers: 3, Keep: true})
	names := fixture.Value[[]string](w, `SELECT array_agg(id ORDER BY id) FROM e2e.aggregate`)
	relay := w.Start()
	for range kills {
		w.Exec("SELECT e2e.place(gen_random_uuid(), $1, 'placed', '', $2::jsonb)", names[rnd.IntN(len(names)/2)], refusedHeaders)
		before, err := w.Recorded(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.AwaitRecorded(before + 1 + uint64(rnd.IntN(200)))
		relay.Kill()
		relay = w.Start()
	}
	envtest.Eventually(t, fixture.Patience, func() error {
		if n := waiting(w); n < 50 {
			return fmt.Errorf("%d letters wait, want 50", n)
		}
		return nil
	})
	for range kills {
		discardFirst(w)
		left := waiting(w)
		instant(t.Context(), time.Duration(rnd.Int64N(int64(800*time.Millisecond))))
		envtest.Eventually(t, fixture.Patience, func() error {
			discardFirst(w)
			if now := waiting(w); left > 0 && now == left {
				return fmt.Errorf("%d letters wait, want another number", now)
			}
			return nil
		})
		relay.Kill()
		relay = w.Start()
	}
	load.Stop()
	envtest.Eventually(t, fixture.Patience, func() error {
		discardFirst(w)
		if n := waiting(w); n > 0 {
			return fmt.Errorf("%d letters wait, want none", n)
		}
		return nil
	})
	awaitReleased(t, w)
	w.Check()
	inOrder(t, w)
	if n := fixture.Value[int64](w, `SELECT count(*) FROM walrelay.dead_letter WHERE resolution = 'released'`); n == 0 {
		t.Error("nothing was released: the drill drilled nothing")
	}
	relay.Stop(fixture.Patience)
}

// A relay that is killed when all is released, and before it has said that its job
// is done, leaves a job that no later release would come upon: the next session
// ends it. That of an aggregate which is parked goes on.
func TestAReleaseThatWasKilledAtItsVeryEndIsOver(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: parked()})
	relay := w.Start()
	for _, aggregate := range []string{"over", "parked"} {
		place(w, aggregate, refusedHeaders, 1)
		place(w, aggregate, "{}", 3)
	}
	w.Dead(8)
	w.Exec(`UPDATE walrelay.dead_letter SET resolved_at = clock_timestamp(), resolved_by = 'test', resolution = 'discarded'
		WHERE parked_behind = id AND aggregate_id = 'over'`)
	w.Stored(3)
	envtest.Eventually(t, fixture.Patience, func() error {
		if n := fixture.Value[int64](w, `SELECT count(*) FROM walrelay.job WHERE state = 'done'`); n != 1 {
			return fmt.Errorf("%d releases are done, want 1", n)
		}
		return nil
	})
	relay.Kill()
	w.Exec(`UPDATE walrelay.job SET state = 'running', ended_at = NULL`)
	relay = w.Start()
	becomes(t, w, "the release is over", `SELECT state = 'done' AND ended_at IS NOT NULL FROM walrelay.job`)
	if n := waiting(w); n != 3 {
		t.Errorf("%d letters wait, want the 3 of the other aggregate", n)
	}
	discardFirst(w)
	awaitReleased(t, w)
	w.Stored(6)
	w.Check()
	relay.Stop(fixture.Patience)
}

// I3, I5: an event that only the stream refuses parks those of its aggregate
// that were handed over behind it.
func TestEventsQueuedBehindOneThatTheStreamRefusesAreParked(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"chain": nil, "lanes": {"--shared"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{ProxyNATS: true, Flags: parked(flags...)})
			place(w, "bad", "{}", 1)
			w.Start().Await("relaying", fixture.Patience)
			w.Stored(1)
			w.UpdateStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 }) // the router does not know
			slow := func(d time.Duration) {                                         // answers come when the rest has been handed over
				if err := w.NATSProxy.Slow(testenv.Downstream, d); err != nil {
					t.Fatal(err)
				}
			}
			slow(400 * time.Millisecond)
			w.Exec(`INSERT INTO e2e.aggregate VALUES ('good');
				DO $$ BEGIN
					PERFORM e2e.place(gen_random_uuid(), 'bad', 'placed', '');
					PERFORM e2e.place(gen_random_uuid(), 'bad', 'placed', repeat('x', 3000));
					FOR i IN 1..300 LOOP
						PERFORM e2e.place(gen_random_uuid(), CASE i % 3 WHEN 0 THEN 'bad' ELSE 'good' END, 'placed', '');
					END LOOP;
				END $$`)
			if letters := w.Dead(101); letters[0].Reason == "too_large" {
				t.Errorf("the router has refused the event (%s), want the stream to", letters[0].Error)
			}
			slow(0)
			w.Stored(202)
			if n := len(counters(t, w, "bad")); n != 2 {
				t.Errorf("%d events of the aggregate are stored, want the 2 before the refused one", n)
			}
			discardFirst(w)
			awaitReleased(t, w)
			place(w, "bad", "{}", 3)
			w.Stored(305)
			w.Check()
			inOrder(t, w)
		})
	}
}

// I1, I5: nothing is confirmed while a stream is missing, so that the slot sends
// again what was parked and released since; none of it comes a second time.
func TestReleasedEventsThatTheSlotSendsAgainAreNotStoredAgain(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, More: []string{"B"}, Flags: parked(
		"--routes", `[{event_types: [orphan], stream: B, subject: "b.{event_type}"}, {}]`,
	)})
	relay := w.Start()
	placeKind(w, "placed", 1)
	w.Stored(1)
	placeKind(w, "orphan", 1)
	place(w, "bad", refusedHeaders, 1)
	place(w, "bad", "{}", 20)
	w.Dead(21)
	discardFirst(w)
	awaitReleased(t, w)
	w.Stored(21)
	relay.Kill()
	w.Start()
	place(w, "bad", "{}", 5)
	w.Stored(26)
	makeStream(t, w, jetstream.StreamConfig{Name: "B", Subjects: []string{"b.>"}})
	holds(t, w, "B", 1)
	w.Check()
	inOrder(t, w)
}

// I10: a relay that does not know yet what is parked can deliver nothing, and
// does not say that it does.
func TestARelayIsReadyOnlyOnceItKnowsWhatIsParked(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: parked()})
	first := w.Start()
	place(w, "bad", refusedHeaders, 1)
	place(w, "bad", "{}", 1)
	w.Dead(2)
	first.Stop(fixture.Patience)

	unlock := lockLetters(t, w)
	second := w.Start()
	envtest.Eventually(t, fixture.Patience, func() error { return w.WaitsForLock(t.Context()) })
	for _, l := range second.Lines() {
		if l.Msg == "state changed" && l.State == "relaying" {
			t.Error("the relay says that it relays, and waits for what is parked")
		}
	}
	unlock()
	second.Await("relaying", fixture.Patience)
	place(w, "bad", "{}", 1)
	w.Dead(3)
	w.Check()
}
