// Package faults drills the promise through every fault, alone and in pairs.
//
// A drill makes a world of a certain kind, with a workload that uses every kind
// of route, then injects faults of the catalogue at instants that follow from a
// seed, lets everything settle, and has the checker of package fixture compare.
// The checker is told nothing of the faults, save where one changes what counts
// as stored: see [fixture.World.Purge] and [fixture.World.Hands].
//
// `make test` injects each fault once with a fixed seed, and some in pairs.
// `make drill` runs drills with fresh seeds for as long as it is told to.
package faults
