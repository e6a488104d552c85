// Package examples holds a program for each way of using walrelay from a
// service. Every folder is a program of its own that starts throw-away servers,
// explains itself, and ends:
//
//	go run ./examples/orders
//
// docs/consumers.md says which is for what.
package examples
