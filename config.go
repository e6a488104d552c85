package walrelay

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/walrelay/walrelay/internal/libpq"
)

// Config says what a [Relay] does. Only DatabaseURL and NATS are needed: all
// else follows from Source.
type Config struct {
	// DatabaseURL is how to reach PostgreSQL, as a URL or as key=value pairs:
	// what libpq understands, PG* variables and password files included. It
	// is read again at each connect.
	DatabaseURL string
	// DatabasePassword gives the password for both URLs, in place of what
	// they say. It is called at each connect, so that a password which was
	// changed is read again. Nil means what the URLs, PGPASSWORD or a password
	// file say.
	DatabasePassword func() (string, error)
	// ReplicationURL is a direct way to the same database where DatabaseURL
	// leads through a pooler. Empty means DatabaseURL.
	ReplicationURL string
	// NATS is one server or several, separated by commas.
	NATS string
	// NATSOptions gives further options of the connection, such as
	// credentials. It is called at each connect, so that secrets are read
	// again. Nil means none.
	NATSOptions func() ([]nats.Option, error)
	// NATSDomain is the JetStream domain of the stream, where it is not that
	// of the server we connect to. Empty means the server's own.
	NATSDomain string
	// NATSInboxPrefix begins the subjects on which answers and
	// acknowledgements come, for users that may subscribe only below a prefix
	// of their own. Empty means _INBOX.
	NATSInboxPrefix string

	// Source names the relay in its messages and in PostgreSQL; one source
	// is one order of events. Empty means Slot, or "walrelay" without one.
	Source string
	// Slot is the replication slot. Empty means Source.
	Slot string
	// Publication covers the outbox table. Empty means Source.
	Publication string
	// Schema holds walrelay's own tables, the outbox among them. Empty means
	// "walrelay".
	Schema string
	// Stream is the JetStream stream. Empty means the source in capitals,
	// such as WALRELAY.
	Stream string
	// Subject is the template of subjects, see docs/message.md. Empty means
	// outbox.{source}.{aggregate_type}.{event_type}.
	Subject string

	// Tables are the outbox tables. Empty means the one that migrate makes in
	// Schema.
	Tables []Table
	// Routes say which event goes to which stream; the first match wins.
	// Empty means that all go to Stream, with Subject.
	Routes []Route
	// Streams say how streams are written to where the defaults do not fit.
	Streams []Stream
	// Lean leaves out the headers that subject and body tell already, see
	// docs/message.md.
	Lean bool
	// CloudEvents writes the attributes of CloudEvents 1.0 in binary mode as
	// headers beside our own.
	CloudEvents bool

	// SignKey gives the text of a key file with the one key that signs each
	// message in the header Walrelay-Signature, see docs/message.md. It is
	// called at the start of each session and every ten seconds, so that a key
	// which was replaced is taken up. Nil means that messages are not signed.
	SignKey func() ([]byte, error)

	// OnPoison says what becomes of an event that can never be published:
	// [PoisonDeadLetter], [PoisonPark] or [PoisonHalt]. Empty means PoisonDeadLetter.
	OnPoison string
	// OnUnrouted says what becomes of an event that no route or stream takes:
	// [UnroutedWait] or [UnroutedDeadLetter]. Empty means UnroutedWait.
	OnUnrouted string
	// DeadLetterLimit is how many events of one reason may become dead letters
	// within a minute; 20 in a row without a good one between are too many as
	// well. Beyond that delivery waits for an operator. Zero means 100.
	DeadLetterLimit int

	// OnGap says what to do when events are found that the slot can no longer
	// deliver or that the broker no longer has: [GapHeal] or [GapHalt]. Empty
	// means GapHeal.
	OnGap string
	// HealLimit is how many events are published unasked to heal a gap, and
	// HealAge how old the oldest of them may be when the gap is found. Beyond
	// either delivery waits for an operator. Zero means 10,000 and one hour.
	HealLimit int
	HealAge   time.Duration
	// Backfill publishes the rows that are there already when the relay starts
	// for the first time, before anything new. Later it does nothing.
	Backfill bool

	// WaitVisible publishes an event only when others can see its transaction:
	// where commits wait for a synchronous standby, after that has confirmed. It
	// costs a query a transaction. False publishes what is durable on this
	// server; a consumer that looks into the database may then be ahead of it,
	// and after a failover the standby may lack what was published.
	WaitVisible bool

	// Retention is how long a row of an outbox table is kept at least; when it
	// is older and proven to be stored it is deleted. Zero means 168 hours,
	// which are 7 days; [KeepForever] deletes none.
	Retention time.Duration

	// Window is how many messages may be published and not yet acknowledged.
	// A larger one raises throughput over a long round trip and lengthens a
	// resync. Zero means that it follows the round trip, from 1024 to 16384;
	// on a shared stream it means 1024.
	Window int
	// AtomicBatches says when events that wait are sent as atomic batches, to
	// streams that allow them: BatchesAuto, where a server is slow message by
	// message as one is that syncs every write, BatchesAlways or BatchesNever.
	// Empty means BatchesAuto. Order and what is confirmed do not depend on it.
	AtomicBatches string
	// InFlightBytes bounds the memory for messages that are not yet
	// acknowledged, per stream; one larger message passes alone. Zero means
	// 32 MiB.
	InFlightBytes int
	// AckTimeout is how long an acknowledgement may take before the message
	// counts as unknown and the stream is asked. Zero means 5 s.
	AckTimeout time.Duration
	// StatusInterval is how often PostgreSQL hears from the relay at least.
	// Zero means 1 s; never more than a third of the server's
	// wal_sender_timeout is used.
	StatusInterval time.Duration
	// Silence is how long PostgreSQL may send nothing, though asked, before
	// the connection counts as half-open. Zero means one minute.
	Silence time.Duration
	// DrainTimeout bounds how long a stop waits for acknowledgements. What
	// is not acknowledged by then is sent again by the next start. Zero
	// means 20 s.
	DrainTimeout time.Duration
	// Tracer makes a span for each message whose row brings a traceparent, in
	// that trace. Nil means no spans, and then nothing is spent on them.
	Tracer trace.TracerProvider
	// Logger receives facts about state; never a payload or a secret. Nil
	// discards them.
	Logger *slog.Logger
}

