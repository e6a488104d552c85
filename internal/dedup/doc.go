// Package dedup answers "seen before?" for the relay: which of the events that
// the slot sends again does the stream hold already. It is pure.
//
// PostgreSQL may send again what was confirmed, and JetStream's duplicate
// window is only a window. So the stream itself is asked: its last message is
// the mark, and everything up to the mark is passed over, but only if the mark
// is really met on the way. Where events stand in no order ([Seen]), each that
// the stream holds must be met.
package dedup
