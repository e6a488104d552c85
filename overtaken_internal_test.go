package walrelay

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
)

// I3: an event is behind newer ones of its own aggregate only, as exactly as the
// messages tell.
func TestAnEventIsLateBehindNewerOnesOfItsAggregateOnly(t *testing.T) {
	t.Parallel()
	at := func(commit envelope.LSN) envelope.Position { return envelope.Position{Epoch: 1, Commit: commit} }
	headers := func(kind, id string) nats.Header {
		h := nats.Header{}
		if kind != "" {
			h[envelope.HeaderAggregateType] = []string{kind}
		}
		if id != "" {
			h[envelope.HeaderAggregateID] = []string{id}
		}
		return h
	}
	event := func(kind, id string) *router.Event { return &router.Event{AggregateType: kind, AggregateID: id} }
	check := func(o *overtaken, what string, e *router.Event, pos envelope.Position, want bool) {
		t.Helper()
		if got := o.has(e, pos); got != want {
			t.Errorf("%s: %s/%s at %v is behind a newer one: %v, want %v", what, e.AggregateType, e.AggregateID, pos, got, want)
		}
	}

	full := overtaken{}
	check(&full, "nothing is stored", event("order", "1"), at(1), false)
	full.note(headers("order", "1"), at(50))
	full.note(headers("order", "1"), at(40))
	full.note(headers("", "2"), at(60))
	full.note(headers("a%0Ab", "%25"), at(60))
	check(&full, "its own", event("order", "1"), at(49), true)
	check(&full, "its own", event("order", "1"), at(51), false)
	check(&full, "another type", event("bill", "1"), at(49), false)
	check(&full, "another id", event("order", "2"), at(49), false)
	check(&full, "no type", event("", "2"), at(49), true)
	check(&full, "escaped", event("a\nb", "%"), at(49), true)
	check(&full, "an older epoch", event("order", "1"), envelope.Position{Epoch: 2, Commit: 1}, false)
	full.until(at(59))
	check(&full, "before the newest of all", event("order", "1"), at(49), true)
	full.until(at(60))
	check(&full, "all are passed", event("order", "1"), at(49), false)

	lean := overtaken{lean: true}
	lean.note(headers("", "1"), at(50))
	lean.note(headers("bill", "2"), at(50))
	check(&lean, "the type is not told", event("order", "1"), at(49), true)
	check(&lean, "the type is told", event("order", "2"), at(49), false)
	check(&lean, "the type is told", event("bill", "2"), at(49), true)

	heal := overtaken{}
	stored := func(commit envelope.LSN, id, origin string) publish.StoredMessage {
		h := headers("order", id)
		h.Set(envelope.HeaderPosition, at(commit).String())
		if origin != "" {
			h.Set(envelope.HeaderOrigin, origin)
		}
		return publish.StoredMessage{Header: h}
	}
	heal.noteBehind(at(100), stored(99, "1", ""))
	heal.noteBehind(at(100), stored(100, "2", ""))
	heal.noteBehind(at(100), stored(120, "3", "heal/1"))
	heal.noteBehind(at(100), publish.StoredMessage{Header: headers("order", "4")})
	for id, want := range map[string]bool{"1": false, "2": true, "3": false, "4": false} {
		check(&heal, "a row of before", event("order", id), at(100), want)
	}
}
