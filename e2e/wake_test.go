package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// noteWrites lets every table of the relay's note who writes to it.
func noteWrites(w *fixture.World) {
	w.Exec(`CREATE TABLE e2e.written (at bigint GENERATED ALWAYS AS IDENTITY, pid integer, tbl text, op text);
		CREATE FUNCTION e2e.written() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO e2e.written (pid, tbl, op) VALUES (pg_backend_pid(), TG_TABLE_NAME, TG_OP);
			RETURN NULL;
		END
		$$`)
	for _, table := range []string{"witness", "epoch", "proven", "gap", "job", "dead_letter"} {
		w.Exec("CREATE TRIGGER e2e_written AFTER INSERT OR UPDATE OR DELETE ON walrelay." + table + " FOR EACH ROW EXECUTE FUNCTION e2e.written()")
	}
}

// byProxy is the way to the world's database that leads through its proxy.
func byProxy(w *fixture.World) string {
	cfg := w.Pool.Config().ConnConfig
	return strings.Replace(w.DatabaseURL, fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), w.PostgresProxy.Addr(), 1)
}

// I2, I3, I5: a relay sleeps in the middle of a large transaction with
// acknowledgements on their way, and another takes over. It wakes with the
// answers, with more to send and with its SQL connection, and does not hear that
// it lost the slot: it stores nothing and writes nothing all the same. What the
// one stores is told from what the other does by its headers.
func TestARelayThatWakesAfterATakeoverStoresAndWritesNothing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates, ProxyNATS: true, ProxyPostgres: true})
	noteWrites(w)
	sleeper := w.Start("--database-url", w.DatabaseURL, "--replication-url", byProxy(w), "--ack-timeout", "30s", "--window", "1000")
	load := w.Load(fixture.LoadConfig{Writers: 2})
	w.AwaitRecorded(50)
	if err := w.NATSProxy.Hold(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	before, err := w.LastSeq(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bulk(w, 3000)
	w.AwaitRecorded(before + 50) // stored, and it does not know
	sleeper.Freeze()
	old := fixture.Value[[]int32](w, "SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name LIKE 'walrelay ' || $1 || ' %'", w.Source)
	if err := w.PostgresProxy.Hold(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	w.Exec("SELECT pg_terminate_backend($1::int)", holder(w))

	second := w.Start("--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--headers", "lean")
	second.Await("relaying", fixture.Patience)
	more(t, load, 30)
	w.AwaitRecorded(before + 3000)
	session := fixture.Value[string](w, "SELECT session::text FROM walrelay.witness WHERE source = $1", w.Source)
	asleep, err := w.LastSeq(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	written := fixture.Value[int64](w, "SELECT max(at) FROM e2e.written")

	sleeper.Thaw()
	if err := w.NATSProxy.Release(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	// It finds out by itself; only then is it told.
	envtest.Eventually(t, fixture.Patience, func() error {
		if state, _ := sleeper.State(); state == "relaying" {
			return fmt.Errorf("the relay that woke is still relaying")
		}
		return nil
	})
	if err := w.PostgresProxy.Release(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	sleeper.Await("standby", fixture.Patience)
	for _, l := range sleeper.Lines() {
		if l.State == "halted" {
			t.Errorf("the relay that woke halts: %s; it has to be a standby at once", l.Reason)
		}
	}
	more(t, load, 30)
	load.Stop()
	w.Check()

	if now := fixture.Value[string](w, "SELECT session::text FROM walrelay.witness WHERE source = $1", w.Source); now != session {
		t.Errorf("the witness is of session %s, want %s: nobody took over", now, session)
	}
	if by := fixture.Value[[]string](w, "SELECT coalesce(array_agg(DISTINCT tbl || ' ' || op), '{}') FROM e2e.written WHERE at > $1 AND pid = ANY($2)", written, old); len(by) > 0 {
		t.Errorf("the relay that woke wrote: %v", by)
	}
	if n := fixture.Value[int64](w, "SELECT count(*) FROM e2e.written WHERE at > $1", written); n == 0 {
		t.Error("no write was noted at all: the drill drilled nothing")
	}
	for _, m := range messages(t, w) {
		if m.Seq > asleep && m.Header.Get(envelope.HeaderCommittedAt) != "" {
			t.Fatalf("message %d at %s was stored by the relay that woke", m.Seq, m.Position)
		}
	}
	second.Stop(fixture.Patience)
	sleeper.Await("relaying", fixture.Patience)
	w.Place(1)
	w.Check()
	sleeper.Stop(fixture.Patience)
	if !slices.ContainsFunc(messages(t, w), func(m fixture.Message) bool { return m.Header.Get(envelope.HeaderCommittedAt) == "" }) {
		t.Error("the other relay stored nothing: the drill drilled nothing")
	}
}
