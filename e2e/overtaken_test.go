package e2e_test

import (
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// I1, I3, A62: a stream is deleted and made anew while a transaction is on its
// way to it. What stands in the new one behind newer events of its aggregate says
// that it is late: what the slot sends again, and what is healed.
func TestA62WhatANewStreamHasBehindNewerEventsIsSaidToBeLate(t *testing.T) {
	t.Parallel()
	const shared = "[{name: EV, shared: true}]"
	for name, c := range map[string]struct {
		flags []string
		live  []string
	}{
		// What was on its way is the first in the new stream before anybody knows.
		"lanes": {[]string{"--streams", shared}, []string{"a held", "a sent late", "b sent", "a sent"}},
		"lean":  {[]string{"--streams", shared, "--headers", "lean"}, []string{"a held", "a sent late", "b sent", "a sent"}},
		// A chain refuses it. But its gap is healed when the other stream's mark is met.
		"chain": {nil, []string{"a sent", "b sent", "a held", "a sent"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const stream = "EV"
			var lanes []string
			if c.flags != nil {
				lanes = []string{stream}
			}
			w := fixture.New(t, fixture.Config{More: []string{stream}, Shared: lanes, Flags: append(c.flags,
				"--routes", `[{event_types: [other]}, {stream: `+stream+`, subject: "{event_type}.{aggregate_type}"}]`)})
			makeStream(t, w, jetstream.StreamConfig{Name: stream, Subjects: []string{"sent.>"}})
			relay := w.Start("--admin", "127.0.0.1:0")
			w.Exec("INSERT INTO e2e.aggregate VALUES ('a'), ('b'), ('c')")
			for _, aggregate := range []string{"a", "c", "a"} {
				w.Exec("SELECT e2e.place(gen_random_uuid(), $1, 'sent', '')", aggregate)
			}
			proven(t, w)
			// The stream does not cover held.>, so what comes first in the transaction
			// is stored and stays unconfirmed, and what has to wait is sent again and again.
			w.Exec(`SELECT e2e.place(gen_random_uuid(), 'a', 'sent', ''), e2e.place(gen_random_uuid(), 'b', 'sent', ''),
				e2e.place(gen_random_uuid(), 'b', 'other', ''), e2e.place(gen_random_uuid(), 'a', 'held', ''), e2e.place(gen_random_uuid(), 'a', 'sent', '')`)
			holds(t, w, stream, 5)
			holds(t, w, w.StreamName, 1)
			err := w.Hands(t.Context(), func() error {
				if err := w.JetStream.DeleteStream(t.Context(), stream); err != nil {
					return err
				}
				_, err := w.JetStream.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"sent.>", "held.>"}})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			relay.Await("halted", fixture.Patience) // such a stream is filled only when asked
			replayed(t, w, 0, "--missing")
			relay.Await("relaying", fixture.Patience)
			w.Check()
			truth, err := w.Truth(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var live, healed []string
			late := uint64(0)
			for _, m := range truth.Messages {
				if m.Stream != stream {
					continue
				}
				of := m.Event.AggregateID + " " + m.Event.EventType
				if m.Event.Late {
					of += " late"
					late++
				}
				if m.Event.Live() {
					live = append(live, of)
				} else {
					healed = append(healed, of)
				}
			}
			if !slices.Equal(live, c.live) {
				t.Errorf("live messages of the new stream are %q, want %q", live, c.live)
			}
			if want := []string{"a sent late", "c sent", "a sent late"}; !slices.Equal(healed, want) {
				t.Errorf("healed messages of the new stream are %q, want %q", healed, want)
			}
			if n := report(t, adminOf(t, relay.Text)).Counters.Late; n != late {
				t.Errorf("%d late events are counted, the stream has %d", n, late)
			}
		})
	}
}
