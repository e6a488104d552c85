package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/migrations"
	"github.com/walrelay/walrelay/outbox"
)

// OrderPlaced is the payload of the examples.
type OrderPlaced struct {
	Amount int `json:"amount"`
}

// A change and its event commit together, or neither does.
func ExampleAppend() {
	ctx := context.Background()
	conn, stop, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id, amount) VALUES ('42', 1999)`); err != nil {
			return err
		}
		return outbox.Append(ctx, tx, outbox.Event{
			AggregateType: "order",
			AggregateID:   "42",
			Type:          "order.placed",
			Payload:       OrderPlaced{Amount: 1999},
		})
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var event, payload string
	err = conn.QueryRow(ctx, `SELECT event_type, payload FROM walrelay.outbox`).Scan(&event, &payload)
	fmt.Println(event, payload, err)
	// Output: order.placed {"amount": 1999} <nil>
}

// With database/sql the call has another name, and all else is the same.
func ExampleAppendSQL() {
	ctx := context.Background()
	conn, stop, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	db, err := sql.Open("pgx", conn.Config().ConnString())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = outbox.AppendSQL(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: "42", Type: "order.placed"})
	fmt.Println(errors.Join(err, tx.Commit()))
	// Output: <nil>
}

// Mistakes are all named before anything is sent.
func ExampleInvalidError() {
	ctx := context.Background()
	conn, stop, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return outbox.Append(ctx, tx, outbox.Event{
			AggregateType: "order", Type: "order.placed", Headers: map[string]string{"Nats-Rollup": "all"},
		})
	})
	if invalid, ok := errors.AsType[*outbox.InvalidError](err); ok {
		for _, p := range invalid.Problems {
			fmt.Println(p)
		}
	}
	// Output:
	// event 0 ("order.placed"): AggregateID is empty; set it
	// event 0 ("order.placed"): Headers["Nats-Rollup"] is reserved for the broker and the relay (Nats-*, Walrelay-*, Status, Description); use another name
}

// One declaration serves every place that writes the event.
func ExampleType() {
	placed := outbox.Type[OrderPlaced]("order", "order.placed")

	event := placed.New("42", OrderPlaced{Amount: 1999}).WithHeader("Tenant", "shop")
	fmt.Println(event.AggregateType, event.AggregateID, event.Type, event.Payload, event.Headers)
	// Output: order 42 order.placed {1999} map[Tenant:shop]
}

// An outbox of another name, whose payload is not JSON.
func ExampleTable() {
	shop := outbox.Table{Schema: "shop", Name: "events", Payload: outbox.PayloadBytes}

	// In a transaction: shop.Append(ctx, tx, event)
	fmt.Println(shop)
	// Output: shop.events
}

// Events of one request share its id; each handler that appends keeps it.
func ExampleWithCorrelation() {
	ctx := outbox.WithCorrelation(context.Background(), "request-7")

	// outbox.Append(ctx, tx, event) now adds:
	fmt.Println(outbox.HeaderCorrelationID, ctx.Err())
	// Output: Correlation-Id <nil>
}

// connect gives a connection to a throw-away server with walrelay's outbox and
// a table of orders.
func connect(ctx context.Context) (*pgx.Conn, func(), error) {
	env, err := testenv.New()
	if err != nil {
		return nil, nil, err
	}
	conn, err := start(ctx, env)
	if err != nil {
		return nil, nil, errors.Join(err, env.Close())
	}
	return conn, func() {
		if err := errors.Join(conn.Close(ctx), env.Close()); err != nil {
			fmt.Println(err)
		}
	}, nil
}

func start(ctx context.Context, env *testenv.Env) (*pgx.Conn, error) {
	server, err := env.StartPostgres(ctx, testenv.PGConfig{})
	if err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(server.URL("postgres"))
	if err != nil {
		return nil, err
	}
	if err := migrations.Apply(ctx, cfg, migrations.Config{SchemaOnly: true}, nil); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, `CREATE TABLE orders (id text PRIMARY KEY, amount int NOT NULL)`)
	return conn, err
}
