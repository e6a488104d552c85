package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/libpq"
	"github.com/walrelay/walrelay/migrations"
)

type migrateCmd struct {
	database `embed:""`
	broker   `embed:""`
	outboxes `embed:""`

	Print             bool          `help:"Show the SQL and change nothing."`
	Partitioned       bool          `help:"Make the outbox a partitioned table: partitions by time are made ahead, and dropped as a whole when they are old and proven to be stored."`
	PartitionInterval time.Duration `help:"Length of the partitions that are made from now on (default: what was set before, or 24h)." placeholder:"DURATION"`
	PartitionsAhead   int           `help:"How many partitions are made ahead (default: what was set before, or 30)." placeholder:"N"`

	Consumer bool   `help:"The consumer side: receipts, attempts, effects."`
	Stream   string `help:"Make this JetStream stream as well." placeholder:"NAME"`
	Subjects string `help:"Subjects of the stream, separated by commas (default: outbox.{source}.>)." placeholder:"LIST"`
}

// Run applies or prints what is missing. What is there already stays as it is.
func (c *migrateCmd) Run(e *env) error {
	cfg := migrations.Config{
		Schema: c.Schema, Slot: c.Slot, Publication: c.Publication, Source: c.Source, Tables: c.forMigrations(c.Schema),
		Partitioned: c.Partitioned, PartitionInterval: c.PartitionInterval, PartitionsAhead: c.PartitionsAhead,
	}
	cfg.Slot = firstOf(cfg.Slot, strings.ReplaceAll(strings.ToLower(c.Source), "-", "_"))
	cfg.Publication = firstOf(cfg.Publication, cfg.Slot)
	if c.Print {
		if c.Consumer {
			return migrations.PrintConsumer(e.stdout, cfg)
		}
		return migrations.Print(e.stdout, cfg)
	}
	if err := c.check(); err != nil {
		return &usageError{err}
	}
	if c.DatabaseURL != "" {
		if err := c.migrate(e, cfg); err != nil {
			return err
		}
	}
	if c.Stream == "" {
		return nil
	}
	return c.makeStream(e)
}

func (c *migrateCmd) check() error {
	var problems []error
	if c.DatabaseURL == "" && c.Stream == "" {
		problems = append(problems, &walrelay.ConfigError{Field: "DatabaseURL", Reason: "is not set; give a URL such as postgres://owner@db/shop"})
	}
	if c.Stream != "" && c.NATS == "" {
		problems = append(problems, &walrelay.ConfigError{Field: "Stream", Reason: "needs --nats, a URL such as nats://127.0.0.1:4222"})
	}
	return errors.Join(append(problems, c.checkDatabase(), c.checkNATS(), c.checkTables())...)
}

func (c *migrateCmd) migrate(e *env, cfg migrations.Config) error {
	conn, err := c.connection("walrelay migrate")
	if err != nil {
		return &usageError{err}
	}
	report := func(s migrations.Step) {
		line := fmt.Sprintf("%-10s %s", s.Did, s.Object)
		if s.Detail != "" {
			line += ": " + s.Detail
		}
		fmt.Fprintln(e.stdout, line)
	}
	if c.Consumer {
		return libpq.Explain(migrations.Consumer(e.ctx, conn, cfg, report))
	}
	return libpq.Explain(migrations.Apply(e.ctx, conn, cfg, report))
}

// makeStream makes a stream that the chain can write to. One that exists is
// left as it is.
func (c *migrateCmd) makeStream(e *env) error {
	nc, err := c.connect("walrelay migrate")
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := c.jetStream(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.ctx, 30*time.Second)
	defer cancel()
	switch _, err := js.Stream(ctx, c.Stream); {
	case err == nil:
		fmt.Fprintf(e.stdout, "%-10s stream %s\n", migrations.Found, c.Stream)
		return nil
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("look for stream %q: %w", c.Stream, err)
	}
	cfg := jetstream.StreamConfig{
		Name: c.Stream, Subjects: strings.Split(firstOf(c.Subjects, "outbox."+c.Source+".>"), ","),
		Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Duplicates: 2 * time.Minute, AllowDirect: true,
		Replicas: 3,
	}
	_, err = js.CreateStream(ctx, cfg)
	if err != nil && e.ctx.Err() == nil {
		// Three replicas if the cluster has them: one server says no.
		cfg.Replicas = 1
		_, err = js.CreateStream(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("create stream %q: %w", c.Stream, err)
	}
	fmt.Fprintf(e.stdout, "%-10s stream %s on %s, replicas %d\n", migrations.Created, c.Stream, strings.Join(cfg.Subjects, ","), cfg.Replicas)
	if cfg.Replicas == 1 {
		fmt.Fprintln(e.stdout, "           one replica: an acknowledged event is as safe as this server's disk")
	}
	return nil
}

func firstOf(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
