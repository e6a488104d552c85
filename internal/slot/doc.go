// Package slot owns the replication connection: it takes the slot, reads what
// PostgreSQL sends, keeps the connection alive on a timer of its own, and holds
// the ledger that says which LSN may be confirmed. It also asks PostgreSQL what
// became of the slot and the publication.
//
// Nothing here knows of NATS or of messages. The session joins this package
// with the publisher.
package slot
