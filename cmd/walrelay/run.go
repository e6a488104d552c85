package main

import (
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay"
)

// database are the flags of every verb that needs PostgreSQL.
type database struct {
	DatabaseURL string `help:"PostgreSQL, as a URL or key=value pairs; PG* variables and password files count." placeholder:"URL"`
	Source      string `help:"Name of the source; slot, publication, stream and subjects follow from it." default:"walrelay"`
	Slot        string `help:"Replication slot (default: the source)." placeholder:"NAME"`
	Publication string `help:"Publication (default: the slot)." placeholder:"NAME"`
	Schema      string `help:"Schema of walrelay's own tables." default:"walrelay"`
}

// broker are the flags of every verb that needs NATS.
type broker struct {
	NATS string `name:"nats" help:"NATS servers, separated by commas." placeholder:"URL"`
}

// logging are the flags of every verb that logs.
type logging struct {
	LogLevel  slog.Level `help:"debug, info, warn or error." default:"info"`
	LogFormat string     `help:"text, json, or auto: text on a terminal, JSON elsewhere." enum:"auto,text,json" default:"auto"`
}

type runCmd struct {
	database `embed:""`
	broker   `embed:""`
	logging  `embed:""`

	ReplicationURL string        `help:"Direct way to PostgreSQL where --database-url leads through a pooler." placeholder:"URL"`
	Stream         string        `help:"JetStream stream (default: the source in capitals)." placeholder:"NAME"`
	Subject        string        `help:"Template of subjects (default: outbox.{source}.{aggregate_type}.{event_type})." placeholder:"TEMPLATE"`
	Window         int           `help:"Messages published and not yet acknowledged." default:"1024"`
	InFlightBytes  int           `help:"Bytes held for messages that are not acknowledged, per stream." default:"33554432"`
	AckTimeout     time.Duration `help:"How long an acknowledgement may take." default:"5s"`
	StatusInterval time.Duration `help:"How often PostgreSQL hears from the relay at least." default:"10s"`
	Silence        time.Duration `help:"How long PostgreSQL may be silent before the connection counts as lost." default:"1m"`
	DrainTimeout   time.Duration `help:"How long a stop waits for acknowledgements." default:"20s"`
}

// Run relays until a signal.
func (c *runCmd) Run(e *env) error {
	relay, err := walrelay.New(walrelay.Config{
		DatabaseURL: c.DatabaseURL, ReplicationURL: c.ReplicationURL, NATS: c.NATS, NATSOptions: natsOptions,
		Source: c.Source, Slot: c.Slot, Publication: c.Publication, Schema: c.Schema, Stream: c.Stream, Subject: c.Subject,
		Window: c.Window, InFlightBytes: c.InFlightBytes, AckTimeout: c.AckTimeout, StatusInterval: c.StatusInterval,
		Silence: c.Silence, DrainTimeout: c.DrainTimeout, Logger: logger(e.stderr, c.LogLevel, c.LogFormat),
	})
	if err != nil {
		return &usageError{err}
	}
	return relay.Run(e.ctx)
}

func natsOptions() ([]nats.Option, error) { return nil, nil }
