package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walrelay/walrelay/idempotency"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/migrations"
)

// A provider that honours keys: a repeat calls nobody, and a crash in between
// leads to a second call with the same key.
func ExampleStore_Do() {
	ctx := context.Background()
	pool, stop, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	store, err := idempotency.New(ctx, pool, idempotency.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		result, err := store.Do(ctx, idempotency.Key("charge", "order 42"), idempotency.Options{
			KeyHonouredFor: 24 * time.Hour,
		}, func(_ context.Context, call idempotency.Call) ([]byte, error) {
			fmt.Println("the provider is called with", call.Key)
			return []byte("ch_1"), nil
		})
		fmt.Printf("%s %t %v\n", result.Value, result.Replayed, err)
	}
	// Output:
	// the provider is called with charge:order%2042
	// ch_1 false <nil>
	// ch_1 true <nil>
}

// A provider that neither honours keys nor can be asked: a time-out stays
// uncertain until somebody has found out.
func ExampleStore_Resolve() {
	ctx := context.Background()
	pool, stop, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	store, err := idempotency.New(ctx, pool, idempotency.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}

	timeout := func(context.Context, idempotency.Call) ([]byte, error) { return nil, context.DeadlineExceeded }
	_, err = store.Do(ctx, "letter:42", idempotency.Options{}, timeout)
	fmt.Println(errors.Is(err, idempotency.ErrUncertain))

	uncertain, err := store.Uncertain(ctx, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, effect := range uncertain {
		verdict := idempotency.Verdict{Outcome: idempotency.OutcomeDone, Value: []byte("sent")}
		fmt.Println(effect.Key, store.Resolve(ctx, effect, verdict, "ann, by telephone"))
	}
	result, err := store.Do(ctx, "letter:42", idempotency.Options{}, timeout)
	fmt.Printf("%s %t %v\n", result.Value, result.Replayed, err)
	// Output:
	// true
	// letter:42 <nil>
	// sent true <nil>
}

// A resource whose id the client chooses needs no header and no store.
func ExampleCreateOrMatch() {
	ctx := context.Background()
	pool, stop, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	for _, amount := range []int{1999, 1999, 5} {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			created, err := idempotency.CreateOrMatch(ctx, tx, idempotency.Record{
				Table: "orders", Key: map[string]any{"id": "42"}, Values: map[string]any{"amount": amount},
			})
			fmt.Println(created, errors.Is(err, idempotency.ErrMismatch))
			return err
		})
		if err != nil && !errors.Is(err, idempotency.ErrMismatch) {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// true false
	// false false
	// false true
}

// In front of a handler.
func ExampleMiddleware() {
	routes := func(store *idempotency.Store, orders http.Handler) (http.Handler, error) {
		once, err := idempotency.Middleware(idempotency.MiddlewareConfig{
			Store:  store,
			Caller: func(r *http.Request) string { return r.Header.Get("X-Account") }, // set by the gateway
		})
		if err != nil {
			return nil, err
		}
		return once(orders), nil
	}
	_, err := routes(nil, nil)
	fmt.Println(err)
	// Output: idempotency: MiddlewareConfig.Store is nil; make one with New
}

func ExampleKey() {
	fmt.Println(idempotency.Key("receipt-mail", "42"))
	fmt.Println(idempotency.Key("a:b", "c"), idempotency.Key("a", "b", "c"))
	// Output:
	// receipt-mail:42
	// a%3Ab:c a:b:c
}

func ExampleWebhookKey() {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first := idempotency.WebhookKey("shop", []byte(`{"id": 1, "paid": 10.0}`), at)
	again := idempotency.WebhookKey("shop", []byte(`{"paid":10,"id":1}`), at)
	fmt.Println(first == again)
	// Output: true
}

func ExampleCanonicalJSON() {
	text, err := idempotency.CanonicalJSON([]byte(`{ "b": 1.50, "a": "\u00e9" }`))
	fmt.Println(string(text), err)
	// Output: {"a":"é","b":1.5} <nil>
}

// connect gives a pool on a throw-away server with walrelay's consumer side
// and a table of orders.
func connect(ctx context.Context) (*pgxpool.Pool, func(), error) {
	env, err := testenv.New()
	if err != nil {
		return nil, nil, err
	}
	pool, err := start(ctx, env)
	if err != nil {
		return nil, nil, errors.Join(err, env.Close())
	}
	return pool, func() {
		pool.Close()
		if err := env.Close(); err != nil {
			fmt.Println(err)
		}
	}, nil
}

func start(ctx context.Context, env *testenv.Env) (*pgxpool.Pool, error) {
	server, err := env.StartPostgres(ctx, testenv.PGConfig{})
	if err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(server.URL("postgres"))
	if err != nil {
		return nil, err
	}
	if err := migrations.Consumer(ctx, cfg, migrations.Config{}, nil); err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE orders (id text PRIMARY KEY, amount int NOT NULL)`)
	return pool, err
}
