package main

import (
	"context"
	"errors"
	"time"

	"github.com/walrelay/walrelay"
)

// cleanupCmd is retention, once. Run chooses the side: the receipts of a
// consumer are in cleanup_consumer.go, the outbox's rows have their place
// beside it.
type cleanupCmd struct {
	database `embed:""`

	Consumer         string        `help:"Delete this consumer's old receipts, in its own database." placeholder:"NAME"`
	ReceiptRetention time.Duration `help:"Age from which on receipts are deleted (default: what the service keeps, or 720h, which is 30 days)." placeholder:"DURATION"`
	DryRun           bool          `help:"Count what would be deleted and change nothing."`
	Yes              bool          `help:"Delete without being asked."`
}

func (c *cleanupCmd) check() error {
	var consumer error
	if c.Consumer == "" {
		consumer = &walrelay.ConfigError{Field: "Consumer", Reason: "is not set; name the consumer whose receipts are to be deleted"}
	}
	var retention error
	if c.ReceiptRetention < 0 {
		retention = &walrelay.ConfigError{Field: "ReceiptRetention", Value: c.ReceiptRetention.String(), Reason: "use a duration such as 720h, which is 30 days"}
	}
	_, noURL := c.connection("")
	return errors.Join(consumer, retention, noURL, c.checkDatabase())
}

// Run deletes what is old.
func (c *cleanupCmd) Run(e *env) error {
	conn, err := c.open(e.ctx, "walrelay cleanup")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	return c.receipts(e, conn)
}
