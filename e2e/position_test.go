package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I2.
func TestA01AKeepaliveIsNotTakenForWhatIsStored(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyNATS: true, Flags: []string{"--status-interval", "100ms", "--ack-timeout", "1s"}})
	relay := w.Start()
	w.Place(1)
	w.Check()
	if err := w.NATSProxy.Hold(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	w.Place(1)
	w.Exec("INSERT INTO e2e.other (filler) SELECT repeat('x', 100) FROM generate_series(1, 10000)")
	highest := w.SlotAt()
	w.AwaitReplies(10, func(r fixture.Reply) { highest = max(highest, r.Write, r.Flush, r.Replay, w.SlotAt()) })
	relay.Kill()
	if err := w.NATSProxy.Release(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	relay = w.Start()
	w.Check()
	if at := w.Stored(2)[1].Position.Commit; highest > at {
		t.Errorf("the confirmed LSN rose to %s while the event committed at %s was not acknowledged", highest, at)
	}
	relay.Stop(fixture.Patience)
}

// I2.
func TestA02NothingIsConfirmedBeforeTheFirstAcknowledgement(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyNATS: true, Flags: []string{"--status-interval", "100ms"}})
	if err := w.NATSProxy.Cut(); err != nil {
		t.Fatal(err)
	}
	created := w.SlotAt()
	relay := w.Start()
	w.Place(1)
	w.Exec("INSERT INTO e2e.other (filler) SELECT repeat('x', 100) FROM generate_series(1, 10000)")
	w.AwaitReplies(10, func(r fixture.Reply) {
		if got := max(r.Write, r.Flush, r.Replay); got > created {
			t.Errorf("the relay reported %s, want at most %s, where the slot was created", got, created)
		}
	})
	if got := w.SlotAt(); got != created {
		t.Errorf("the confirmed LSN is %s, want %s as created", got, created)
	}
	if err := w.NATSProxy.Restore(); err != nil {
		t.Fatal(err)
	}
	w.Check()
	relay.Stop(fixture.Patience)
}

// I8: without a heartbeat table.
func TestA03AQuietOutboxInABusyDatabaseRetainsNoWAL(t *testing.T) {
	t.Parallel()
	const megabytes = 1 << 20
	cluster := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"max_wal_size": "64MB"}})
	w := fixture.New(t, fixture.Config{Postgres: cluster})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	for range 5 {
		w.Exec("INSERT INTO e2e.other (filler) SELECT repeat(md5(i::text), 60) FROM generate_series(1, 10000) AS i") // 20 MB of WAL
		end := w.WALEnd()
		envtest.Eventually(t, 15*time.Second, func() error {
			if at := w.SlotAt(); at < end {
				return fmt.Errorf("the confirmed LSN is %s, the log's end was %s", at, end)
			}
			return nil
		})
	}
	envtest.Eventually(t, fixture.Patience, func() error {
		w.Exec("CHECKPOINT")
		retained := fixture.Value[int64](w, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1", w.Source)
		if retained > 16*megabytes {
			return fmt.Errorf("the slot retains %d bytes", retained)
		}
		return nil
	})
	if n, err := w.LastSeq(t.Context()); err != nil || n != 0 {
		t.Errorf("the stream has %d messages (%v), want none", n, err)
	}
	relay.Stop(fixture.Patience)
}

// I5.
func TestA04TheLastTransactionDoesNotComeAgainAtEveryRestart(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	relay := w.Start()
	w.Place(3)
	w.Stored(3)
	for range 5 {
		relay.Stop(fixture.Patience)
		relay = w.Start()
		relay.Await("relaying", fixture.Patience)
	}
	w.Check()
	w.Stored(3)
	relay.Stop(fixture.Patience)
}

// I2: a stop confirms what is acknowledged, also when its interval is far off.
func TestA05AStopConfirmsWhatIsAcknowledged(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: []string{"--status-interval", "10s"}})
	for i := range 3 {
		relay := w.Start()
		w.Place(1)
		w.Exec("SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', '') FROM generate_series(1, 199)")
		messages := w.Stored(200 * (i + 1))
		relay.Stop(fixture.Patience)
		if last, at := messages[len(messages)-1].Position.Commit, w.SlotAt(); at <= last {
			t.Errorf("after the stop the confirmed LSN is %s, want it beyond the last event's commit LSN %s", at, last)
		}
	}
}

// I2.
func TestA05AStopThatCannotWaitConfirmsNothingMore(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{ProxyNATS: true, Flags: []string{"--drain-timeout", "1s"}})
	for name, end := range map[string]func(*fixture.Relay) int{
		"its own deadline": func(r *fixture.Relay) int { r.Terminate(); return r.ExitCode(20 * time.Second) },
		"a second signal": func(r *fixture.Relay) int {
			r.Terminate()
			r.Await("stopping", fixture.Patience)
			r.Terminate()
			return r.ExitCode(20 * time.Second)
		},
	} {
		relay := w.Start()
		w.Place(1)
		w.Settle(fixture.Patience)
		if err := w.NATSProxy.Hold(testenv.Downstream); err != nil {
			t.Fatal(err)
		}
		n, err := w.LastSeq(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.Place(1)
		w.AwaitRecorded(n + 1)
		if code := end(relay); name == "its own deadline" && code != 0 || name != "its own deadline" && code != 130 && code != 0 {
			t.Errorf("%s: the relay ended with code %d", name, code)
		}
		confirmed := w.SlotAt()
		if err := w.NATSProxy.Release(testenv.Downstream); err != nil {
			t.Fatal(err)
		}
		messages, err := w.Messages(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if last := messages[len(messages)-1].Position.Commit; confirmed > last {
			t.Errorf("%s: the confirmed LSN is %s, beyond the event at %s that was not acknowledged", name, confirmed, last)
		}
		relay = w.Start()
		w.Check()
		relay.Stop(fixture.Patience)
	}
}
