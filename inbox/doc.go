// Package inbox applies the events of a JetStream stream to a PostgreSQL
// database, each exactly once.
//
// JetStream delivers at least once: a message comes again after a crash, a lost
// acknowledgement, a replay. What makes the effect happen once is a receipt, a
// row keyed by consumer and event id, that commits together with the effect:
//
//	consumer, err := inbox.New(inbox.Config{
//		Name: "billing", DB: pool, JetStream: js,
//		Stream: "SHOP", Subjects: []string{"outbox.shop.order.>"},
//	})
//	if err != nil {
//		return err
//	}
//	inbox.On(consumer, "order.placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[OrderPlaced]) error {
//		_, err := tx.Exec(ctx, `UPDATE account SET owed = owed + $1 WHERE id = $2`, e.Data.Amount, e.Data.AccountID)
//		return err
//	})
//	return consumer.Run(ctx)
//
// The order of things is fixed and not in a handler's reach: begin, receipt,
// effect, commit, acknowledge. A commit whose outcome is not known is settled
// by the receipt when the message comes again.
//
// # What is an effect
//
// Everything written through tx. A handler may run more often than it commits:
// what it does elsewhere, such as a mail or a call of somebody's API, is done
// again with each attempt, and belongs into package idempotency. An event that
// a handler publishes goes through outbox.Append with the same tx and ctx.
//
// An effect that only sets what the event says, and takes the newest, needs no
// receipt to be right: see [Message.Version]. It gets one all the same.
//
// # Failures
//
// A handler's error, or its panic, rolls back and counts an attempt. The next
// one comes after a backoff; after Config.MaxAttempts, or at once with
// [Permanent], the event goes into the table consumer_dead_letter, and only
// when that is committed is the message terminated. `walrelay deadletters
// --consumer NAME requeue` asks for another try, which the running service
// makes within Config.CheckInterval. Conflicts between transactions are
// repeated at once, and a database that is away is waited for; neither counts.
//
// # Order
//
// By default events are applied as they come, by any number of processes. With
// [PerAggregate], those of one aggregate are applied in the order of the
// stream, also across failures, restarts and processes.
//
// # Tables
//
// `walrelay migrate --consumer` makes them in the consumer's own database.
// Receipts are deleted after Config.ReceiptRetention: that is how long an event
// is recognised.
package inbox
