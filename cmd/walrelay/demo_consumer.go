package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/inbox"
)

// demoConsumer is the name of both consumers, the right one and the other.
const demoConsumer = "charges"

// demoWait is short for the demo's sake: the time until messages and the place
// of a consumer that was killed are another's.
const demoWait = time.Second

// consume charges for each order.
func (c *demoPartCmd) consume(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, c.DatabaseURL)
	if err != nil {
		return fmt.Errorf("connect to the demo's database: %w", err)
	}
	defer pool.Close()
	nc, err := nats.Connect(c.NATS, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	if c.UntilEmpty {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		go func() {
			defer cancel()
			_ = until(ctx, "all is taken", c.empty(js)) // what it left is for the demo to count
		}()
	}
	if c.NoReceipt {
		return c.consumePlainly(ctx, pool, js)
	}
	consumer, err := inbox.New(inbox.Config{ //nolint:contextcheck // New bounds its look at the tables by itself
		Name: demoConsumer, DB: pool, JetStream: js, Stream: c.stream(), Order: inbox.PerAggregate, AckWait: demoWait, Lease: demoWait,
	})
	if err != nil {
		return err
	}
	inbox.On(consumer, "order.placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[orderPlaced]) error {
		return charge(ctx, tx, e.Data)
	})
	return consumer.Run(ctx)
}

func (c *demoPartCmd) stream() string { return strings.ToUpper(c.Source) }

// charge is the effect. It adds: done twice it is wrong.
func charge(ctx context.Context, tx pgx.Tx, order orderPlaced) error {
	_, err := tx.Exec(ctx, `INSERT INTO charge (order_id, customer, number) VALUES ($1, $2, $3)`, order.Order, order.Customer, order.Number)
	if err != nil {
		return fmt.Errorf("charge: %w", err)
	}
	return nil
}

// empty says whether everything was delivered and acknowledged.
func (c *demoPartCmd) empty(js jetstream.JetStream) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		consumer, err := js.Consumer(ctx, c.stream(), demoConsumer)
		if err != nil {
			return false, fmt.Errorf("look at the consumer: %w", err)
		}
		info := consumer.CachedInfo()
		return info.NumPending == 0 && info.NumAckPending == 0, nil
	}
}

// consumePlainly is what services do without receipts: apply, commit,
// acknowledge.
func (c *demoPartCmd) consumePlainly(ctx context.Context, pool *pgxpool.Pool, js jetstream.JetStream) error {
	consumer, err := js.CreateOrUpdateConsumer(ctx, c.stream(), jetstream.ConsumerConfig{
		Durable: demoConsumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: demoWait, MaxAckPending: 1, MaxDeliver: -1,
	})
	if err != nil {
		// An empty stream is done with before the reply is here.
		return errUnlessDone(ctx, fmt.Errorf("make the consumer: %w", err))
	}
	for ctx.Err() == nil {
		batch, err := consumer.Fetch(1, jetstream.FetchContext(ctx))
		if err != nil {
			return errUnlessDone(ctx, fmt.Errorf("fetch: %w", err))
		}
		for msg := range batch.Messages() {
			if err := apply(ctx, pool, msg); err != nil {
				return errUnlessDone(ctx, err)
			}
		}
	}
	return nil
}

// errUnlessDone drops the error of work that was told to stop.
func errUnlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

func apply(ctx context.Context, pool *pgxpool.Pool, msg jetstream.Msg) error {
	var order orderPlaced
	if err := json.Unmarshal(msg.Data(), &order); err != nil {
		return fmt.Errorf("read the event: %w", err)
	}
	if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return charge(ctx, tx, order) }); err != nil {
		return err
	}
	if err := msg.Ack(); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}