// A ConfigError names one setting that cannot be used.
type ConfigError struct {
	Field  string // as in Config
	Value  string // empty where the value may be secret
	Reason string // what is wrong and what to write instead
}

// Error names the field, its value and the fix.
func (e *ConfigError) Error() string {
	if e.Value == "" {
		return e.Field + ": " + e.Reason
	}
	return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Reason)
}

var (
	slotName   = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	sourceName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

	subjectToken  = regexp.MustCompile(`^[^\s.*>]+$`)
	subjectPrefix = regexp.MustCompile(`^[^\s.*>]+(\.[^\s.*>]+)*$`)
)

// withDefaults fills what is not set and checks the rest; it reports every
// problem at once.
func (c Config) withDefaults() (Config, error) {
	var problems []error
	bad := func(field, value, reason string) {
		problems = append(problems, &ConfigError{Field: field, Value: value, Reason: reason})
	}
	if c.Source == "" {
		c.Source = c.Slot
	}
	c.Source = or(c.Source, "walrelay")
	c.Slot = or(c.Slot, strings.ReplaceAll(strings.ToLower(c.Source), "-", "_"))
	c.Publication = or(c.Publication, c.Slot)
	c.Schema = or(c.Schema, "walrelay")
	c.Stream = or(c.Stream, strings.ToUpper(c.Source))
	c.ReplicationURL = or(c.ReplicationURL, c.DatabaseURL)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.DatabaseURL == "" {
		bad("DatabaseURL", "", "is not set; give a URL such as postgres://relay@db/shop")
	}
	for field, value := range map[string]string{"DatabaseURL": c.DatabaseURL, "ReplicationURL": c.ReplicationURL} {
		if value == "" || field == "ReplicationURL" && value == c.DatabaseURL {
			continue
		}
		if _, err := libpq.Parse(value); err != nil {
			bad(field, "", err.Error())
		}
	}
	if c.NATS == "" {
		bad("NATS", "", "is not set; give a URL such as nats://127.0.0.1:4222")
	}
	if !subjectToken.MatchString(or(c.NATSDomain, "-")) {
		bad("NATSDomain", c.NATSDomain, "use a name without blanks, dots and wildcards: it is a token of subjects")
	}
	if !subjectPrefix.MatchString(or(c.NATSInboxPrefix, "-")) {
		bad("NATSInboxPrefix", c.NATSInboxPrefix, "use tokens without blanks and wildcards, such as _WALRELAY; the dot at the end is added")
	}
	if !sourceName.MatchString(c.Source) {
		bad("Source", c.Source, "use 1 to 63 letters, digits, - or _: it is a token of subjects and headers")
	}
	if !slotName.MatchString(c.Slot) {
		bad("Slot", c.Slot, "use 1 to 63 lower-case letters, digits or _, as PostgreSQL demands of slots")
	}
	if len(c.Publication) > 63 || strings.ContainsRune(c.Publication, 0) {
		bad("Publication", c.Publication, "use at most 63 bytes, as PostgreSQL demands of names")
	}
	if len(c.Schema) > 63 || strings.ContainsRune(c.Schema, 0) {
		bad("Schema", c.Schema, "use at most 63 bytes, as PostgreSQL demands of names")
	}
	if strings.ContainsAny(c.Stream, " \t\r\n.*>/\\") {
		bad("Stream", c.Stream, "use no blanks, dots, wildcards or slashes, as JetStream demands of streams")
	}
	c.OnPoison = or(c.OnPoison, PoisonDeadLetter)
	c.OnUnrouted = or(c.OnUnrouted, UnroutedWait)
	c.DeadLetterLimit = number(c.DeadLetterLimit, 100)
	c.OnGap = or(c.OnGap, GapHeal)
	c.HealLimit = number(c.HealLimit, 10_000)
	c.HealAge = number(c.HealAge, time.Hour)
	c.Retention = number(c.Retention, 7*24*time.Hour)
	if c.OnGap != GapHeal && c.OnGap != GapHalt {
		bad("OnGap", c.OnGap, "use heal or halt")
	}
	if c.HealLimit < 1 {
		bad("HealLimit", fmt.Sprint(c.HealLimit), "use at least 1; on_gap: halt heals nothing unasked")
	}
	if c.OnPoison != PoisonDeadLetter && c.OnPoison != PoisonPark && c.OnPoison != PoisonHalt {
		bad("OnPoison", c.OnPoison, "use dead-letter, park or halt")
	}
	if c.OnUnrouted != UnroutedWait && c.OnUnrouted != UnroutedDeadLetter {
		bad("OnUnrouted", c.OnUnrouted, "use wait or dead-letter")
	}
	if c.DeadLetterLimit < 1 {
		bad("DeadLetterLimit", fmt.Sprint(c.DeadLetterLimit), "use at least 1")
	}
	c.AtomicBatches = or(c.AtomicBatches, BatchesAuto)
	if _, ok := batching(c.AtomicBatches); !ok {
		bad("AtomicBatches", c.AtomicBatches, "use auto, always or never")
	}
	c.InFlightBytes = number(c.InFlightBytes, 32<<20)
	c.AckTimeout = number(c.AckTimeout, 5*time.Second)
	c.StatusInterval = number(c.StatusInterval, time.Second)
	c.Silence = number(c.Silence, time.Minute)
	c.DrainTimeout = number(c.DrainTimeout, 20*time.Second)
	if c.Window < 0 || c.Window > maxWindow {
		bad("Window", fmt.Sprint(c.Window), "use 1 to 65536 messages, or 0 for what the round trip needs")
	}
	if c.InFlightBytes < minInFlight {
		bad("InFlightBytes", fmt.Sprint(c.InFlightBytes), "use at least 1048576 bytes")
	}
	for field, d := range map[string]time.Duration{
		"AckTimeout": c.AckTimeout, "StatusInterval": c.StatusInterval, "Silence": c.Silence, "DrainTimeout": c.DrainTimeout, "HealAge": c.HealAge,
	} {
		if d < 0 {
			bad(field, d.String(), "use a positive duration such as 10s")
		}
	}
	c.withRoutes(bad)
	return c, errors.Join(append(problems, routeProblems(&c))...)
}

const (
	maxWindow   = 65536
	minInFlight = 1 << 20
)

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func number[T int | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}
