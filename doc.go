// Package walrelay is the relay: it reads the inserts into an outbox table from
// PostgreSQL's write-ahead log through a logical replication slot, publishes
// them to NATS JetStream, and lets the slot move only over what JetStream has
// stored.
//
// [New] checks a [Config] and does no I/O. [Relay.Run] relays until its context
// ends; it needs neither server to be there and waits for both. [Relay.Status]
// tells what it does, and what it waits for. The command walrelay is a thin
// shell around these three.
//
// Beside this package: outbox writes events inside a transaction, inbox applies
// an event exactly once, idempotency calls somebody else's API at most once per
// fact, and envelope is the wire contract.
package walrelay
