package main

import (
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
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
	NATS string `name:"nats" help:"NATS servers, separated by commas; run takes embedded:DIR as well, a JetStream inside the relay." placeholder:"URL"`
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

	OnPoison        string `help:"An event that can never be published: dead-letter or halt." enum:"dead-letter,halt" default:"dead-letter"`
	OnUnrouted      string `help:"An event that no route or stream takes: wait or dead-letter." enum:"wait,dead-letter" default:"wait"`
	DeadLetterLimit int    `help:"Dead letters of one reason within a minute; beyond it delivery waits." default:"100"`
	EmbeddedListen  string `help:"Where the JetStream of --nats embedded:DIR listens." default:"127.0.0.1:4222" placeholder:"HOST:PORT"`
}

// Run relays until a signal.
func (c *runCmd) Run(e *env) error {
	cfg := walrelay.Config{
		DatabaseURL: c.DatabaseURL, ReplicationURL: c.ReplicationURL, NATS: c.NATS, NATSOptions: c.natsOptions,
		Source: c.Source, Slot: c.Slot, Publication: c.Publication, Schema: c.Schema, Stream: c.Stream, Subject: c.Subject,
		OnPoison: c.OnPoison, OnUnrouted: c.OnUnrouted, DeadLetterLimit: c.DeadLetterLimit,
		Window: c.Window, InFlightBytes: c.InFlightBytes, AckTimeout: c.AckTimeout, StatusInterval: c.StatusInterval,
		Silence: c.Silence, DrainTimeout: c.DrainTimeout, Logger: logger(e.stderr, c.LogLevel, c.LogFormat),
	}
	limitMemory(c.InFlightBytes)
	if dir, ok := strings.CutPrefix(c.NATS, embeddedPrefix); ok {
		stream := firstOf(c.Stream, strings.ToUpper(c.Source))
		server, err := startEmbedded(e.ctx, dir, c.EmbeddedListen, stream, "outbox."+c.Source+".>")
		if err != nil {
			return err
		}
		defer server.close()
		cfg.NATS = server.url
		cfg.NATSOptions = func() ([]nats.Option, error) { return server.options(), nil }
		cfg.Logger.InfoContext(e.ctx, "JetStream runs inside the relay", slog.String("dir", dir), slog.String("listen", c.EmbeddedListen))
	}
	relay, err := walrelay.New(cfg)
	if err != nil {
		return &usageError{err}
	}
	return relay.Run(e.ctx)
}

func (c *runCmd) natsOptions() ([]nats.Option, error) { return nil, nil }

// limitMemory makes Go's collector work harder before the process outgrows
// what is in flight plus what the rest needs. GOMEMLIMIT beats it.
func limitMemory(inFlight int) {
	const rest = 48 << 20
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(inFlight) + rest)
	}
}
