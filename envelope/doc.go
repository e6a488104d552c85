// Package envelope is walrelay's wire contract: the header names of a message,
// its id, and the position that orders events of one source.
//
// It is a leaf that imports only the standard library, so that a consumer in
// another module can read walrelay's messages without inheriting the relay.
// docs/message.md describes the same contract for other languages.
package envelope
