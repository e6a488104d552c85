package main

import (
	"errors"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay"
)

// logging are the flags of every verb that logs.
type logging struct {
	LogLevel  slog.Level `help:"debug, info, warn or error." default:"info"`
	LogFormat string     `help:"text, json, or auto: text on a terminal, JSON elsewhere." enum:"auto,text,json" default:"auto"`
}

// routing are the flags of every verb that needs to know which message is made
// of a row.
type routing struct {
	outboxes `embed:""`

	Stream  string    `help:"JetStream stream (default: the source in capitals)." placeholder:"NAME"`
	Subject string    `help:"Template of subjects (default: outbox.{source}.{aggregate_type}.{event_type})." placeholder:"TEMPLATE"`
	Routes  routeList `help:"Which event goes to which stream; the first match wins (default: all to --stream)." placeholder:"YAML" shape:"list"`
	Headers string    `help:"lean leaves out the headers that subject and body tell already." enum:"full,lean" default:"full"`
	Format  string    `help:"cloudevents writes the attributes of CloudEvents 1.0 as headers too." enum:"plain,cloudevents" default:"plain"`
}

// into writes the settings into a configuration that has the schema already.
func (r *routing) into(cfg *walrelay.Config) {
	cfg.Tables, cfg.Routes = r.tables(cfg.Schema), r.Routes.list
	cfg.Stream, cfg.Subject = r.Stream, r.Subject
	cfg.Lean, cfg.CloudEvents = r.Headers == "lean", r.Format == "cloudevents"
}

// relaying are the settings of a relay.
type relaying struct {
	database  `embed:""`
	broker    `embed:""`
	logging   `embed:""`
	listener  `embed:""`
	routing   `embed:""`
	retaining `embed:""`
	signing   `embed:""`

	ReplicationURL string        `help:"Direct way to PostgreSQL where --database-url leads through a pooler." placeholder:"URL" secret:"dsn"`
	Shared         bool          `help:"Others write to --stream too: the order of each aggregate is kept instead of that of the whole source."`
	Streams        streamList    `help:"How streams of --routes are written to where the defaults do not fit." placeholder:"YAML" shape:"list"`
	Window         int           `help:"Messages published and not yet acknowledged; 0 is as many as the round trip needs." default:"0"`
	AtomicBatches  string        `help:"When events that wait are sent as atomic batches, to streams that allow them: auto (to servers that sync every write), always or never." enum:"auto,always,never" default:"auto"`
	InFlightBytes  int           `help:"Bytes held for messages that are not acknowledged, per stream." default:"33554432"`
	AckTimeout     time.Duration `help:"How long an acknowledgement may take." default:"5s"`
	StatusInterval time.Duration `help:"How often PostgreSQL hears from the relay at least." default:"1s"`
	Silence        time.Duration `help:"How long PostgreSQL may be silent before the connection counts as lost." default:"1m"`
	DrainTimeout   time.Duration `help:"How long a stop waits for acknowledgements." default:"20s"`

	OnPoison        string        `help:"What becomes of an event that can never be published: dead-letter, park (later events of its aggregate wait behind it) or halt." enum:"dead-letter,park,halt" default:"dead-letter"`
	OnUnrouted      string        `help:"What becomes of an event that no route or stream takes: wait or dead-letter." enum:"wait,dead-letter" default:"wait"`
	DeadLetterLimit int           `help:"Dead letters of one reason within a minute; beyond it delivery waits for an operator." default:"100"`
	OnGap           string        `help:"What to do about events that the slot or the broker no longer has: heal them from the table, or halt." enum:"heal,halt" default:"heal"`
	HealLimit       int           `help:"Events published unasked to heal a gap; beyond it delivery waits for an operator." default:"10000"`
	HealAge         time.Duration `help:"How old the oldest event of a gap may be to be healed unasked." default:"1h"`
	Backfill        bool          `help:"On the very first start publish the rows that are there already, before anything new."`
	WaitVisible     bool          `help:"Publish an event only when others can see its transaction: after a synchronous standby has confirmed it."`
	EmbeddedListen  string        `help:"Where the JetStream of --nats embedded:DIR listens; other than on loopback it wants the token in DIR/token." default:"127.0.0.1:4222" placeholder:"HOST:PORT"`
}

