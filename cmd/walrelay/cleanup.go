package main

import (
	"context"
	"errors"
	"time"

	"github.com/walrelay/walrelay"
)

// cleanupCmd is retention, once. Run chooses the side: the receipts of a
// consumer are in cleanup_consumer.go, the outbox's rows in cleanup_outbox.go.
type cleanupCmd struct {
	database  `embed:""`
	outboxes  `embed:""`
	retaining `embed:""`

	Consumer         string        `help:"Delete this consumer's old receipts, in its own database." placeholder:"NAME"`
	ReceiptRetention time.Duration `help:"Age from which on receipts are deleted (default: what the service keeps, or 720h, which is 30 days)." placeholder:"DURATION"`
	DryRun           bool          `help:"Count what would be deleted and change nothing."`
	Yes              bool          `help:"Delete without being asked."`
}

func (c *cleanupCmd) check() error {
	var retention error
	if c.ReceiptRetention < 0 {
		retention = &walrelay.ConfigError{Field: "ReceiptRetention", Value: c.ReceiptRetention.String(), Reason: "use a duration such as 720h, which is 30 days"}
	}
	_, noURL := c.connection("")
	return errors.Join(retention, noURL, c.checkDatabase(), c.checkTables())
}

// Run deletes what is old.
func (c *cleanupCmd) Run(e *env) error {
	if c.Consumer == "" {
		return c.outbox(e)
	}
	conn, err := c.open(e.ctx, "walrelay cleanup")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(e.ctx)) //nolint:errcheck // the process ends
	return c.receipts(e, conn)
}

// cleanupPatience is how long a cleanup waits for the running service's, which
// may keep rows longer and so would not do what was asked for.
const cleanupPatience = 30 * time.Second
