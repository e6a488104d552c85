package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// left waits until n rows of the outbox are left.
func left(t *testing.T, w *fixture.World, n int64) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		if got := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.outbox"); got != n {
			return fmt.Errorf("%d rows are left, want %d", got, n)
		}
		return nil
	})
}

// cleaned runs walrelay cleanup.
func cleaned(t *testing.T, w *fixture.World, want int) {
	t.Helper()
	args := []string{"cleanup", "--database-url", w.DatabaseURL, "--source", w.Source, "--retention", "1ms", "--yes"}
	if code, out := fixture.Command(t, nil, args...); code != 0 || out == "" {
		t.Fatalf("walrelay cleanup = %d, %q, want 0", code, out)
	}
	left(t, w, int64(want))
}

// A69: a running relay deletes what it has delivered, and nothing of what the
// broker has not got, however old.
func TestA69ARelayDeletesOnlyWhatItHasDelivered(t *testing.T) {
	t.Parallel()
	broker := envtest.NATS(t, testenv.NATSConfig{Dir: t.TempDir() + "/js", SyncAlways: true})
	w := fixture.New(t, fixture.Config{NATS: broker, Flags: []string{"--retention", "1s", "--ack-timeout", "1s"}})
	relay := w.Start()
	w.Place(50)
	w.Stored(50)
	left(t, w, 0)
	restart(t, broker, func() {
		w.Place(30)
		cleaned(t, w, 30)
	})
	w.Stored(80)
	left(t, w, 0)
	relay.Stop(30 * time.Second)
	// Nobody has delivered these, whatever the slot says.
	w.Place(20)
	cleaned(t, w, 20)
	w.Exec("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", w.Source)
	cleaned(t, w, 20)
	w.Start()
	w.Place(1)
	w.Stored(101)
	left(t, w, 0)
	if n := gap(t, w, "unseen", "healed"); n != 20 {
		t.Errorf("the gap tells of %d events, want 20", n)
	}
	w.Check()
}

// A69: with the retention off nothing is deleted.
func TestA69WithoutARetentionNothingIsDeleted(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	w.Start("--retention", "off")
	w.Place(5)
	proven(t, w)
	code, out := fixture.Command(t, nil, "cleanup", "--database-url", w.DatabaseURL, "--source", w.Source, "--retention", "0", "--yes")
	if code != 0 {
		t.Errorf("walrelay cleanup --retention 0 = %d, %q, want 0", code, out)
	}
	cleanup := []string{"cleanup", "--database-url", w.DatabaseURL, "--source", w.Source, "--retention", "1ms"}
	if code, out := fixture.Command(t, nil, append(cleanup, "--dry-run")...); code != 0 {
		t.Errorf("walrelay cleanup --dry-run = %d, %q, want 0", code, out)
	}
	if code, _ := fixture.Command(t, nil, cleanup...); code != 2 { // nobody is there to be asked
		t.Errorf("walrelay cleanup without --yes = %d, want 2", code)
	}
	left(t, w, 5)
	cleaned(t, w, 0)
	w.Check()
}