func (c *relaying) config(log *slog.Logger) walrelay.Config {
	streams := c.Streams.list
	if c.Shared && len(streams) == 0 {
		streams = []walrelay.Stream{{Name: firstOf(c.Stream, strings.ToUpper(c.Source)), Shared: true}}
	}
	cfg := walrelay.Config{
		Streams:     streams,
		DatabaseURL: c.DatabaseURL, ReplicationURL: c.ReplicationURL, DatabasePassword: c.password(),
		NATS: c.NATS, NATSOptions: c.options, NATSDomain: c.NATSDomain, NATSInboxPrefix: c.NATSInboxPrefix,
		Source: c.Source, Slot: c.Slot, Publication: c.Publication, Schema: c.Schema,
		OnPoison: c.OnPoison, OnUnrouted: c.OnUnrouted, DeadLetterLimit: c.DeadLetterLimit,
		OnGap: c.OnGap, HealLimit: c.HealLimit, HealAge: c.HealAge, Backfill: c.Backfill, WaitVisible: c.WaitVisible, Retention: time.Duration(c.Retention),
		Window: c.Window, AtomicBatches: c.AtomicBatches, InFlightBytes: c.InFlightBytes, AckTimeout: c.AckTimeout, StatusInterval: c.StatusInterval,
		Silence: c.Silence, DrainTimeout: c.DrainTimeout, Logger: log,
	}
	c.routing.into(&cfg)
	c.signing.into(&cfg)
	return cfg
}

// check finds all that is wrong without a server.
func (c *relaying) check() error {
	_, err := walrelay.New(c.config(nil))
	if c.Shared && len(c.Streams.list) > 0 {
		err = errors.Join(err, &walrelay.ConfigError{Field: "Shared", Reason: "is for --stream alone; write shared: true into --streams"})
	}
	return errors.Join(err, c.checkDatabase(), c.checkNATS(), c.checkListener(), c.checkTables(), c.checkSigning())
}

// derived are the values of settings that follow from others.
func (c *relaying) derived() map[string]string {
	return map[string]string{
		"slot":            c.slotName(),
		"publication":     c.slotName(),
		"table":           c.Schema + ".outbox",
		"stream":          strings.ToUpper(c.Source),
		"subject":         "outbox.{source}.{aggregate_type}.{event_type}",
		"replication-url": maskDSN(c.DatabaseURL),
	}
}

type runCmd struct {
	relaying `embed:""`
}

// Run relays until a signal.
func (c *runCmd) Run(e *env) error {
	log := logger(e.stderr, c.LogLevel, c.LogFormat)
	limitMemory(c.InFlightBytes)
	cfg := c.config(log)
	if dir, ok := strings.CutPrefix(c.NATS, embeddedPrefix); ok {
		inside, err := startEmbedded(e.ctx, dir, c.EmbeddedListen, firstOf(c.Stream, strings.ToUpper(c.Source)), "outbox."+c.Source+".>")
		if err != nil {
			return err
		}
		defer inside.close()
		cfg.NATS, cfg.NATSOptions = inside.url, func() ([]nats.Option, error) { return inside.options(), nil }
		cfg.NATSDomain = "" // that of another server
		log.InfoContext(e.ctx, "JetStream runs inside the relay", slog.String("dir", dir), slog.String("listen", c.EmbeddedListen))
	}
	tracer, stopTracing, err := startTracing(e.ctx, log)
	if err != nil {
		return err
	}
	defer stopTracing()
	cfg.Tracer = tracer
	relay, err := walrelay.New(cfg)
	if err != nil {
		return &usageError{err}
	}
	defer c.serve(e.ctx, relay, log)()
	return relay.Run(e.ctx)
}

// limitMemory makes Go's collector work harder before the process outgrows what
// is in flight plus what the rest needs, and less hard before: little lives for
// long in a relay, so to collect two thirds as often costs some MB. GOMEMLIMIT and GOGC
// beat it.
func limitMemory(inFlight int) {
	const rest, percent = 32 << 20, 150
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(inFlight) + rest)
	}
}
