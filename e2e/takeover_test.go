package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// holder is the pid of the server process that holds the slot, 0 without one.
func holder(w *fixture.World) int64 {
	return fixture.Value[int64](w, "SELECT coalesce(max(active_pid), 0)::bigint FROM pg_replication_slots WHERE slot_name = $1", w.Source)
}

// I3, I5: the connection of a relay that died lives on until the server notices.
func TestA12ASlotThatADeadRelaysConnectionHoldsIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyPostgres: true, Stream: shortDuplicates})
	first := w.Start()
	w.Place(3)
	w.Check()
	old := holder(w)
	slots := fixture.Value[int64](w, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
	// The server does not see the end of the connection.
	if err := w.PostgresProxy.Freeze(); err != nil {
		t.Fatal(err)
	}
	first.Kill()
	w.Place(3)

	second := w.Start("--database-url", w.DatabaseURL)
	reason := second.Await("standby", fixture.Patience)
	since := fixture.Value[time.Time](w, "SELECT backend_start FROM pg_stat_activity WHERE pid = $1::int", old).UTC().Format(time.RFC3339)
	if !strings.Contains(reason, fmt.Sprintf("pid %d", old)) || !strings.Contains(reason, w.Source) || !strings.Contains(reason, "since "+since) {
		t.Errorf("the standby waits for %q, want slot %s, pid %d and %s", reason, w.Source, old, since)
	}
	instant(t.Context(), 3*time.Second) // it looks again every second
	if now := holder(w); now != old {
		t.Errorf("the slot is held by pid %d, want still %d: a standby ends nobody", now, old)
	}
	if state, _ := second.State(); state != "standby" {
		t.Errorf("the second relay is in state %q, want standby as long as the slot is held", state)
	}
	if now := fixture.Value[int64](w, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); now != slots {
		t.Errorf("there are %d slots, want %d", now, slots)
	}
	w.Stored(3)

	began := time.Now()
	if err := w.PostgresProxy.Cut(); err != nil {
		t.Fatal(err)
	}
	second.Await("relaying", fixture.Patience)
	took(t, "the takeover", began, 10*time.Second)
	w.Stored(6)
	w.Check()
	second.Stop(fixture.Patience)
}

// I3, I5: relays take turns with one slot.
func TestASecondRelayIsAStandbyAndTakesOverFromOneThatIsKilledOrStopped(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, Flags: observed()})
	active := w.Start()
	active.Await("relaying", fixture.Patience)
	load := w.Load(fixture.LoadConfig{Writers: 2})
	for i := range 4 {
		standby := w.Start()
		reason := standby.Await("standby", fixture.Patience)
		if pid := holder(w); !strings.Contains(reason, fmt.Sprintf("pid %d", pid)) {
			t.Errorf("the standby waits for %q, want pid %d", reason, pid)
		}
		if code, body := fetch(t, adminOf(t, standby.Text), "/readyz"); code != 503 || !strings.Contains(body, "held by") {
			t.Errorf("/readyz of the standby = %d %q, want 503 and who holds the slot", code, body)
		}
		more(t, load, 30)
		began := time.Now()
		if i%2 == 0 {
			active.Kill()
		} else {
			active.Stop(fixture.Patience)
		}
		standby.Await("relaying", fixture.Patience)
		taken, err := w.LastSeq(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.AwaitRecorded(taken + 1)
		took(t, "the takeover, from the end of the one to what the other publishes,", began, 5*time.Second)
		active = standby
		more(t, load, 30)
	}
	load.Stop()
	w.Check()
	active.Stop(fixture.Patience)
}

// I2, I3: a relay that wakes after another has taken over sends nothing more.
func TestARelayThatWakesAfterATakeoverDoublesNothing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	frozen := w.Start()
	load := w.Load(fixture.LoadConfig{Writers: 2})
	w.AwaitRecorded(100)
	frozen.Freeze()
	old := holder(w)
	second := w.Start()
	second.Await("standby", fixture.Patience)
	w.Exec("SELECT pg_terminate_backend($1::int)", old)
	second.Await("relaying", fixture.Patience)
	before, err := w.LastSeq(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.AwaitRecorded(before + 100)
	frozen.Thaw()
	frozen.Await("standby", fixture.Patience)
	more(t, load, 30)
	load.Stop()
	w.Check()
	second.Stop(fixture.Patience)
	frozen.Await("relaying", fixture.Patience)
	w.Place(1)
	w.Check()
	frozen.Stop(fixture.Patience)
}

// took reports how long something took beside what is usual at most. It demands
// no more than that it came at all: a machine under load has its own time.
func took(t *testing.T, what string, began time.Time, usual time.Duration) {
	t.Helper()
	d := time.Since(began)
	t.Logf("%s took %s (usually less than %s)", what, d.Round(time.Millisecond), usual)
	if d > fixture.Patience {
		t.Errorf("%s took %s, want at most %s", what, d, fixture.Patience)
	}
}
