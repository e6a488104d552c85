package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/migrations"
)

// OrderPlaced is the payload of an event.
type OrderPlaced struct {
	Amount    int    `json:"amount"`
	AccountID string `json:"account_id"`
}

// servers starts what an example needs: a database with walrelay's tables, an
// account, and a stream with one event that was stored twice.
func servers(ctx context.Context) (pool *pgxpool.Pool, js jetstream.JetStream, stop func(), err error) {
	env, err := testenv.New()
	if err != nil {
		return nil, nil, nil, err
	}
	var nc *nats.Conn
	var broker *testenv.EmbeddedNATS
	stop = func() {
		if nc != nil {
			nc.Close()
		}
		if pool != nil {
			pool.Close()
		}
		if broker != nil {
			broker.Close()
		}
		_ = env.Close()
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	pg, err := env.StartPostgres(ctx, testenv.PGConfig{})
	if err != nil {
		return nil, nil, nil, err
	}
	if broker, err = env.StartEmbeddedNATS(testenv.NATSConfig{}); err != nil {
		return nil, nil, nil, err
	}
	if pool, err = pgxpool.New(ctx, pg.URL("postgres")); err != nil {
		return nil, nil, nil, err
	}
	if err = migrations.Consumer(ctx, pool.Config().ConnConfig, migrations.Config{}, nil); err != nil {
		return nil, nil, nil, err
	}
	if _, err = pool.Exec(ctx, `CREATE TABLE account (id text PRIMARY KEY, owed int); INSERT INTO account VALUES ('ann', 0)`); err != nil {
		return nil, nil, nil, err
	}
	if nc, err = nats.Connect(broker.URL()); err != nil {
		return nil, nil, nil, err
	}
	if js, err = jetstream.New(nc); err != nil {
		return nil, nil, nil, err
	}
	if _, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"outbox.shop.>"}, MaxAge: 24 * time.Hour}); err != nil {
		return nil, nil, nil, err
	}
	placed := event("0191e2c4-6a5e-7c3d-9f00-2b6f6d3b1a77", "o-1", 1)
	placed.Data = []byte(`{"amount": 30, "account_id": "ann"}`)
	for _, m := range []*nats.Msg{placed, again(placed)} {
		if _, err = js.PublishMsg(ctx, m); err != nil {
			return nil, nil, nil, err
		}
	}
	return pool, js, stop, nil
}

// owed shows what is in the account.
func owed(ctx context.Context, pool *pgxpool.Pool) {
	var n int
	if err := pool.QueryRow(ctx, `SELECT owed FROM account`).Scan(&n); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ann owes", n)
}

// A consumer that adds what an order costs to an account, once for each order
// however often its event comes.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, js, stop, err := servers(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer stop()

	consumer, err := inbox.New(inbox.Config{
		Name: "billing", DB: pool, JetStream: js,
		Stream: "SHOP", Subjects: []string{"outbox.shop.order.>"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	inbox.On(consumer, "placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[OrderPlaced]) error {
		_, err := tx.Exec(ctx, `UPDATE account SET owed = owed + $1 WHERE id = $2`, e.Data.Amount, e.Data.AccountID)
		return err
	})

	run, end := context.WithCancel(ctx) // ends when both deliveries are done
	defer end()
	go func() {
		defer end()
		for s := consumer.Status(); s.Applied+s.Duplicates < 2 && run.Err() == nil; s = consumer.Status() {
			select {
			case <-run.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	if err := consumer.Run(run); err != nil {
		fmt.Println(err)
		return
	}
	s := consumer.Status()
	fmt.Println("applied:", s.Applied, "duplicates:", s.Duplicates)
	owed(ctx, pool)
	// Output:
	// applied: 1 duplicates: 1
	// ann owes 30
}

// Apply takes an event that came in another way, under the same receipt.
func ExampleConsumer_Apply() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, _, stop, err := servers(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer stop()
	consumer, err := inbox.New(inbox.Config{Name: "billing", DB: pool})
	if err != nil {
		fmt.Println(err)
		return
	}
	inbox.On(consumer, "placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[OrderPlaced]) error {
		_, err := tx.Exec(ctx, `UPDATE account SET owed = owed + $1 WHERE id = $2`, e.Data.Amount, e.Data.AccountID)
		return err
	})
	for range 2 {
		outcome, err := consumer.Apply(ctx, inbox.Message{ID: "order-17", Type: "placed", Raw: []byte(`{"amount": 5, "account_id": "ann"}`)})
		fmt.Println(outcome, err)
	}
	owed(ctx, pool)
	// Output:
	// applied <nil>
	// duplicate <nil>
	// ann owes 5
}

// A middleware runs inside the transaction of every handler.
func ExampleConsumer_Use() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, _, stop, err := servers(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer stop()
	consumer, err := inbox.New(inbox.Config{Name: "billing", DB: pool})
	if err != nil {
		fmt.Println(err)
		return
	}
	consumer.Use(func(next inbox.Handler) inbox.Handler {
		return func(ctx context.Context, tx inbox.Tx, m *inbox.Message) error {
			fmt.Println("before", m.Type)
			return next(ctx, tx, m)
		}
	})
	inbox.On(consumer, "placed", func(_ context.Context, _ pgx.Tx, e inbox.Event[OrderPlaced]) error {
		fmt.Println("amount", e.Data.Amount)
		return nil
	})
	_, err = consumer.Apply(ctx, inbox.Message{ID: "order-18", Type: "placed", Raw: []byte(`{"amount": 5}`)})
	fmt.Println(err)
	// Output:
	// before placed
	// amount 5
	// <nil>
}

// An event that no attempt can mend goes into the dead letters at once.
func ExamplePermanent() {
	err := inbox.Permanent(errors.New("the order has no lines"))
	fmt.Println(err)
	// Output: the order has no lines
}

// Where it is known when to try again, the backoff is not needed.
func ExampleRetryAfter() {
	err := inbox.RetryAfter(time.Minute, errors.New("the account is locked until the audit ends"))
	fmt.Println(err)
	// Output: the account is locked until the audit ends
}

// Versions compare as text, in Go and in SQL.
func ExampleMessage_Version() {
	var older, newer inbox.Message
	older.Position.Epoch, older.Position.Commit = 1, 0xFFFF
	newer.Position.Epoch, newer.Position.Commit = 1, 0x10000
	fmt.Println(older.Version())
	fmt.Println(newer.Version())
	fmt.Println(older.Version() < newer.Version())
	// Output:
	// 00000001000000000000ffff0000000000000000
	// 0000000100000000000100000000000000000000
	// true
}
