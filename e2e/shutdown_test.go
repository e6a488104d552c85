package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/admin"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// observed are the flags of a relay that a test asks for its status.
func observed(flags ...string) []string {
	return append([]string{"--admin", "127.0.0.1:0", "--ack-timeout", "1s"}, flags...)
}

// report is the answer of /status.
func report(t *testing.T, addr string) (r admin.Report) {
	t.Helper()
	_, body := fetch(t, addr, "/status")
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("read /status: %v\n%s", err, body)
	}
	return r
}

// awaitReceived waits until the relay has handed n events to its stream.
func awaitReceived(t *testing.T, addr string, n uint64) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		if got := report(t, addr).Counters.Published; got < n {
			return fmt.Errorf("the relay has received %d events, want %d", got, n)
		}
		return nil
	})
}

// stopFast shuts PostgreSQL down and demands that the relay lets it.
func stopFast(t *testing.T, cluster *testenv.Postgres, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	began := time.Now()
	if err := cluster.Stop(ctx, testenv.Fast); err != nil {
		t.Fatalf("PostgreSQL does not shut down within %s: %v", within, err)
	}
	t.Logf("fast shutdown took %s", time.Since(began))
}

// startAgain starts PostgreSQL; the world's own connections are made anew.
func startAgain(t *testing.T, w *fixture.World, cluster *testenv.Postgres) {
	t.Helper()
	if err := cluster.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Pool.Reset()
}

// I2, I8: what is not acknowledged is not confirmed, and the relay leaves all
// the same.
func TestA06PostgreSQLShutsDownFastWhateverTheRelayHasInFlight(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("NATS away=%t", away), func(t *testing.T) {
			t.Parallel()
			cluster := envtest.Postgres(t, testenv.PGConfig{})
			broker := envtest.NATS(t, testenv.NATSConfig{})
			w := fixture.New(t, fixture.Config{Postgres: cluster, NATS: broker, Stream: shortDuplicates, Flags: observed()})
			relay := w.Start()
			addr := adminOf(t, relay.Text)
			w.Place(3)
			w.Check()
			want := 3
			if away {
				if err := broker.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.Place(5)
				want += 5
				awaitReceived(t, addr, 8)
				stopFast(t, cluster, 10*time.Second)
				startAgain(t, w, cluster)
				if err := broker.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				stopFast(t, cluster, 10*time.Second)
				awaitReadiness(t, addr, http.StatusServiceUnavailable, "")
				startAgain(t, w, cluster)
			}
			w.Place(1)
			w.Stored(want + 1)
			w.Check()
			awaitReadiness(t, addr, http.StatusOK, "ready")
			relay.Stop(fixture.Patience)
		})
	}
}

// I1, I6, I10: each connection is looked after, not only the one that carries
// the events.
func TestA14EachConnectionThatIsTerminatedComesBack(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, Flags: observed()})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	relay.Await("relaying", fixture.Patience)
	pid := func(role string) (pid int64) {
		envtest.Eventually(t, fixture.Patience, func() error {
			pid = fixture.Value[int64](w, "SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE application_name = 'walrelay ' || $1::text || ' ' || $2::text", w.Source, role)
			if pid == 0 {
				return fmt.Errorf("the relay has no %s connection", role)
			}
			return nil
		})
		return pid
	}
	stored := 0
	for range 2 {
		for _, role := range []string{"sql", "listen", "slot"} {
			old := pid(role)
			sessions := report(t, addr).Counters.Sessions
			w.Exec("SELECT pg_terminate_backend($1::int)", old)
			w.Place(1)
			stored++
			w.Stored(stored)
			envtest.Eventually(t, fixture.Patience, func() error {
				if now := pid(role); now == old {
					return fmt.Errorf("the %s connection is still pid %d", role, old)
				}
				return nil
			})
			envtest.Eventually(t, fixture.Patience, func() error {
				if got := report(t, addr).Counters.Sessions; got <= sessions {
					return fmt.Errorf("%d sessions after the %s connection was terminated, want more than before", got, role)
				}
				return nil
			})
		}
	}
	w.Check()
	awaitReadiness(t, addr, http.StatusOK, "ready")
	if text := relay.Text(); !strings.Contains(text, "57P01") {
		t.Error("the log does not name the SQLSTATE with which the server ended the connections")
	}
	relay.Stop(fixture.Patience)
}

// I6, I10: an error that comes as a message ends the session and is told.
func TestA11APublicationThatIsDroppedIsNamedAndNotPassedOver(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: observed()})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	w.Place(1)
	w.Check()
	w.Exec("DROP PUBLICATION " + w.Source)
	w.Place(1)
	end := w.WALEnd()
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "publication")
	if _, reason := relay.State(); !strings.Contains(reason, w.Source) {
		t.Errorf("the reason does not name publication %q: %s", w.Source, reason)
	}
	w.Exec("SELECT pg_switch_wal()")
	instant(t.Context(), 1500*time.Millisecond)
	if now := w.SlotAt(); now >= end {
		t.Errorf("the confirmed LSN is %s, beyond the event before %s that was never sent", now, end)
	}
	w.Stored(1)
	if !relay.Running() {
		t.Error("the relay ended because the publication was dropped")
	}
	relay.Stop(fixture.Patience)
}

// I6: a server that comes back as a standby is waited for.
func TestA11APrimaryThatComesBackAsAStandbyIsWaitedFor(t *testing.T) {
	t.Parallel()
	cluster := envtest.Postgres(t, testenv.PGConfig{})
	w := fixture.New(t, fixture.Config{Postgres: cluster, Stream: shortDuplicates, Flags: observed()})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	w.Place(3)
	w.Check()
	stopFast(t, cluster, 10*time.Second)
	signal := filepath.Join(cluster.DataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	startAgain(t, w, cluster)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "recovery")
	stopFast(t, cluster, 10*time.Second)
	if err := os.Remove(signal); err != nil {
		t.Fatal(err)
	}
	startAgain(t, w, cluster)
	w.Place(3)
	w.Stored(6)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	w.Check()
	relay.Stop(fixture.Patience)
}
