// Command saga books trips over three services, seat, room and card, without a
// transaction that spans them: what cannot be finished is undone step by step.
//
//	go run ./examples/saga
//
// Three rules make it safe. Every step is one local transaction: the receipt of
// the event that asks for it, its effect, and the event that answers commit
// together. The step that nothing can undo comes last, when nothing can refuse
// after it. And a compensation never refuses: it is tried until it is done.
//
// Each event's first attempt fails here in a third of all cases, and in the end
// everything is delivered twice. The program starts servers of its own and
// removes them afterwards.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/outbox"
)

func main() {
	testenv.Main() // the sandbox needs it; a service does not
	if err := run(context.Background(), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "saga:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// In life each service has a database of its own. Here they share one and keep
// to their own tables.
var schema = []string{
	// The coordinator.
	`CREATE TABLE trip (id text PRIMARY KEY, state text NOT NULL)`,
	// The three services.
	`CREATE TABLE plane (city text PRIMARY KEY, free int NOT NULL CHECK (free >= 0))`,
	`CREATE TABLE seat (trip text PRIMARY KEY, city text NOT NULL)`,
	`CREATE TABLE hotel (city text PRIMARY KEY, free int NOT NULL CHECK (free >= 0))`,
	`CREATE TABLE room (trip text PRIMARY KEY, city text NOT NULL)`,
	`CREATE TABLE wallet (customer text PRIMARY KEY, cents bigint NOT NULL CHECK (cents >= 0))`,
	`CREATE TABLE charge (trip text PRIMARY KEY, cents bigint NOT NULL)`,
	// No seat to Bern, no room in Oslo, and Bob has no money.
	`INSERT INTO plane VALUES ('rome', 100), ('bern', 0), ('oslo', 100)`,
	`INSERT INTO hotel VALUES ('rome', 100), ('bern', 100), ('oslo', 0)`,
	`INSERT INTO wallet VALUES ('ann', 1000000), ('bob', 100)`,
}

const (
	trips  = 40
	cents  = 30000
	events = trips / 4 * (6 + 2 + 6 + 10) // of the four kinds of trips, in the order below
)

// begin starts a trip: its row, and the event that asks for the first step.
func begin(ctx context.Context, box *sandbox.Sandbox, n int) error {
	t := []Trip{
		{Customer: "ann", City: "rome", Cents: cents}, // booked
		{Customer: "ann", City: "bern", Cents: cents}, // refused by the first step: nothing to undo
		{Customer: "ann", City: "oslo", Cents: cents}, // refused by the second: the seat is given back
		{Customer: "bob", City: "rome", Cents: cents}, // refused by the last: room and seat are given back
	}[n%4]
	id := fmt.Sprintf("trip-%d", n)
	return pgx.BeginFunc(ctx, box.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO trip (id, state) VALUES ($1, $2)`, id, steps[0].do); err != nil {
			return err
		}
		return outbox.Append(ctx, tx, event(steps[0].do).New(id, t))
	})
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
	stop, err := startServices(ctx, box)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	say("%d trips are asked for; a quarter each can be booked, finds no seat, no room, no money.", trips)
	for n := range trips {
		if err := begin(ctx, box, n); err != nil {
			return err
		}
	}
	if err := check(ctx, box, say); err != nil {
		return err
	}
	if err := story(ctx, box, say); err != nil {
		return err
	}

	say("The broker forgets what was acknowledged and delivers all %d events again:", events)
	if err := stop(); err != nil {
		return err
	}
	if err := box.Redeliver(ctx, names...); err != nil {
		return err
	}
	stopAgain, err := startServices(ctx, box)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopAgain()) }()
	if err := check(ctx, box, say); err != nil {
		return err
	}
	say("The same: no step and no compensation was done twice.")
	return nil
}

// story prints the events of a trip that went all the way and back.
func story(ctx context.Context, box *sandbox.Sandbox, say func(string, ...any)) error {
	var told string
	if err := box.Pool.QueryRow(ctx, `SELECT string_agg(event_type, ' > ' ORDER BY id) FROM walrelay.outbox WHERE aggregate_id = 'trip-3'`).Scan(&told); err != nil {
		return fmt.Errorf("read the events of a trip: %w", err)
	}
	say("   trip-3: %s", told)
	return nil
}

// check waits for the end of all sagas and looks at every service's books.
func check(ctx context.Context, box *sandbox.Sandbox, say func(string, ...any)) error {
	if err := box.Settled(ctx, events, names...); err != nil {
		return err
	}
	const booked = trips / 4
	for _, want := range []struct {
		what  string
		n     int64
		query string
	}{
		{"trips booked", booked, `SELECT count(*) FROM trip WHERE state = 'booked'`},
		{"trips cancelled", trips - booked, `SELECT count(*) FROM trip WHERE state = 'cancelled'`},
		{"seats taken", booked, `SELECT count(*) FROM seat`},
		{"seats that planes lack", booked, `SELECT 200 - sum(free) FROM plane`},
		{"rooms taken", booked, `SELECT count(*) FROM room`},
		{"rooms that hotels lack", booked, `SELECT 200 - sum(free) FROM hotel`},
		{"cents charged", booked * cents, `SELECT sum(cents) FROM charge`},
		{"cents that wallets lack", booked * cents, `SELECT 1000100 - sum(cents) FROM wallet`},
		{"trips in between", 0, `SELECT count(*) FROM trip LEFT JOIN seat ON seat.trip = id LEFT JOIN room ON room.trip = id LEFT JOIN charge ON charge.trip = id
			WHERE (state = 'booked') <> (seat.trip IS NOT NULL) OR (state = 'booked') <> (room.trip IS NOT NULL) OR (state = 'booked') <> (charge.trip IS NOT NULL)`},
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
