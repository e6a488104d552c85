// Package witness keeps in PostgreSQL what a relay must not forget: which
// session holds the slot, how far each stream was, and which histories (epochs)
// the database has had. None of it is ever a start position: the slot alone is.
//
// Every write of a relay first locks its witness row with its session, in the
// same transaction. A takeover updates that row, so a relay that wakes from a
// pause after it can write nothing.
package witness
