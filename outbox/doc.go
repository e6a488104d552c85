// Package outbox writes events inside a service's own transaction, from where
// the relay publishes them once that transaction has committed, and never if it
// has not.
//
//	tx, err := pool.Begin(ctx)
//	// ... change orders ...
//	err = outbox.Append(ctx, tx, outbox.Event{
//		AggregateType: "order", AggregateID: "42", Type: "order.placed",
//		Payload: OrderPlaced{Amount: 1999},
//	})
//	// ... and commit as always
//
// [Append] is for pgx, [AppendSQL] for database/sql; a [Table] is for an outbox
// of another name, and [Type] ties an event type to a Go type. All take a
// transaction and nothing else: an event that is written outside of the
// transaction of its change is the mistake that an outbox is there to prevent.
//
// # What is checked
//
// Whatever the relay would refuse is refused here, before a byte goes to the
// server and while the writer can still do something about it: an
// [*InvalidError] names all problems of all events at once, each with its field
// and the fix, never with a value of yours. What only the relay knows stays its
// business: routes, and limits of the broker other than the default ones.
//
// An error of the server, as always in PostgreSQL, leaves the transaction fit
// for nothing but a rollback. An [*InvalidError] does not.
//
// # Identity
//
// An event's id is made here as a UUID of version 7, unless the event brings
// one. The insert has no ON CONFLICT: an id that is there already is an error,
// since an event does not change, and an insert that silently did nothing would
// be a lost event. Where the same event may be appended twice, find that out by
// your own data (an order that is already placed) and not by its id.
//
// # Order
//
// Events of one call, and of one transaction, keep their order. Between
// transactions the order is that of the commits: two transactions that change
// the same aggregate must exclude each other, which they do when each locks the
// aggregate's row before it appends. Otherwise the events come in the order of
// the commits, which need not be the order of the changes.
//
// # Headers
//
// The trace context of OpenTelemetry in ctx goes along as traceparent and
// tracestate. In a handler of package inbox, [HeaderCausationID] and
// [HeaderCorrelationID] are set from the event that is being handled;
// [WithCorrelation] begins a correlation elsewhere, such as in an HTTP handler.
// What the event itself says always wins.
package outbox
