package main

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/outbox"
)

// Names of the consumers.
const (
	warehouse = "warehouse"
	billing   = "billing"
)

func config(box *sandbox.Sandbox, name string) inbox.Config {
	return inbox.Config{
		Name: name, DB: box.Pool, JetStream: box.JetStream,
		Stream: sandbox.Stream, Subjects: []string{"outbox." + sandbox.Source + ".order.>"},
	}
}

// newWarehouse reserves stock and tells the outcome. All three commit together:
// that the event was handled, the stock, and the event that follows from it.
func newWarehouse(box *sandbox.Sandbox) (*inbox.Consumer, error) {
	consumer, err := inbox.New(config(box, warehouse))
	if err != nil {
		return nil, err
	}
	inbox.On(consumer, placed.Name(), func(ctx context.Context, tx pgx.Tx, e inbox.Event[Order]) error {
		// One statement decides and takes: two orders cannot have the last lamp.
		tag, err := tx.Exec(ctx, `UPDATE stock SET free = free - 1 WHERE sku = $1 AND free > 0`, e.Data.SKU)
		if err != nil {
			return err
		}
		answer := reserved
		if tag.RowsAffected() == 0 {
			// Having none left is an answer, not an error: trying again
			// would not make more lamps.
			answer = refused
		}
		return outbox.Append(ctx, tx, answer.New(e.AggregateID, e.Data))
	})
	return consumer, nil
}

// newBilling adds to what a customer owes. An addition needs its receipt.
func newBilling(box *sandbox.Sandbox) (*inbox.Consumer, error) {
	consumer, err := inbox.New(config(box, billing))
	if err != nil {
		return nil, err
	}
	inbox.On(consumer, reserved.Name(), func(ctx context.Context, tx pgx.Tx, e inbox.Event[Order]) error {
		_, err := tx.Exec(ctx, `INSERT INTO account AS a VALUES ($1, $2)
			ON CONFLICT (customer) DO UPDATE SET owed_cents = a.owed_cents + excluded.owed_cents`, e.Data.Customer, e.Data.Cents)
		return err
	})
	return consumer, nil
}

// startConsumers runs both until the returned function is called; once more
// does nothing.
func startConsumers(ctx context.Context, box *sandbox.Sandbox) (stop func() error, err error) {
	first, err := newWarehouse(box) //nolint:contextcheck // inbox.New bounds its look at the tables by itself
	if err != nil {
		return nil, err
	}
	second, err := newBilling(box) //nolint:contextcheck // as above
	if err != nil {
		return nil, err
	}
	stopFirst, stopSecond := sandbox.Background(ctx, first.Run), sandbox.Background(ctx, second.Run)
	return sync.OnceValue(func() error { return errors.Join(stopFirst(), stopSecond()) }), nil
}
