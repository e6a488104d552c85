// Package walrelaytest helps services to test their use of walrelay: what a
// transaction appended to the outbox, and that a handler's effect happens once
// however often its event is delivered.
//
// Its helpers take a *testing.T, or what has its methods, and belong in test
// files only. They need a PostgreSQL server with walrelay's tables, and no
// relay and no broker.
package walrelaytest
