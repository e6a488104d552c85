package walrelay_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"github.com/walrelay/walrelay"
)

// A service may embed the relay: it is one call that runs until its context
// ends, and that needs neither server to be there when it begins.
func Example() {
	relay, err := walrelay.New(walrelay.Config{
		DatabaseURL: os.Getenv("DATABASE_URL"),
		NATS:        os.Getenv("NATS_URL"),
		Source:      "shop",
		Logger:      slog.Default(),
	})
	if err != nil {
		fmt.Println(err) // one line for each setting that is wrong
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := relay.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// DatabaseURL: is not set; give a URL such as postgres://relay@db/shop
	// NATS: is not set; give a URL such as nats://127.0.0.1:4222
}
