package e2e_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I2, I5, I7: a transaction is never held in memory, and a kill in its middle
// costs nothing. With $DRILL_LONG it has a million rows, and the relay its
// defaults.
func TestA19OneHugeTransactionPassesInBoundedMemoryAndSurvivesAKill(t *testing.T) {
	t.Parallel()
	rows, filler, limit, flags := 40000, 2000, memoryLimit(), []string{"--in-flight-bytes", "4194304"}
	patience := fixture.Patience
	if long() {
		rows, filler, limit, flags, patience = 1_000_000, 200, max(256<<20, limit), nil, 10*time.Minute
	}
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, Flags: flags})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	w.Exec("ALTER TABLE walrelay.outbox DISABLE TRIGGER e2e_note")
	write := func(rows, filler int) {
		w.Exec(fmt.Sprintf(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'order', 'a1', 'placed', jsonb_build_object('i', i, 'filler', repeat('x', %d)) FROM generate_series(1, %d) AS i`, filler, rows))
	}
	await := func(n int) {
		t.Helper()
		envtest.Eventually(t, patience, func() error {
			if got, err := w.LastSeq(t.Context()); err != nil || got < uint64(n) {
				return fmt.Errorf("%d messages are stored, want %d (%v)", got, n, err) //nolint:errorlint // may be nil
			}
			return nil
		})
	}
	write(rows, filler)
	await(rows / 2)
	relay.Kill()
	first := look(t, w, func(*fixture.Message) bool { return false })
	stored, err := w.LastSeq(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if at := w.SlotAt(); stored < uint64(rows) && at > first.Position.Commit {
		t.Errorf("the confirmed LSN is %s in the middle of the transaction committed at %s", at, first.Position.Commit)
	}
	relay = w.Start()
	await(rows)
	look(t, w, func(m *fixture.Message) bool {
		if want := fmt.Sprintf(`{"i": %d, `, m.Seq); !strings.HasPrefix(string(m.Body), want) {
			t.Errorf("message %d begins with %.20q, want %q", m.Seq, m.Body, want)
			return false
		}
		return true
	})
	small := peak(t, relay.PID())

	write(100, 900000)
	await(rows + 100)
	large := peak(t, relay.PID())
	t.Logf("peak of resident memory: %d MB after %d rows of %d bytes, %d MB after 100 rows of 900 kB in one transaction", small>>20, rows, filler, large>>20)
	if large > limit {
		t.Errorf("the relay took %d MB, want at most %d MB", large>>20, limit>>20)
	}
	relay.Stop(fixture.Patience)
}

// I1, I6, I7, A51: rows of many megabytes. What a stream can keep is stored, what
// it cannot is a dead letter and holds up nothing, and neither is in memory more
// than twice.
func TestRowsOfUpToSixtyFourMegabytesAreStoredOrDeadLettered(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	broker := envtest.NATS(t, testenv.NATSConfig{ConfigFile: natsConfig(t, "max_pending: 256MB"), MaxPayload: 80 * mib})
	w := fixture.New(t, fixture.Config{NATS: broker, Stream: shortDuplicates, Flags: []string{"--in-flight-bytes", "1048576", "--ack-timeout", "30s"}})
	large, larger, huge := 16*mib, 31*mib, 64*mib
	if fixture.Race {
		// The servers of the tests run with the detector too, and take a
		// hundred times as long over each byte.
		large, larger, huge = mib, 2*mib, 4*mib
	}
	relay := w.Start()
	place := func(sizes ...int) {
		for _, size := range sizes {
			w.Exec("SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', repeat('x', $1::int))", size)
		}
	}
	w.Exec("INSERT INTO e2e.aggregate VALUES ('a1')")
	place(10, large, larger, 10, 40*mib, 10, 64*mib, 10)
	w.Check()
	letters := w.Dead(2)
	for i, d := range letters {
		if d.Reason != "too_large" || d.Payload != nil || d.Size < int64(40+24*i)*mib {
			t.Errorf("dead letter %d: %s, %d bytes of %d, want too_large with the size alone", d.Number, d.Reason, len(d.Payload), d.Size)
		}
	}
	relay.Stop(fixture.Patience)

	// A stream in memory keeps what its server takes.
	w.UpdateStream(func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{"none"} })
	makeStream(t, w, jetstream.StreamConfig{Name: "MEMORY", Subjects: []string{"outbox." + w.Source + ".>"}, Storage: jetstream.MemoryStorage})
	relay = w.Start("--stream", "MEMORY")
	place(huge, 10)
	holds(t, w, "MEMORY", 2)
	most, limit := peak(t, relay.PID()), int64(320<<20)
	t.Logf("peak of resident memory: %d MB", most>>20)
	if most > limit && !fixture.Race {
		t.Errorf("the relay took %d MB for a row of 64 MB, want at most %d MB", most>>20, limit>>20)
	}
	relay.Stop(fixture.Patience)
}

// look reads the stream and gives the first message.
func look(t *testing.T, w *fixture.World, each func(*fixture.Message) bool) (first fixture.Message) {
	t.Helper()
	err := w.Each(t.Context(), func(m *fixture.Message) bool {
		if first.Seq == 0 {
			first = *m
		}
		return each(m)
	})
	if err != nil {
		t.Fatal(err)
	}
	return first
}

// memoryLimit is far below the 80 and 90 MB of the transactions, each of which
// would take several times its size if it were held. The race detector alone
// multiplies what a process takes.
func memoryLimit() int64 {
	if fixture.Race {
		return 400 << 20
	}
	return 100 << 20
}

// peak is the largest resident size of a process so far, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("process %d has no VmHWM", pid)
	return 0
}
