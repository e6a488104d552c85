// Command node runs a consumer that is written in TypeScript, kills it, lets
// everything be delivered again, and counts: each event was applied once.
//
//	go run ./examples/node
//
// The consumer is consumer.ts, with the official clients of NATS and
// PostgreSQL; its receipts come from walrelay's SQL function. It needs Node 18
// or newer and npm, which installs the clients and the compiler into a temporary
// folder. The program starts servers of its own and removes them afterwards.
package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/outbox"
)

//go:embed consumer.ts tsconfig.json package.json package-lock.json .npmrc
var program embed.FS

//go:embed schema.sql
var schema string

// oldestNode is the oldest major version of Node that the clients run on.
const oldestNode = 18

func main() {
	testenv.Main() // the sandbox needs it; a service does not
	if err := run(context.Background(), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// An Order is the event's payload.
type Order struct {
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

var placed = outbox.Type[Order]("order", "order.placed")

const (
	orders   = 300
	later    = 10        // orders that come while their table is away
	consumer = "loyalty" // as in consumer.ts
)

func run(ctx context.Context, out io.Writer) (err error) {
	if err := needNode(ctx); err != nil {
		return err
	}
	box, err := sandbox.Open(ctx, schema)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	if err := box.StartRelay(ctx); err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }

	say("1. npm installs the clients of NATS and PostgreSQL into a temporary folder, and compiles the consumer.")
	n := &nodeConsumer{box: box, dir: filepath.Join(box.Dir(), "node"), out: out}
	defer n.kill()
	if err := n.install(ctx); err != nil {
		return err
	}
	say("2. A service places %d orders; a consumer in TypeScript counts points for them.", orders)
	if err := place(ctx, box, orders); err != nil {
		return err
	}
	if err := n.start(); err != nil {
		return err
	}
	say("3. kill -9 of the consumer in the middle; another one is started.")
	if err := sandbox.Until(ctx, func() error {
		receipts, err := box.Number(ctx, `SELECT count(*) FROM walrelay.receipt`)
		if err == nil && receipts < orders/10 {
			err = fmt.Errorf("%d receipts, want some", receipts)
		}
		return err
	}); err != nil {
		return err
	}
	n.kill()
	// What the dead one had in hand comes again, without the ack wait's 30 s.
	if err := box.Redeliver(ctx, consumer); err != nil {
		return err
	}
	if err := n.start(); err != nil {
		return err
	}
	if err := check(ctx, box, orders, say); err != nil {
		return err
	}
	say("4. Its table is away for a while: attempts fail, and are made again later.")
	if err := outage(ctx, box); err != nil {
		return err
	}
	if err := check(ctx, box, orders+later, say); err != nil {
		return err
	}
	say("5. It is stopped; the broker forgets what was acknowledged and delivers everything again.")
	if err := n.stop(); err != nil {
		return err
	}
	if err := box.Redeliver(ctx, consumer); err != nil {
		return err
	}
	if err := n.start(); err != nil {
		return err
	}
	if err := check(ctx, box, orders+later, say); err != nil {
		return err
	}
	say("The same points: the receipts said that everything was done.")
	return n.stop()
}

// needNode says what is missing on a machine that cannot run the consumer.
func needNode(ctx context.Context) error {
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%s is not installed: `make deps` installs it as root on Debian; elsewhere install Node %d or newer with npm", name, oldestNode)
		}
	}
	text, err := exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return fmt.Errorf("ask Node for its version: %w", err)
	}
	version := strings.TrimSpace(string(text)) // v20.20.2
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestNode {
		return fmt.Errorf("node in PATH is of version %s: install Node %d or newer with npm", version, oldestNode)
	}
	return nil
}

func place(ctx context.Context, box *sandbox.Sandbox, n int) error {
	for i := range n {
		order := placed.New(fmt.Sprint(i), Order{Customer: []string{"ann", "bob", "eve"}[i%3], Cents: 100 * int64(1+i%7)})
		if err := pgx.BeginFunc(ctx, box.Pool, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, order) }); err != nil {
			return err
		}
	}
	return nil
}

// outage takes the consumer's table away until attempts have failed.
func outage(ctx context.Context, box *sandbox.Sandbox) error {
	if _, err := box.Pool.Exec(ctx, `ALTER TABLE loyalty RENAME TO loyalty_away`); err != nil {
		return err
	}
	if err := place(ctx, box, later); err != nil {
		return err
	}
	if err := sandbox.Until(ctx, func() error {
		c, err := box.JetStream.Consumer(ctx, sandbox.Stream, consumer)
		if err == nil && c.CachedInfo().NumRedelivered == 0 {
			err = errors.New("no message was delivered again")
		}
		return err
	}); err != nil {
		return err
	}
	_, err := box.Pool.Exec(ctx, `ALTER TABLE loyalty_away RENAME TO loyalty`)
	return err
}

// check waits until everything was delivered and acknowledged, and compares the
// points with the events.
func check(ctx context.Context, box *sandbox.Sandbox, n uint64, say func(string, ...any)) error {
	if err := box.Settled(ctx, n, consumer); err != nil {
		return err
	}
	for _, c := range []struct{ what, got, want string }{
		{"events applied", `SELECT count(*) FROM walrelay.receipt WHERE consumer = 'loyalty'`, `SELECT count(*) FROM walrelay.outbox`},
		{"points", `SELECT sum(points) FROM loyalty`, `SELECT sum((payload->>'cents')::bigint / 100) FROM walrelay.outbox`},
	} {
		got, err := box.Number(ctx, c.got)
		if err != nil {
			return err
		}
		want, err := box.Number(ctx, c.want)
		if err != nil {
			return err
		}
		say("   %-20s %6d, by the outbox %6d", c.what, got, want)
		if got != want {
			return fmt.Errorf("%s: %d, want %d", c.what, got, want)
		}
	}
	return nil
}
