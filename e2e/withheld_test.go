package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// With synchronized_standby_slots the slot sends nothing while a standby is
// away: the relay has all that it needs but events, and must not look well. I10.
func TestARelayThatPostgreSQLHoldsBackForItsStandbyIsNotReadyAndSaysWhy(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"synchronized_standby_slots": "standby"}, false)
	relay := p.Start("--admin", "127.0.0.1:0")
	addr := adminOf(t, relay.Text)
	placed := uint64(0)
	arrives := func() {
		t.Helper()
		placed += 5
		p.Place(5)
		p.AwaitRecorded(placed)
		awaitReadiness(t, addr, http.StatusOK, "ready: ")
	}
	for _, c := range []struct {
		name       string
		away, back func() error
		says       string
	}{
		{"stopped", func() error { return p.standby.Stop(t.Context(), testenv.Fast) }, func() error { return p.standby.Start(t.Context()) }, `no standby streams through slot "standby", which is `},
		{"frozen", p.proxy.Freeze, p.proxy.Thaw, `the standby of slot "standby" is `},
		{"named and not there", func() error { return p.waitFor("standby, nobody") }, func() error { return p.waitFor("standby") }, `there is no physical slot "nobody"`},
	} {
		arrives()
		if err := c.away(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		before := relay.Text()
		placed += 5
		p.Place(5)
		awaitReadiness(t, addr, http.StatusServiceUnavailable, "not ready: waiting: PostgreSQL sends nothing that the standbys of synchronized_standby_slots have not received, and "+c.says)
		if got := report(t, addr); got.Phase != "waiting" || got.WithheldSince.IsZero() || !got.PhaseSince.Equal(got.WithheldSince) || !got.StalledSince.IsZero() {
			t.Errorf("%s: phase %s since %v, withheld since %v, stalled since %v; want waiting since it is withheld, and not stalled", c.name, got.Phase, got.PhaseSince, got.WithheldSince, got.StalledSince)
		}
		envtest.Eventually(t, fixture.Patience, func() error {
			if text := strings.TrimPrefix(relay.Text(), before); !strings.Contains(text, "PostgreSQL sends nothing") {
				return fmt.Errorf("%s: the log does not say that PostgreSQL sends nothing:\n%s", c.name, text)
			}
			return nil
		})
		if err := c.back(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		p.AwaitRecorded(placed)
	}
	arrives()
	p.Check()
	relay.Stop(fixture.Patience)
}

// waitFor has the primary wait for these slots.
func (p *pair) waitFor(slots string) error {
	p.Exec(fmt.Sprintf("ALTER SYSTEM SET synchronized_standby_slots = %s", slots))
	p.Exec("SELECT pg_reload_conf()")
	return nil
}
