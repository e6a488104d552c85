package e2e_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I1, I5, A62: a broker comes back as it was, with all of its streams. What is
// healed of one says nothing of the others.
func TestA62ABrokerThatForgotInAllItsStreamsIsFilledAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker := envtest.NATS(t, testenv.NATSConfig{Dir: dir + "/js", SyncAlways: true})
	w := fixture.New(t, fixture.Config{NATS: broker, More: []string{"B", "C"}, AnyUser: true, Flags: []string{
		"--ack-timeout", "1s", "--routes", `[{event_types: [b], stream: B, subject: "b.{event_type}"}, {event_types: [c], stream: C, subject: "c.{event_type}"}, {}]`,
	}})
	makeStream(t, w, jetstream.StreamConfig{Name: "B", Subjects: []string{"b.>"}})
	makeStream(t, w, jetstream.StreamConfig{Name: "C", Subjects: []string{"c.>"}})
	w.Start()
	place := func(n int) {
		placeKind(w, "placed", n)
		placeKind(w, "b", n)
		placeKind(w, "c", n)
	}
	place(20)
	proven(t, w)
	restart(t, broker, func() { copyDir(t, dir+"/js", dir+"/copy") })
	place(20)
	proven(t, w)
	restart(t, broker, func() {
		removeDir(t, dir+"/js")
		copyDir(t, dir+"/copy", dir+"/js")
	})
	envtest.Eventually(t, fixture.Patience, func() error {
		if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.gap WHERE kind = 'stream' AND state = 'healed' AND events = 20"); n != 3 {
			return fmt.Errorf("of %d streams the 20 events that they lost are healed, want 3: %s", n,
				fixture.Value[string](w, "SELECT coalesce(json_agg(g)::text, '') FROM walrelay.gap g"))
		}
		return nil
	})
	place(1)
	proven(t, w)
	w.Check()
}

// I1: what a stream lost while nothing was proven yet only an audit can tell. A
// heal that is asked for is done once it has, also where somebody asks again as
// soon as one is done, each of which begins a new session.
func TestA62AHealOfWhatOnlyAnAuditCanTellIsDoneOnceItHas(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	w.Place(5)
	relay := w.Start()
	w.Stored(5)
	relay.Stop(fixture.Patience)
	w.Exec(`INSERT INTO walrelay.gap (source, epoch, kind, stream, "from") VALUES ($1, 1, 'stream', $2, '0/0/0/0')`, w.Source, w.StreamName)
	w.Start().Await("relaying", fixture.Patience)
	replayed(t, w, 0, "--missing")
	if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.gap WHERE state = 'open'"); n != 0 {
		t.Errorf("%d gaps are open when the heal is done, want none", n)
	}
	w.Check()
}
