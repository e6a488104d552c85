package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// I1, I10: a pause holds over a restart, is shown as not ready, forgets
// nothing, and what came meanwhile is delivered in order after it.
func TestAPauseHoldsOverARestartAndForgetsNothing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	w.Place(10)
	w.Stored(10)
	verb := func(name string) (paused, changed bool) {
		t.Helper()
		code, out := fixture.Command(t, nil, name, "--database-url", w.DatabaseURL, "--source", w.Source, "--json")
		var report struct{ Paused, Changed bool }
		if err := json.Unmarshal([]byte(out), &report); code != 0 || err != nil {
			t.Fatalf("walrelay %s = %d, %q, want a report", name, code, out)
		}
		return report.Paused, report.Changed
	}
	if paused, changed := verb("pause"); !paused || !changed {
		t.Errorf("walrelay pause says paused %v, changed %v, want both", paused, changed)
	}
	if _, changed := verb("pause"); changed {
		t.Error("a second walrelay pause says that it changed something")
	}
	if reason := relay.Await("waiting", fixture.Patience); !strings.Contains(reason, "paused by ") || !strings.Contains(reason, "walrelay resume") {
		t.Errorf("the relay waits because %q, want the pause and the command", reason)
	}
	w.Place(5)
	end := w.WALEnd()
	relay.Stop(30 * time.Second)
	relay = w.Start()
	relay.Await("waiting", fixture.Patience)
	w.Place(5)
	w.Stored(10)
	if at := w.SlotAt(); at >= end {
		t.Errorf("the slot was confirmed up to %v while paused, want less than %v", at, end)
	}
	if paused, changed := verb("resume"); paused || !changed {
		t.Errorf("walrelay resume says paused %v, changed %v, want no pause and a change", paused, changed)
	}
	relay.Await("relaying", fixture.Patience)
	w.Stored(20)
	w.Check()
}
