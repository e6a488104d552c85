package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// demoPartCmd is one process of the demo. It is a process so that it can be
// killed.
type demoPartCmd struct {
	database `embed:""`
	broker   `embed:""`

	Part       string `arg:"" enum:"commit-first,publish-first,writer,consumer"`
	Seed       uint64 `default:"1"`
	Orders     int    `default:"1"`
	NoReceipt  bool
	UntilEmpty bool
}

// An orderPlaced is the demo's event.
type orderPlaced struct {
	Order    string `json:"order"`
	Customer int    `json:"customer"`
	Number   int    `json:"number"` // counts the customer's orders in the order of their commits
	Amount   int    `json:"amount"`
}

// Run plays the part.
func (c *demoPartCmd) Run(e *env) error {
	db, err := pgx.Connect(e.ctx, c.DatabaseURL)
	if err != nil {
		return fmt.Errorf("connect to the demo's database: %w", err)
	}
	defer db.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	switch c.Part {
	case "commit-first", "publish-first":
		return c.dualWrite(e.ctx, db)
	case "writer":
		return c.write(e.ctx, db)
	default:
		return c.consume(e.ctx, db)
	}
}

// dualWrite is what services do without an outbox. The process is killed
// between its two writes.
func (c *demoPartCmd) dualWrite(ctx context.Context, db *pgx.Conn) error {
	nc, err := nats.Connect(c.NATS)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	order := orderPlaced{Order: uuid.NewString(), Customer: 1, Number: 1, Amount: 10}
	body, err := json.Marshal(order)
	if err != nil {
		return fmt.Errorf("write the event: %w", err)
	}
	commit := func() error {
		_, err := db.Exec(ctx, `INSERT INTO orders VALUES ($1, $2, $3, $4)`, order.Order, order.Customer, order.Number, order.Amount)
		return err
	}
	publish := func() error {
		_, err := js.Publish(ctx, "outbox."+c.Source+".order.order.placed", body, jetstream.WithMsgID(order.Order))
		return err
	}
	first, second := commit, publish
	if c.Part == "publish-first" {
		first, second = publish, commit
	}
	if err := first(); err != nil {
		return fmt.Errorf("first write: %w", err)
	}
	if err := killSelf(); err != nil {
		return err
	}
	return second()
}

func killSelf() error {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill this process: %w", err)
	}
	select {} // the signal is on its way
}

// placeOrder writes an order and its event in one transaction. The customer's
// row lock makes numbers follow the order of commits.
func placeOrder(ctx context.Context, db *pgx.Conn, customer int) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing
	order := orderPlaced{Order: uuid.NewString(), Customer: customer, Amount: 10}
	err = tx.QueryRow(ctx, `UPDATE customer SET orders = orders + 1 WHERE id = $1 RETURNING orders`, customer).Scan(&order.Number)
	if err != nil {
		return fmt.Errorf("number the order: %w", err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1, $2, $3, $4)`, order.Order, customer, order.Number, order.Amount); err != nil {
		return fmt.Errorf("insert the order: %w", err)
	}
	body, err := json.Marshal(order)
	if err != nil {
		return fmt.Errorf("write the event: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload)
		VALUES ($1, 'customer', $2, 'order.placed', $3)`, order.Order, fmt.Sprint(customer), body)
	if err != nil {
		return fmt.Errorf("insert the event: %w", err)
	}
	return tx.Commit(ctx)
}

// write places orders of random customers, as one of several services at once.
func (c *demoPartCmd) write(ctx context.Context, db *pgx.Conn) error {
	random := rand.New(rand.NewPCG(c.Seed, 0)) //nolint:gosec // repeatable on purpose
	for range c.Orders {
		if err := placeOrder(ctx, db, 1+random.IntN(20)); err != nil {
			return err
		}
	}
	return nil
}

// consume charges for each order. With receipts the charge commits together
// with the proof that the event was applied.
func (c *demoPartCmd) consume(ctx context.Context, db *pgx.Conn) error {
	nc, err := nats.Connect(c.NATS, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	consumer, err := c.consumer(ctx, js)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		batch, err := consumer.Fetch(1, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			if !nc.IsConnected() { // the broker is restarted: the client comes back by itself
				continue
			}
			return fmt.Errorf("fetch: %w", err)
		}
		for msg := range batch.Messages() {
			if err := c.apply(ctx, db, msg); err != nil {
				return err
			}
		}
		if c.UntilEmpty {
			info, err := consumer.Info(ctx)
			if err == nil && info.NumPending == 0 && info.NumAckPending == 0 {
				return nil
			}
		}
	}
	return nil
}

// consumer keeps the order of events by taking one at a time.
func (c *demoPartCmd) consumer(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	var last error
	for range 50 {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		consumer, err := js.CreateOrUpdateConsumer(attempt, strings.ToUpper(c.Source), jetstream.ConsumerConfig{
			Durable: "charges", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second, MaxAckPending: 1, MaxDeliver: -1,
		})
		cancel()
		if err == nil {
			return consumer, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		last = err
	}
	return nil, fmt.Errorf("make the consumer: %w", last)
}

func (c *demoPartCmd) apply(ctx context.Context, db *pgx.Conn, msg jetstream.Msg) error {
	var order orderPlaced
	if err := json.Unmarshal(msg.Data(), &order); err != nil {
		return fmt.Errorf("read the event: %w", err)
	}
	meta, err := msg.Metadata()
	if err != nil {
		return fmt.Errorf("read the message's metadata: %w", err)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing
	if !c.NoReceipt {
		tag, err := tx.Exec(ctx, `INSERT INTO walrelay.receipt (consumer, event_id, stream, sequence) VALUES ('charges', $1, $2, $3)
			ON CONFLICT DO NOTHING`, msg.Headers().Get("Nats-Msg-Id"), meta.Stream, int64(meta.Sequence.Stream)) //nolint:gosec // a demo's stream is small
		if err != nil {
			return fmt.Errorf("insert the receipt: %w", err)
		}
		if tag.RowsAffected() == 0 { // applied before
			return ack(msg)
		}
	}
	_, err = tx.Exec(ctx, `INSERT INTO charge (order_id, customer, number) VALUES ($1, $2, $3)`, order.Order, order.Customer, order.Number)
	if err != nil {
		return fmt.Errorf("charge: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit the charge: %w", err)
	}
	return ack(msg)
}

// ack may fail while the broker is away: the message comes again then, and the
// receipt makes it harmless.
func ack(msg jetstream.Msg) error {
	if err := msg.Ack(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrReconnectBufExceeded) {
		return fmt.Errorf("ack: %w", err)
	}
	return nil
}
