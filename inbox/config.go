package inbox

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// An Order says which events may be applied side by side.
type Order int

const (
	// Unordered applies events as they come, by any number of processes.
	Unordered Order = iota
	// PerAggregate applies the events of one aggregate one after the other,
	// in the order of the stream. One that fails holds back its aggregate
	// and no other. One process at a time applies events; others wait to
	// take over. To share the work, publish with a partition in the subject
	// and give each process its [Config.Partition].
	PerAggregate
)

// A Policy says what becomes of a message that no handler can be given.
type Policy int

const (
	// Default is the field's default.
	Default Policy = iota
	// Skip acknowledges the message and counts it.
	Skip
	// DeadLetter stores the message in the dead letters at once.
	DeadLetter
	// Fail treats the message as a failed attempt: it is tried again, which
	// leaves time to deploy what is missing, and then a dead letter.
	Fail
)

// Config is all that a [Consumer] can be told. Zero values mean the defaults.
type Config struct {
	// Name is the consumer's name, and the name of its durable JetStream
	// consumer. Receipts are kept under it: a consumer with a new name
	// starts afresh. 1 to 128 bytes, without blanks, dots, *, >, / and \.
	Name string
	// DB is where receipts and effects are committed together. [NewSQL] takes
	// a *sql.DB in its place. It needs Concurrency connections and two more.
	DB *pgxpool.Pool
	// JetStream is the connection that messages come from.
	JetStream jetstream.JetStream
	// Stream is the stream's name.
	Stream string
	// Subjects are the subjects to consume; none means all of the stream.
	Subjects []string
	// Schema is where `walrelay migrate --consumer` put its tables. Empty
	// means walrelay.
	Schema string

	// Complete, if set, is called with each message before it is handled, to
	// fill in what lean headers leave to the subject: Type, AggregateType,
	// AggregateID. It must not do anything else.
	Complete func(m *Message)

	// SignatureKeys gives the text of a key file, as [envelope.ParseKeys] reads
	// it: each message must be signed with one of its keys, see
	// docs/message.md. One that is not becomes a dead letter with reason
	// unsigned, unknown key or bad signature, whatever Unreadable says. It is
	// called again from time to time and when a message names a key that is not
	// known. Nil means that signatures are not looked at.
	SignatureKeys func() ([]byte, error)

	// Concurrency is the number of transactions side by side. Zero means 8,
	// or as many as a small pool allows.
	Concurrency int
	// Batch is the number of events that may share a transaction. More than
	// one makes small effects several times as fast, and a handler runs
	// again when a neighbour in its batch fails. Zero means 1, the most is 1000.
	Batch int
	// Order is Unordered or PerAggregate.
	Order Order
	// Partition, with PerAggregate, names the share of the subjects that
	// this process consumes. Its durable consumer is called Name-Partition;
	// receipts are common to all partitions. Empty means no partitions.
	Partition string
	// Lease is how long a process that has died keeps its partition, by the
	// database's clock. It is renewed three times as often. Zero means 10 s.
	Lease time.Duration

	// MaxAttempts is the number of failed attempts after which an event
	// becomes a dead letter. Trouble with the database does not count.
	// Zero means 10.
	MaxAttempts int
	// MinBackoff and MaxBackoff bound the wait between attempts, which
	// doubles each time. Zero means 1 s and 5 min.
	MinBackoff, MaxBackoff time.Duration
	// HandlerTimeout ends the context of a handler; the attempt then counts
	// as failed. Zero means no limit: the ack deadline is extended for as
	// long as the handler runs.
	HandlerTimeout time.Duration
	// AckWait is after how long JetStream gives a message of a process that
	// has died to another. It is used where Run makes the JetStream consumer.
	// Zero means 30 s, the least is 1 s.
	AckWait time.Duration
	// MaxAckPending is how many messages may be with consumers at once. It
	// is used where Run makes the JetStream consumer. Zero means 1000, or
	// four times what the processes of one host can hold if that is more.
	MaxAckPending int
	// DrainTimeout is how long a stop waits for handlers that run. Zero
	// means 25 s.
	DrainTimeout time.Duration

	// Unknown is for events whose type has no handler: Skip (the default),
	// DeadLetter or Fail.
	Unknown Policy
	// Unreadable is for messages that are not walrelay's, and for payloads
	// that do not fit the handler's type: DeadLetter (the default) or Skip.
	Unreadable Policy

	// Isolation is the isolation of the transactions. Zero means the
	// database's default. Serialization failures are tried again.
	Isolation sql.IsolationLevel
	// AsyncCommit leaves synchronous_commit as it is. Otherwise a database
	// that has it off is asked to keep each commit before the message is
	// acknowledged; a crash of the database would lose the effect.
	AsyncCommit bool

	// ReceiptRetention is how long receipts are kept. A message that comes
	// back later is applied again: it must outlive every redelivery and
	// replay. Zero means 30 days, negative keeps them for ever.
	ReceiptRetention time.Duration
	// ReplayWindow is how old an event may be when `walrelay replay` or a
	// heal publishes it again: the outbox's retention. Zero means 7 days.
	ReplayWindow time.Duration
	// CheckInterval is how often Run notes how far all is applied, looks
	// for dead letters to requeue, and deletes old receipts. Zero means 5 s.
	CheckInterval time.Duration

	// Logger gets changes of state at Info and each event at Debug. nil
	// means no logs.
	Logger *slog.Logger
	// Tracer makes a span for each event, as a child of the trace that the
	// event's traceparent names. nil means no spans.
	Tracer trace.TracerProvider
	// Meter counts what Status counts. nil means no metrics.
	Meter metric.MeterProvider
}

