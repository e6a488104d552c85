package faults_test

import (
	"os"
	"slices"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// fixedSeed is that of `make test`.
const fixedSeed = 1

// I1, I2, I3, I4, I5, I10: each fault alone. The faults of one kind of thing
// share a world, one after the other.
func TestEachFaultAlone(t *testing.T) {
	t.Parallel()
	groups := []struct {
		name   string
		kind   kind
		faults []fault
		flags  []string
	}{
		{"relay and servers", single, slices.Concat(relayFaults(), brokerFaults(), databaseFaults()), nil},
		{"wires", single, wireFaults(), nil},
		{"full streams", single, named("stream full", "stream full of bytes"), nil},
		// What a purge has removed is sent again when a stream is filled after it.
		{"a purged stream", single, named("stream purged"), nil},
		{"a stream made anew", single, named("stream made anew"), nil},
		{"a stream restored", single, named("stream restored"), []string{"--heal-limit", "20"}},
		{"slot and publication", single, slices.Concat(slotFaults(), publicationFaults(), jobFaults()), nil},
		{"histories", single, historyFaults(), nil},
		{"cluster", cluster, brokerFaults(), nil},
		{"standby with the slot", synced, promotionFaults(), nil},
		{"standby without the slot", plain, slices.Concat(wireFaults(), promotionFaults()), nil},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			p := &plan{seed: fixture.Seed(t, fixedSeed), kind: g.kind, flags: g.flags}
			for _, f := range g.faults {
				if f.fit(g.kind) {
					p.add(f)
				}
			}
			drill(t, p)
		})
	}
}

// I1, I2, I3, I4, I5, I10: faults in pairs. These were chosen because each of the
// two makes the other one worse.
func TestFaultsInPairs(t *testing.T) {
	t.Parallel()
	for _, g := range []struct {
		name  string
		kind  kind
		pairs [][]string
		flags []string
	}{
		{"what is recorded late", single, [][]string{
			{"SQL wire upstream slow", "relay killed"}, {"SQL wire upstream slow", "NATS wire cut"}, {"SQL wire upstream slow", "relay killed"},
		}, nil},
		{"what is forgotten", single, [][]string{{"stream purged", "relay killed"}, {"NATS frozen", "PostgreSQL killed"}}, []string{"--window", "8"}},
		{"who is overtaken", cluster, [][]string{{"relay overtaken", "NATS leader frozen"}, {"relay overtaken", "NATS node killed"}}, []string{"--silence", "30s"}},
	} {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			p := &plan{seed: fixture.Seed(t, fixedSeed), kind: g.kind, flags: g.flags}
			for _, pair := range g.pairs {
				f := named(pair...)
				p.within(f[0], f[1])
			}
			drill(t, p)
		})
	}
}

// What `make drill` runs again and again: a plan that follows from the seed
// alone, with faults of their full length.
func TestDrill(t *testing.T) {
	t.Parallel()
	drill(t, randomPlan(fixture.Seed(t, fixedSeed), os.Getenv(reportVariable) != ""))
}
