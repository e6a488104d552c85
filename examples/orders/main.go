// Command orders takes orders over HTTP and lets two other services act on
// them: the warehouse reserves stock and says so with an event of its own, and
// billing charges what was reserved.
//
//	go run ./examples/orders
//
// Every arrow is a local transaction: service -> outbox -> relay -> stream ->
// receipt and effect. Requests are repeated, and in the end the broker delivers
// everything once more; nothing happens twice.
//
// The program starts servers of its own and removes them afterwards.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
	"github.com/walrelay/walrelay/internal/testenv"
)

func main() {
	testenv.Main() // the sandbox needs it; a service does not
	if err := run(context.Background(), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// In life each service has a database of its own, with walrelay's tables for
// consumers in it. Here they share one and keep to their own tables.
var schema = []string{
	// The order service.
	`CREATE TABLE orders (id text PRIMARY KEY, customer text NOT NULL, sku text NOT NULL, cents bigint NOT NULL)`,
	// The warehouse. There are 12 lamps, and 15 will be ordered.
	`CREATE TABLE stock (sku text PRIMARY KEY, free int NOT NULL CHECK (free >= 0))`,
	`INSERT INTO stock VALUES ('chair', 100), ('lamp', 12)`,
	// Billing.
	`CREATE TABLE account (customer text PRIMARY KEY, owed_cents bigint NOT NULL DEFAULT 0)`,
}

func run(ctx context.Context, out io.Writer) (err error) {
	box, err := sandbox.Open(ctx, schema...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	if err := box.StartRelay(ctx); err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }

	stop, err := startConsumers(ctx, box)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	server := httptest.NewServer(orderService{pool: box.Pool})
	defer server.Close()
	say("1. Thirty orders are placed over HTTP, each by two requests at once: clients try again.")
	c := client{url: server.URL, http: server.Client()}
	if err := c.placeAll(ctx); err != nil {
		return err
	}
	say("   A request that asks for something else under the same id gets 409, a bad one 400.")
	if err := c.mistakes(ctx); err != nil {
		return err
	}

	say("2. The relay publishes, the warehouse reserves and appends an event in the same transaction, billing charges.")
	if err := check(ctx, box, say); err != nil {
		return err
	}
	if err := chain(ctx, box, say); err != nil {
		return err
	}

	say("3. The broker forgets what was acknowledged and delivers all sixty messages again.")
	if err := stop(); err != nil {
		return err
	}
	if err := box.Redeliver(ctx, warehouse, billing); err != nil {
		return err
	}
	stopAgain, err := startConsumers(ctx, box)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopAgain()) }()
	if err := check(ctx, box, say); err != nil {
		return err
	}
	say("The same numbers: the receipts said that everything was done.")
	return nil
}

// check waits until everything was delivered and acknowledged, and compares.
func check(ctx context.Context, box *sandbox.Sandbox, say func(string, ...any)) error {
	// Thirty orders, and an answer of the warehouse to each.
	if err := box.Settled(ctx, 60, warehouse, billing); err != nil {
		return err
	}
	for _, want := range []struct {
		what  string
		n     int64
		query string
	}{
		{"orders", 30, `SELECT count(*) FROM orders`},
		{"events in the outbox", 60, `SELECT count(*) FROM walrelay.outbox`},
		{"orders that were reserved", 27, `SELECT count(*) FROM walrelay.outbox WHERE event_type = 'order.reserved'`},
		{"orders that were refused", 3, `SELECT count(*) FROM walrelay.outbox WHERE event_type = 'order.refused'`},
		{"chairs left", 85, `SELECT free FROM stock WHERE sku = 'chair'`},
		{"lamps left", 0, `SELECT free FROM stock WHERE sku = 'lamp'`},
		{"cents owed in all", 15*chairCents + 12*lampCents, `SELECT sum(owed_cents) FROM account`},
	} {
		got, err := box.Number(ctx, want.query)
		if err != nil {
			return err
		}
		say("   %-28s %8d", want.what, got)
		if got != want.n {
			return fmt.Errorf("%s: %d, want %d", want.what, got, want.n)
		}
	}
	return nil
}

// chain shows that the second event knows the first.
func chain(ctx context.Context, box *sandbox.Sandbox, say func(string, ...any)) error {
	n, err := box.Number(ctx, `SELECT count(*) FROM walrelay.outbox AS answer JOIN walrelay.outbox AS cause
		ON cause.id::text = answer.headers->>'Causation-Id' AND cause.aggregate_id = answer.aggregate_id
		AND cause.headers->>'Correlation-Id' = answer.headers->>'Correlation-Id'`)
	if err != nil {
		return err
	}
	say("   %-28s %8d", "answers that name their cause", n)
	if n != 30 {
		return fmt.Errorf("%d answers name their cause, want 30", n)
	}
	return nil
}
