package walrelay

import (
	"strings"
	"testing"
	"time"
)

func TestManyRefusalsOfOneReasonAreABadSetting(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := newFlood(100)
	for i := range 20 {
		if f.refused("too_large", "a", now) {
			t.Fatalf("refusal %d in a row is too many, want at most 20 allowed", i+1)
		}
	}
	if !f.refused("too_large", "b", now) {
		t.Error("the 21st in a row is allowed, want it to be too many")
	}
	if got := f.describe("too_large"); !strings.Contains(got, "too_large") || !strings.Contains(got, "b") {
		t.Errorf("describe = %q, want the reason and ids in it", got)
	}
}

func TestRefusalsBetweenGoodEventsAreCountedByTheMinute(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := newFlood(100)
	for i := range 100 {
		f.published()
		if f.refused("null_id", "a", now.Add(time.Duration(i)*time.Millisecond)) {
			t.Fatalf("refusal %d of a minute is too many, want 100 allowed", i+1)
		}
	}
	f.published()
	if !f.refused("null_id", "a", now.Add(time.Second)) {
		t.Error("the 101st of a minute is allowed, want it to be too many")
	}
	f.published()
	if f.refused("empty_id", "a", now.Add(time.Second)) {
		t.Error("another reason is too many, want it to be counted by itself")
	}
	f.published()
	if f.refused("null_id", "a", now.Add(2*time.Minute)) {
		t.Error("a minute later it is too many, want the old ones forgotten")
	}
}
