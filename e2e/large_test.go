package e2e_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// I2, I5, I7: a transaction is never held in memory, and a kill in its middle
// costs nothing.
func TestA19OneHugeTransactionPassesInBoundedMemoryAndSurvivesAKill(t *testing.T) {
	t.Parallel()
	const rows = 40000
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, Flags: []string{"--in-flight-bytes", "4194304"}})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	w.Exec("ALTER TABLE walrelay.outbox DISABLE TRIGGER e2e_note")
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'a1', 'placed', jsonb_build_object('i', i, 'filler', repeat('x', 2000)) FROM generate_series(1, ` + strconv.Itoa(rows) + `) AS i`)
	w.AwaitRecorded(rows / 2)
	relay.Kill()
	first := look(t, w, func(*fixture.Message) bool { return false })
	stored, err := w.LastSeq(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if at := w.SlotAt(); stored < rows && at > first.Position.Commit {
		t.Errorf("the confirmed LSN is %s in the middle of the transaction committed at %s", at, first.Position.Commit)
	}
	relay = w.Start()
	w.AwaitRecorded(rows)
	look(t, w, func(m *fixture.Message) bool {
		if want := fmt.Sprintf(`{"i": %d, `, m.Seq); !strings.HasPrefix(string(m.Body), want) {
			t.Errorf("message %d begins with %.20q, want %q", m.Seq, m.Body, want)
			return false
		}
		return true
	})
	small := peak(t, relay.PID())

	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'a1', 'placed', jsonb_build_object('i', i, 'filler', repeat('x', 900000)) FROM generate_series(1, 100) AS i`)
	w.AwaitRecorded(rows + 100)
	large := peak(t, relay.PID())
	t.Logf("peak of resident memory: %d MB after %d rows of 2 kB, %d MB after 100 rows of 900 kB in one transaction", small>>20, rows, large>>20)
	if limit := memoryLimit(); large > limit {
		t.Errorf("the relay took %d MB, want at most %d MB for 4 MB in flight", large>>20, limit>>20)
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
