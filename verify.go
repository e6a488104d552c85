package walrelay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/internal/reconcile"
)

// A Verification says how [Verify] looks.
type Verification struct {
	// Since leaves out events that were written before. Zero leaves out none.
	Since time.Time
	// Retention is how long published rows are kept: a message whose row is
	// gone and that is older is no finding. Zero means seven days.
	Retention time.Duration
	// Wait bounds the wait for the running relay to confirm what is there now.
	// Zero means 30 s.
	Wait time.Duration
	// Bodies compares bodies byte for byte, which reads them from the streams.
	// Without it lengths are compared.
	Bodies bool
	// Show is how many findings of each kind are listed; all are counted. Zero
	// means 20.
	Show int
	// Progress is told twice a second how far it is. Nil tells nobody.
	Progress func(VerifyProgress)
}

type (
	// A VerifyReport is what [Verify] found.
	VerifyReport = reconcile.Report
	// A VerifyFinding is one row or message that is not as it has to be.
	VerifyFinding = reconcile.Finding
	// VerifyProgress says how far [Verify] is.
	VerifyProgress = reconcile.Progress
)

// Verify compares the outbox tables of cfg with the streams: what is missing,
// unknown to the tables, stored more than once, out of order, or different from
// what the relay makes of the row. It changes nothing, and neither needs nor
// disturbs a running relay; without one, rows that are nowhere count as on their
// way unless a proven snapshot saw them.
func Verify(ctx context.Context, cfg Config, how Verification) (*VerifyReport, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	var opts []nats.Option
	if cfg.NATSOptions != nil {
		if opts, err = cfg.NATSOptions(); err != nil {
			return nil, fmt.Errorf("options of the connection to NATS: %w", err)
		}
	}
	if cfg.NATSInboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(cfg.NATSInboxPrefix))
	}
	nc, err := nats.Connect(cfg.NATS, append(opts, nats.Name("walrelay "+cfg.Source+" verify"), nats.MaxReconnects(-1))...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	return reconcile.Verify(ctx, reconcile.Config{
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			return cfg.open(ctx, "verify")
		},
		NATS: nc, Domain: cfg.NATSDomain, Source: cfg.Source, Slot: cfg.Slot, Schema: cfg.Schema, Router: routerConfig(&cfg),
		Since: how.Since, Retention: how.Retention, Wait: how.Wait, Bodies: how.Bodies, Show: how.Show, Progress: how.Progress,
	})
}
