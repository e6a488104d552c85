package main

import (
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
)

func TestTheTerminalShowsTheLastHourAndWhatToDo(t *testing.T) {
	t.Parallel()
	now := time.Now()
	st := walrelay.Status{
		At: now, Source: "shop", Slot: "shop", State: walrelay.StateRelaying, Streams: []walrelay.StreamStatus{{Name: "SHOP", Flowing: true, State: "flowing"}},
		NATS: walrelay.NATSStatus{Connected: true}, DeadLetters: &walrelay.DeadLetters{LookedAt: now, Open: 2, ByReason: map[string]int{"too_large": 2}},
		SlotState: &walrelay.SlotStatus{LookedAt: now, Active: true, WALStatus: "reserved"},
	}
	report := admin.NewReport(st)
	answer := statusAnswer{From: "admin", Ready: true, Relay: &report}
	low, high := 0.002, 0.25
	past := []admin.Point{
		{At: now.Add(-59 * time.Minute).UnixMilli(), Rate: 0},
		{At: now.Add(-30*time.Minute - time.Second).UnixMilli(), Rate: 1000, P99: &high},
		{At: now.Add(-30*time.Minute - 11*time.Second).UnixMilli(), Rate: 10, P99: &low},
		{At: now.Add(-time.Second).UnixMilli(), Rate: 500, P99: &low},
		{At: now.Add(-2 * time.Hour).UnixMilli(), Rate: 9e9},
	}
	past = append(past[4:], past[:4]...)
	var out strings.Builder
	if err := answer.print(&out, now, past); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"PostgreSQL: slot is held  →  walrelay: idle  →  JetStream: ready",
		"▁" + strings.Repeat(".", 28) + "█" + strings.Repeat(".", 29) + "▄  most 1000/s, now 500.0/s",
		strings.Repeat(".", 29) + "█" + strings.Repeat(".", 29) + "▁  99 of 100, most 250 ms",
		"2 dead letters are open", "$ walrelay deadletters list --source shop", "docs/runbook.md#walrelaydeadletters",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the status lacks %q:\n%s", want, out.String())
		}
	}
	if got, want := string(repaint([]byte("a\nb\n"))), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J"; got != want {
		t.Errorf("repaint() = %q, want %q", got, want)
	}
}
