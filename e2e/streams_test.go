package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// makeStream makes a stream beside the world's own.
func makeStream(t *testing.T, w *fixture.World, cfg jetstream.StreamConfig) {
	t.Helper()
	envtest.MakeStream(t, w.JetStream, cfg)
}

// placeKind writes n events of one type, each in a transaction of its own.
func placeKind(w *fixture.World, kind string, n int) {
	w.Exec("INSERT INTO e2e.aggregate VALUES ($1) ON CONFLICT DO NOTHING", kind)
	for range n {
		w.Exec("SELECT e2e.place(gen_random_uuid(), $1, $1, '')", kind)
	}
}

// holds waits until a stream has n messages.
func holds(t *testing.T, w *fixture.World, stream string, n uint64) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		s, err := w.JetStream.Stream(t.Context(), stream)
		if err != nil {
			return err
		}
		if got := s.CachedInfo().State.LastSeq; got != n {
			return fmt.Errorf("stream %s ends at sequence %d, want %d", stream, got, n)
		}
		return nil
	})
}

// I1, I3, I6, A58: what a missing stream cannot take stops no other stream, is
// named, and arrives in its place.
func TestAnEventThatNoStreamTakesDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{More: []string{"B"}, Flags: []string{
		"--admin", "127.0.0.1:0", "--routes",
		`[{event_types: [orphan], stream: B, subject: "b.{event_type}"}, {}]`,
	}})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	placeKind(w, "placed", 5)
	placeKind(w, "orphan", 3)
	placeKind(w, "placed", 20)
	holds(t, w, w.StreamName, 25)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, `stream "B": waiting: stream "B" does not exist`)
	if code, out := verb(t, nil, "status", "--source", w.Source, "--admin", addr); code != 1 || !strings.Contains(out, `stream "B" does not exist`) {
		t.Errorf("walrelay status = %d: %s; want 1 and the missing stream's name", code, out)
	}

	// A restart changes nothing: what the slot sends again is passed over where
	// it is stored, and kept where it is not.
	relay.Kill()
	relay = w.Start()
	placeKind(w, "placed", 5)
	holds(t, w, w.StreamName, 30)

	makeStream(t, w, jetstream.StreamConfig{Name: "B", Subjects: []string{"b.>"}})
	holds(t, w, "B", 3)
	placeKind(w, "orphan", 2)
	holds(t, w, "B", 5)
	awaitReadiness(t, adminOf(t, relay.Text), http.StatusOK, "ready")
	w.Check()
}

// I1, I3: the same when the stream is there and its subjects do not fit.
func TestAnEventThatItsStreamDoesNotCoverWaitsForItsSubject(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{More: []string{"B"}, Flags: []string{
		"--admin", "127.0.0.1:0", "--in-flight-bytes", "1048576",
		"--routes", `[{event_types: [orphan, kept], stream: B, subject: "b.{event_type}"}, {}]`,
	}})
	makeStream(t, w, jetstream.StreamConfig{Name: "B", Subjects: []string{"b.kept"}})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	placeKind(w, "kept", 2)
	holds(t, w, "B", 2)
	placeKind(w, "orphan", 1)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, `no stream covers subject "b.orphan"`)
	placeKind(w, "placed", 5)
	holds(t, w, w.StreamName, 5)

	// More than the stream's share of memory: the reader goes on without it.
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'big', 'kept', jsonb_build_object('filler', repeat('x', 100000)) FROM generate_series(1, 40)`)
	placeKind(w, "placed", 5)
	holds(t, w, w.StreamName, 10)
	envtest.Eventually(t, fixture.Patience, func() error {
		if !strings.Contains(relay.Text(), "stream is left behind") {
			return fmt.Errorf("the stream was not left behind")
		}
		return nil
	})

	if _, err := w.JetStream.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "B", Subjects: []string{"b.>"}}); err != nil {
		t.Fatal(err)
	}
	holds(t, w, "B", 43)
	w.Check()
}

// I1-I3, I5: three streams under load; one is full, deleted and made again, or
// its servers' answers are lost, while the relay is killed.
func TestSeveralStreamsWhileOneIsInTroubleAndTheRelayIsKilled(t *testing.T) {
	t.Parallel()
	broker := envtest.NATS(t, testenv.NATSConfig{})
	w := fixture.New(t, fixture.Config{NATS: broker, More: []string{"B", "C"}, Flags: []string{
		"--ack-timeout", "1s", "--in-flight-bytes", "1048576",
		"--routes", `[{event_types: [paid], stream: B, subject: "b.{event_type}"}, {event_types: [sent], stream: C, subject: "c.{event_type}"}, {}]`,
	}})
	full := jetstream.StreamConfig{Name: "B", Subjects: []string{"b.>"}, MaxMsgs: 40, Discard: jetstream.DiscardNew}
	makeStream(t, w, full)
	relay := w.Start()
	load := w.Load(fixture.LoadConfig{PayloadBytes: 4000})
	for i := range 6 {
		before, err := w.LastSeq(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		more(t, load, 60)
		w.AwaitRecorded(before + 20)
		relay.Kill()
		relay = w.Start()
		switch i {
		case 2:
			makeStream(t, w, jetstream.StreamConfig{Name: "C", Subjects: []string{"c.>"}})
		case 4:
			full.MaxMsgs = -1
			if _, err := w.JetStream.UpdateStream(t.Context(), full); err != nil {
				t.Fatal(err)
			}
		}
	}
	load.Stop()
	w.Check()
	for _, name := range []string{"B", "C"} {
		if s, err := w.JetStream.Stream(t.Context(), name); err != nil || s.CachedInfo().State.LastSeq == 0 {
			t.Errorf("stream %s holds nothing (%v): the drill drilled nothing", name, err)
		}
	}
	relay.Stop(30 * time.Second)
}

// I6: a stream's limit is read again before an event is refused for its size.
func TestAnEventIsNotRefusedForALimitThatWasRaised(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 }})
	w.Start()
	big := `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'placed', jsonb_build_object('f', repeat('x', 5000)))`
	w.Exec(big)
	if letters := w.Dead(1); letters[0].Reason != "too_large" {
		t.Fatalf("reason of the dead letter is %q, want too_large", letters[0].Reason)
	}
	w.UpdateStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 })
	w.Exec(big)
	w.Stored(1)
	w.Check()
}
