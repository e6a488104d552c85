package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"

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
		return c.consume(e.ctx)
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
