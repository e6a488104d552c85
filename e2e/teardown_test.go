package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// A40: what a relay leaves behind is shown and dropped by one command, which
// loses nothing: who starts again delivers what was not.
func TestA40TeardownDropsSlotAndPublicationAndLosesNothing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	w.Place(10)
	w.Stored(10)
	proven(t, w)
	teardown := []string{"teardown", "--database-url", w.DatabaseURL, "--source", w.Source}
	if code, _ := fixture.Command(t, nil, append(teardown, "--yes")...); code != 1 {
		t.Errorf("walrelay teardown beside a relay = %d, want 1: the slot is held", code)
	}
	relay.Stop(fixture.Patience)
	w.Place(7)
	if code, _ := fixture.Command(t, nil, teardown...); code != 2 { // nobody is there to be asked
		t.Errorf("walrelay teardown without --yes = %d, want 2", code)
	}
	code, out := fixture.Command(t, nil, append(teardown, "--dry-run")...)
	if code != 0 || !strings.Contains(out, "7 rows of the outbox tables are not known to be delivered") || !strings.Contains(out, "of WAL") {
		t.Errorf("walrelay teardown --dry-run = %d, %q, want what is undelivered and retained", code, out)
	}
	left := func() (slots, publications int64) {
		return fixture.Value[int64](w, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", w.Source),
			fixture.Value[int64](w, "SELECT count(*) FROM pg_publication WHERE pubname = $1", w.Source)
	}
	if slots, publications := left(); slots != 1 || publications != 1 {
		t.Fatalf("%d slots and %d publications are left, want one each", slots, publications)
	}
	code, out = fixture.Command(t, nil, append(teardown, "--yes", "--json")...)
	var report struct{ Dropped bool }
	if err := json.Unmarshal([]byte(out), &report); code != 0 || err != nil || !report.Dropped {
		t.Fatalf("walrelay teardown --yes --json = %d, %q, want dropped", code, out)
	}
	if slots, publications := left(); slots != 0 || publications != 0 {
		t.Errorf("%d slots and %d publications are left, want none", slots, publications)
	}
	if code, out := fixture.Command(t, nil, append(teardown, "--yes")...); code != 0 || !strings.Contains(out, "no slot") {
		t.Errorf("walrelay teardown once more = %d, %q, want that there is no slot", code, out)
	}
	w.Migrate()
	w.Start()
	w.Place(3)
	w.Stored(20)
	w.Check()
}
