// Package deadletter keeps the durable record of events that can never be
// delivered. A record is committed before any later event is sent to the same
// stream, so that a stream's mark says of everything below it: stored, or
// recorded here. Nothing is deleted automatically.
package deadletter
