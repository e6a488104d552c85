// Package reconcile compares outbox tables with the streams that their events
// go to. [Rows] reads a table as the router needs it, byte for byte as the slot
// would have sent it; [Verify] sets rows against messages, by id and by order.
//
// Nothing here changes a table or a stream.
package reconcile
