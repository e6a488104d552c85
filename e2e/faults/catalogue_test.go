package faults_test

import (
	"context"
	"slices"
	"time"
)

// A kind is what a world consists of.
type kind string

const (
	single  kind = "single"  // one PostgreSQL, one NATS, proxies between the relay and both
	cluster kind = "cluster" // one PostgreSQL, a NATS cluster of three
	synced  kind = "synced"  // a primary whose standby has a copy of the slot, one NATS
	plain   kind = "plain"   // a primary whose standby has none, one NATS
)

// A fault is what is done to a world, and how it is taken back.
type fault struct {
	name string
	// fits are the kinds of world that have what it is about.
	fits []kind
	// on names what it acts on. Two faults on the same thing do not go
	// together.
	on []string
	// loses says that it takes away what the slot had to deliver or a stream has
	// stored. No other fault may be told as a gap.
	loses bool
	// last says that a world can have it once, as its end.
	last bool
	// inject begins the fault. Where the servers are away, it waits for them.
	inject func(ctx context.Context, s *stage) error
	// mend takes it back; nil where nothing is to be taken back.
	mend func(ctx context.Context, s *stage) error
	// hold is how long it lasts at most; zero means the plan's length.
	hold time.Duration
}

var everywhere = []kind{single, cluster, synced, plain}

// catalogue lists all faults.
func catalogue() []fault {
	return slices.Concat(relayFaults(), brokerFaults(), databaseFaults(), wireFaults(), streamFaults(), slotFaults(), publicationFaults(),
		jobFaults(), historyFaults(), promotionFaults())
}

// fitting are the faults of the catalogue that a world of the kind can have.
func fitting(k kind) []fault {
	return slices.DeleteFunc(catalogue(), func(f fault) bool { return !f.fit(k) })
}

// fit says whether a world of the kind has what the fault is about.
func (f *fault) fit(k kind) bool { return slices.Contains(f.fits, k) }

// named are the faults of these names.
func named(names ...string) (list []fault) {
	all := catalogue()
	for _, name := range names {
		list = append(list, all[slices.IndexFunc(all, func(f fault) bool { return f.name == name })])
	}
	return list
}

// together says whether two faults may hold at the same time.
func together(a, b *fault) bool {
	return !slices.ContainsFunc(a.on, func(thing string) bool { return slices.Contains(b.on, thing) })
}
