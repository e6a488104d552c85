// Package migrations creates and upgrades what walrelay keeps in PostgreSQL:
// the schema with its tables, the publication and the slot on the outbox side,
// and the receipts on the consumer side.
//
// Each file under outbox and consumer is one version. A file can be run twice:
// what exists is left as it is. That is how a half-made state is completed, so
// a later file that alters must ask first whether it already did.
//
// The order is fixed, and the reason is pgoutput: it looks at the catalogue as
// of the change it decodes, so the publication must be older than the slot.
package migrations
