package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A28, I1, I8: PostgreSQL decodes a commit that waits for a synchronous standby.
// Without the guard its event is stored before anybody can see the row, with it
// afterwards.
func TestA28AnEventWaitsForASynchronousStandbyWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	primary := envtest.Postgres(t, testenv.PGConfig{})
	w := fixture.New(t, fixture.Config{Postgres: primary, Stream: shortDuplicates})
	proxy := envtest.Proxy(t, primary.Addr())
	envtest.Standby(t, primary, testenv.StandbyConfig{Via: proxy.Addr(), Settings: map[string]string{"wal_retrieve_retry_interval": "200ms"}})
	w.Exec("INSERT INTO e2e.aggregate VALUES ('a1')")
	w.Exec("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
	w.Exec("SELECT pg_reload_conf()")
	rows := func() int64 { return fixture.Value[int64](w, "SELECT count(*) FROM walrelay.outbox") }
	// waiting writes one event while the standby answers nothing.
	waiting := func(look func()) {
		t.Helper()
		envtest.Eventually(t, fixture.Patience, func() error {
			if state := fixture.Value[string](w, "SELECT coalesce(max(sync_state), 'none') FROM pg_stat_replication WHERE application_name = 'standby'"); state != "sync" {
				return fmt.Errorf("the standby is %s, want sync", state)
			}
			return nil
		})
		before := rows()
		if err := proxy.Hold(testenv.Upstream); err != nil {
			t.Fatal(err)
		}
		written := make(chan error, 1)
		go func() {
			_, err := w.Pool.Exec(t.Context(), "SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', '')")
			written <- err
		}()
		look()
		if now := rows(); now != before {
			t.Errorf("%d rows are visible, want %d: the commit did not wait", now, before)
		}
		if err := proxy.Release(testenv.Upstream); err != nil {
			t.Fatal(err)
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}

	relay := w.Start()
	w.Place(3)
	w.Check()
	proven(t, w) // and nothing of the relay's own is left to be written
	waiting(func() { w.Stored(4) })
	w.Check()
	relay.Stop(fixture.Patience)

	relay = w.Start("--wait-visible")
	w.Place(3)
	w.Check()
	proven(t, w)
	waiting(func() {
		if reason := relay.Await("waiting", fixture.Patience); !strings.Contains(reason, "synchronous standby") {
			t.Errorf("the relay waits for %q, want a synchronous standby", reason)
		}
		w.AwaitReplies(3, func(fixture.Reply) {})
		w.Stored(7)
	})
	relay.Await("relaying", fixture.Patience)
	w.Load(fixture.LoadConfig{Writers: 2, Transactions: 30}).Wait()
	w.Check()
	relay.Stop(fixture.Patience)
}