const (
	defaultConcurrency = 8
	// spareConns are for what goes on beside the handlers: leases, and what
	// Run notes.
	spareConns   = 2
	maxBatch     = 1000
	maxNameBytes = 128
)

// withDefaults fills in zero values.
func (c Config) withDefaults() Config {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	if c.Schema == "" {
		c.Schema = "walrelay"
	}
	if c.Concurrency == 0 {
		c.Concurrency = defaultConcurrency
	}
	if c.Batch == 0 {
		c.Batch = 1
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 10
	}
	if c.MaxAckPending == 0 {
		c.MaxAckPending = max(1000, 4*c.hand())
	}
	if c.Unknown == Default {
		c.Unknown = Skip
	}
	if c.Unreadable == Default {
		c.Unreadable = DeadLetter
	}
	const day = 24 * time.Hour
	set(&c.Lease, 10*time.Second)
	set(&c.MinBackoff, time.Second)
	set(&c.MaxBackoff, max(5*time.Minute, c.MinBackoff))
	set(&c.AckWait, 30*time.Second)
	set(&c.DrainTimeout, 25*time.Second)
	set(&c.ReceiptRetention, 30*day)
	set(&c.ReplayWindow, 7*day)
	set(&c.CheckInterval, 5*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// hand is how many messages a process holds at once: what runs, and as many
// to go on with.
func (c Config) hand() int { return 2 * c.Concurrency * c.Batch }

// durable is the name of the JetStream consumer.
func (c Config) durable() string {
	if c.Partition == "" {
		return c.Name
	}
	return c.Name + "-" + c.Partition
}

// check reports all that is wrong with c at once.
func (c Config) check() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	name := func(s string) bool {
		return len(s) <= maxNameBytes && !strings.ContainsFunc(s, func(r rune) bool {
			return r <= ' ' || r > '~' || strings.ContainsRune(`.*>/\`, r)
		})
	}
	bad(c.Name != "" && name(c.Name), "Name %q: want 1 to %d printable ASCII characters without blanks, dots, *, >, / and \\", c.Name, maxNameBytes)
	bad(name(c.Partition), "Partition %q: want characters that a Name may have", c.Partition)
	bad(c.Partition == "" || c.Order == PerAggregate, "Partition %q: partitions are for Order: PerAggregate; unordered consumers share a Name", c.Partition)
	bad(c.Partition == "" || len(c.Subjects) > 0, "Subjects: a consumer of partition %q needs the subjects of that partition", c.Partition)
	bad(c.Concurrency > 0, "Concurrency %d: want at least 1", c.Concurrency)
	bad(c.Batch > 0 && c.Batch <= maxBatch, "Batch %d: want 1 to %d", c.Batch, maxBatch)
	bad(c.Order == Unordered || c.Order == PerAggregate, "Order %d: want Unordered or PerAggregate", c.Order)
	bad(c.MaxAttempts > 0, "MaxAttempts %d: want at least 1", c.MaxAttempts)
	bad(c.AckWait >= time.Second, "AckWait %v: want at least 1s", c.AckWait)
	bad(c.Lease >= 100*time.Millisecond, "Lease %v: want at least 100ms", c.Lease)
	bad(c.MinBackoff > 0 && c.MaxBackoff >= c.MinBackoff, "MinBackoff %v, MaxBackoff %v: want 0 < MinBackoff <= MaxBackoff", c.MinBackoff, c.MaxBackoff)
	bad(c.HandlerTimeout >= 0, "HandlerTimeout %v: want no negative time", c.HandlerTimeout)
	bad(c.DrainTimeout > 0, "DrainTimeout %v: want more than nothing", c.DrainTimeout)
	bad(c.CheckInterval > 0, "CheckInterval %v: want more than nothing", c.CheckInterval)
	bad(c.MaxAckPending >= c.hand(), "MaxAckPending %d: want at least %d, twice Concurrency times Batch", c.MaxAckPending, c.hand())
	bad(c.Unknown == Skip || c.Unknown == DeadLetter || c.Unknown == Fail, "Unknown %d: want Skip, DeadLetter or Fail", c.Unknown)
	bad(c.Unreadable == Skip || c.Unreadable == DeadLetter, "Unreadable %d: want DeadLetter or Skip, since it would fail the same way each time", c.Unreadable)
	bad(c.Stream != "" || c.JetStream == nil, "Stream: want the name of the stream to consume")
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("inbox.Config: %w", errors.Join(errs...))
}
