// Package e2e holds walrelay to its promise with real servers that get killed.
//
// A drill runs a workload, injects one fault, lets the system settle, and has
// the checker of package fixture compare what was committed with what is
// stored. The checker knows nothing of the fault. Beside the drills stands one
// test for each failure report of those who run this sort of software; their
// numbers are in README.md.
package e2e
