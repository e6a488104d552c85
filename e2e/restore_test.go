package e2e_test

import (
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I1, I5: a database that was restored from a copy of its files is another
// history of the same source. Its LSNs come again with other events, so the
// relay must neither skip nor publish.
func TestARelayOnARestoredDatabaseHaltsAndDeliversNothing(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]struct{ transactions int }{
		"the copy's log ends before the stream's last event": {0},
		"the copy's log has grown beyond it":                 {400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := envtest.Postgres(t, testenv.PGConfig{})
			w := fixture.New(t, fixture.Config{Postgres: cluster})
			relay := w.Start()
			w.Load(fixture.LoadConfig{Writers: 2, Transactions: 20}).Wait()
			w.Settle(fixture.Patience)
			relay.Stop(fixture.Patience)

			if err := cluster.Stop(t.Context(), testenv.Fast); err != nil {
				t.Fatal(err)
			}
			restored := envtest.Postgres(t, testenv.PGConfig{DataFrom: cluster.DataDir()})
			if err := cluster.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			relay = w.Start()
			w.Load(fixture.LoadConfig{Writers: 2, Transactions: 60}).Wait()
			w.Check()
			relay.Stop(fixture.Patience)
			stored, err := w.LastSeq(t.Context())
			if err != nil {
				t.Fatal(err)
			}

			other := w.On(restored)
			if ahead.transactions > 0 {
				other.Load(fixture.LoadConfig{Writers: 2, Transactions: ahead.transactions}).Wait()
			}
			confirmed, err := other.Confirmed(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			relay = other.Start()
			reason := relay.Await("halted", fixture.Patience)
			if !strings.Contains(reason, w.StreamName) {
				t.Errorf("the reason %q does not name the stream", reason)
			}
			if !relay.Running() {
				t.Error("the halted relay ended; it has to stay")
			}
			now, err := w.LastSeq(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if now != stored {
				t.Errorf("the stream's last sequence is %d, want %d as before: nothing may be published", now, stored)
			}
			after, err := other.Confirmed(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if after != confirmed {
				t.Errorf("the confirmed LSN went from %s to %s, want it untouched", confirmed, after)
			}
			relay.Stop(fixture.Patience)
		})
	}
}
