package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/outbox"
)

// names of the consumers: one a service.
var names = []string{"trips", "airline", "hotels", "cards"}

// startServices runs the coordinator and the three services until the returned
// function is called; once more does nothing.
func startServices(ctx context.Context, box *sandbox.Sandbox) (stop func() error, err error) {
	var stops []func() error
	stop = sync.OnceValue(func() error {
		var errs []error
		for _, stop := range stops {
			errs = append(errs, stop())
		}
		return errors.Join(errs...)
	})
	for i, register := range []func(*inbox.Consumer){coordinate, airline, hotels, cards} {
		consumer, err := inbox.New(inbox.Config{ //nolint:contextcheck // New bounds its look at the tables by itself
			Name: names[i], DB: box.Pool, JetStream: box.JetStream,
			Stream: sandbox.Stream, Subjects: []string{"outbox." + sandbox.Source + ".trip.>"},
			Concurrency: 2, MinBackoff: 20 * time.Millisecond,
		})
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		consumer.Use(flaky())
		register(consumer)
		stops = append(stops, sandbox.Background(ctx, consumer.Run))
	}
	return stop, nil
}

// flaky lets the first attempt of every third event fail after its work is
// done, as a lost connection would: effect, answer and receipt are rolled back
// together.
func flaky() inbox.Middleware {
	var mu sync.Mutex
	seen := map[string]bool{}
	return func(next inbox.Handler) inbox.Handler {
		return func(ctx context.Context, tx inbox.Tx, m *inbox.Message) error {
			if err := next(ctx, tx, m); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			first := !seen[m.ID]
			seen[m.ID] = true
			if first && m.Sequence%3 == 0 {
				return errors.New("a failure, for the example's sake")
			}
			return nil
		}
	}
}

func airline(c *inbox.Consumer) {
	reserve(c, steps[0], `UPDATE plane SET free = free - 1 WHERE city = $1 AND free > 0`, `INSERT INTO seat (trip, city) VALUES ($1, $2)`)
	release(c, steps[0], `DELETE FROM seat WHERE trip = $1`, `UPDATE plane SET free = free + 1 WHERE city = $1`)
}

func hotels(c *inbox.Consumer) {
	reserve(c, steps[1], `UPDATE hotel SET free = free - 1 WHERE city = $1 AND free > 0`, `INSERT INTO room (trip, city) VALUES ($1, $2)`)
	release(c, steps[1], `DELETE FROM room WHERE trip = $1`, `UPDATE hotel SET free = free + 1 WHERE city = $1`)
}

// cards takes the money. Here that is a transaction of our own; with a provider
// the call goes through package idempotency, see examples/payment.
func cards(c *inbox.Consumer) {
	s := steps[2]
	inbox.On(c, s.do, func(ctx context.Context, tx pgx.Tx, e inbox.Event[Trip]) error {
		tag, err := tx.Exec(ctx, `UPDATE wallet SET cents = cents - $1 WHERE customer = $2 AND cents >= $1`, e.Data.Cents, e.Data.Customer)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return outbox.Append(ctx, tx, event(s.refused).New(e.AggregateID, e.Data))
		}
		if _, err := tx.Exec(ctx, `INSERT INTO charge (trip, cents) VALUES ($1, $2)`, e.AggregateID, e.Data.Cents); err != nil {
			return err
		}
		return outbox.Append(ctx, tx, event(s.done).New(e.AggregateID, e.Data))
	})
}

// reserve does a step, or refuses it. A refusal is an answer and commits; an
// error is trouble, and is tried again.
func reserve(c *inbox.Consumer, s step, take, keep string) {
	inbox.On(c, s.do, func(ctx context.Context, tx pgx.Tx, e inbox.Event[Trip]) error {
		tag, err := tx.Exec(ctx, take, e.Data.City)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return outbox.Append(ctx, tx, event(s.refused).New(e.AggregateID, e.Data))
		}
		if _, err := tx.Exec(ctx, keep, e.AggregateID, e.Data.City); err != nil {
			return err
		}
		return outbox.Append(ctx, tx, event(s.done).New(e.AggregateID, e.Data))
	})
}

// release undoes a step. It has no refusal: nobody would know what to do with
// one. Should it fail for good all the same, it becomes a dead letter, and
// `walrelay deadletters --consumer` finishes the saga when the cause is mended.
func release(c *inbox.Consumer, s step, drop, give string) {
	inbox.On(c, s.undo, func(ctx context.Context, tx pgx.Tx, e inbox.Event[Trip]) error {
		tag, err := tx.Exec(ctx, drop, e.AggregateID)
		if err != nil {
			return err
		}
		if tag.RowsAffected() > 0 { // else there is nothing to give back, which is just as well
			if _, err := tx.Exec(ctx, give, e.Data.City); err != nil {
				return err
			}
		}
		return outbox.Append(ctx, tx, event(s.undone).New(e.AggregateID, e.Data))
	})
}
