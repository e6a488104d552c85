package e2e_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I8: status goes out on its own timer while nothing is acknowledged and inside
// a large transaction that NATS takes slowly.
func TestA09ASlowNATSNeverCostsTheReplicationSession(t *testing.T) {
	t.Parallel()
	held, rows := 5*time.Second, 9000
	if long() {
		held, rows = time.Minute, 300000
	}
	cluster := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"wal_sender_timeout": "3s"}})
	w := fixture.New(t, fixture.Config{Postgres: cluster, ProxyNATS: true, Flags: observed("--window", "64", "--status-interval", "1m")})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	w.Place(1)
	w.Check()
	pid := holder(w)

	if err := w.NATSProxy.Hold(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	w.Place(1)
	instant(t.Context(), held)
	if now := holder(w); now != pid {
		t.Errorf("the slot's server process is pid %d after %s without acknowledgements, want still %d", now, held, pid)
	}
	if err := w.NATSProxy.Release(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	w.Stored(2)

	// 64 messages a round trip of 50 ms.
	if err := w.NATSProxy.Slow(testenv.Downstream, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	bulk(w, rows)
	began := time.Now()
	envtest.Eventually(t, time.Duration(rows)*10*time.Millisecond, func() error {
		stored, err := w.LastSeq(t.Context())
		if err == nil && stored < uint64(rows+2) {
			err = fmt.Errorf("%d events are stored, want %d", stored, rows+2)
		}
		return err
	})
	if took := time.Since(began); took < 6*time.Second {
		t.Errorf("the transaction took %s, too little to drill wal_sender_timeout", took)
	}
	w.Check()
	if now := holder(w); now != pid {
		t.Errorf("the slot's server process is pid %d, want still %d", now, pid)
	}
	if n := report(t, addr).Counters.Sessions; n != 1 {
		t.Errorf("there were %d sessions, want one", n)
	}
	relay.Stop(fixture.Patience)
}

// I1, I5, I6, I10: a peer that says nothing is found by its silence.
func TestA10APostgreSQLThatFallsSilentIsFoundAndComeBackTo(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyPostgres: true, Stream: shortDuplicates, Flags: observed("--silence", "2s")})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	w.Place(2)
	w.Check()
	old := holder(w)
	for i := range 2 { // in mid-stream, and again
		began := time.Now()
		if err := w.PostgresProxy.Freeze(); err != nil {
			t.Fatal(err)
		}
		w.Place(2)
		awaitReadiness(t, addr, http.StatusServiceUnavailable, "")
		took(t, "finding the silence", began, 10*time.Second)
		if err := w.PostgresProxy.Thaw(); err != nil {
			t.Fatal(err)
		}
		w.Stored(2 * (i + 2))
		awaitReadiness(t, addr, http.StatusOK, "ready")
		if now := holder(w); now == old {
			t.Errorf("the slot is still held by pid %d, want another connection", now)
		} else {
			old = now
		}
	}
	w.Check()
	relay.Stop(fixture.Patience)
}

// I6, I10: a connection that never gets past its start is no readiness.
func TestA10APostgreSQLThatIsSilentFromTheStartIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyPostgres: true, Flags: observed()})
	w.Place(2)
	if err := w.PostgresProxy.Freeze(); err != nil {
		t.Fatal(err)
	}
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "")
	if long() {
		if reason := relay.Await("waiting", fixture.Patience); reason == "" { // an attempt is given up after 20 s
			t.Error("the relay does not say what it waits for")
		}
	}
	if err := w.PostgresProxy.Thaw(); err != nil {
		t.Fatal(err)
	}
	w.Stored(2)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	w.Check()
	relay.Stop(fixture.Patience)
}

// I1, I5, I6, I10.
func TestA10ANATSThatFallsSilentIsFoundAndComeBackTo(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyNATS: true, Stream: shortDuplicates, Flags: observed()})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	w.Place(2)
	w.Check()
	began := time.Now()
	if err := w.NATSProxy.Freeze(); err != nil {
		t.Fatal(err)
	}
	w.Place(2)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "stream")
	took(t, "finding that nothing is acknowledged", began, 10*time.Second)
	envtest.Eventually(t, fixture.Patience, func() error {
		if r := report(t, addr); r.NATS.Connected {
			return fmt.Errorf("the connection to NATS still counts as one after %s", time.Since(began))
		}
		return nil
	})
	took(t, "giving the connection up", began, 45*time.Second)
	if err := w.NATSProxy.Thaw(); err != nil {
		t.Fatal(err)
	}
	w.Stored(4)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	if r := report(t, addr); r.NATS.Reconnects == 0 {
		t.Error("the status does not count the new connection to NATS")
	}
	w.Check()
	relay.Stop(fixture.Patience)
}
