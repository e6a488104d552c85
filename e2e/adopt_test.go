package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A new, empty NATS: nothing is sent again unasked; the relay halts and names
// the command, and goes on after it with what is new alone.
func TestANewEmptyBrokerIsAdoptedAndNothingIsSentAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker := envtest.NATS(t, testenv.NATSConfig{Dir: dir + "/js", SyncAlways: true})
	w := fixture.New(t, fixture.Config{NATS: broker, Flags: []string{"--ack-timeout", "1s"}})
	relay := w.Start()
	w.Place(50)
	w.Stored(50)
	proven(t, w)
	restart(t, broker, func() { removeDir(t, dir+"/js") })
	w.Migrate()
	reason := relay.Await("halted", fixture.Patience)
	if want := "walrelay adopt --stream " + w.StreamName; !strings.Contains(reason, want) {
		t.Fatalf("the relay halts because %q, want it to name %q", reason, want)
	}
	w.Place(7)
	adopt := []string{"adopt", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source, "--stream", w.StreamName}
	if code, _ := fixture.Command(t, nil, adopt...); code != 2 { // nobody is there to be asked
		t.Errorf("walrelay adopt without --yes = %d, want 2", code)
	}
	code, out := fixture.Command(t, nil, append(adopt, "--dry-run")...)
	if code != 0 || !strings.Contains(out, "last sequence 0") || !strings.Contains(out, "(new-stream") {
		t.Errorf("walrelay adopt --dry-run = %d, %q, want both ends and the gap", code, out)
	}
	gap(t, w, "new-stream", "open")
	code, out = fixture.Command(t, nil, append(adopt, "--yes", "--json")...)
	var report struct{ Adopted bool }
	if err := json.Unmarshal([]byte(out), &report); code != 0 || err != nil || !report.Adopted {
		t.Fatalf("walrelay adopt --yes --json = %d, %q, want adopted", code, out)
	}
	gap(t, w, "new-stream", "accepted")
	relay.Kill() // it would look again within a minute
	w.Start()
	w.Place(5)
	messages := w.Stored(12)
	for _, m := range messages {
		if m.Header.Get("Walrelay-Origin") != "" {
			t.Errorf("message %d has origin %q, want live events only", m.Seq, m.Header.Get("Walrelay-Origin"))
		}
	}
	proven(t, w) // so the look for unseen rows is over
	w.Stored(12)
	if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.gap"); n != 1 {
		t.Errorf("%d gaps were found, want the one", n)
	}
	code, out = fixture.Command(t, nil, append(adopt, "--yes")...)
	if code != 0 || !strings.Contains(out, "nothing to adopt") {
		t.Errorf("walrelay adopt once more = %d, %q, want that there is nothing to adopt", code, out)
	}
}
