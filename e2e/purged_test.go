package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I1, I3, A38: a stream is purged of what no proof covers yet, newer events are
// stored, and then the slot is lost. What was purged cannot be told from what was
// never sent: it is sent, and says that newer events may stand before it.
func TestA38WhatWasPurgedBeforeASlotIsLostIsHealedAsLate(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: func(c *jetstream.StreamConfig) {
		c.Duplicates = 100 * time.Millisecond // it is not to recognise what was purged
	}})
	w.Place(5) // a migrated source has one proof, of before its slot
	relay := w.Start()
	w.Stored(5)
	if err := w.Purge(t.Context(), w.StreamName); err != nil {
		t.Fatal(err)
	}
	w.Place(5)
	w.Stored(10)
	relay.Stop(fixture.Patience)
	w.Place(5)
	loseSlotAndProofs(t, w)
	w.Start().Await("relaying", fixture.Patience)
	w.Place(5)
	if n := gap(t, w, "slot", "healed"); n != 10 {
		t.Errorf("the gap tells of %d events, want 10: those purged and those missed", n)
	}
	envtest.Eventually(t, fixture.Patience, func() error {
		if last, err := w.LastSeq(t.Context()); err != nil || last != 25 {
			return fmt.Errorf("the stream's end is %d (%w), want 25", last, err)
		}
		return nil
	})
	messages, err := w.Messages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	healed := 0
	for _, m := range messages {
		heal := strings.HasPrefix(m.Header.Get("Walrelay-Origin"), "heal/")
		if late := m.Header.Get("Walrelay-Late") != ""; late != heal {
			t.Errorf("message %d has headers %v, want late of what is healed and of nothing else", m.Seq, m.Header)
		}
		if heal {
			healed++
		}
	}
	if healed != 10 {
		t.Errorf("%d messages are healed, want 10", healed)
	}
	w.Check()
}
