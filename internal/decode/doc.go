// Package decode turns the bytes of pgoutput, PostgreSQL's built-in logical
// decoding plugin, into rows. It owns the wire format and nothing else: what a
// row means is the router's business.
//
// It speaks protocol version 1 as PostgreSQL 15 to 18 send it, in text or
// binary format, with or without logical messages. A transaction arrives whole,
// after its commit: [KindBegin], the changes, [KindCommit]. Streaming and
// two-phase delivery belong to later versions of the protocol; their messages
// are errors that name the option to turn off.
//
// The package is pure: bytes in, values out. It never panics on hostile bytes,
// never reads beyond the slice that it was given, and checks each count and
// length against what is left before it sets memory aside for it.
package decode
