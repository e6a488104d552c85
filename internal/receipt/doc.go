// Package receipt deletes receipts that are old: the same for a running inbox
// and for `walrelay cleanup --consumer`.
//
// A receipt is what keeps an event from being applied twice, so its age is the
// length of a de-duplication window and no matter of tidiness. Deletion is
// gentle: small transactions with pauses as long as the work, one cleaner at a
// time, rows that somebody has locked are passed over, and no wait for a lock
// on the table is longer than two seconds.
package receipt
