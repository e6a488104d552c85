package router

import "unsafe"

// text gives b as a string without copying it, so that an event allocates
// nothing. The string changes when b does: the strings of a [Routed] live in
// the row and in the Router's buffer, and both are good until the next row.
func text(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b)) //nolint:gosec // the lifetime is the contract of Route
}
