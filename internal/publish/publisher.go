package publish

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
)

// Config is what a [Stream] or [Lanes] need. Stream and Source have no default.
type Config struct {
	// Stream is the stream's name.
	Stream string
	// Source is what our messages carry as Walrelay-Source.
	Source string
	// Window is the number of messages in flight. A larger one fills a longer
	// way to the server and lengthens a resync. Zero means 1024 in lanes, and
	// in a chain from 1024 to 16384, as the round trip needs it.
	Window int
	// Batching says when a chain sends atomic batches. Zero means BatchAuto.
	Batching Batching
	// MaxBytes bounds what is held, queued and in flight together. A larger
	// single message passes alone. Zero means 64 MiB.
	MaxBytes int
	// AckTimeout is how long the oldest message in flight may go without an
	// answer; after it the outcome is unknown and read from the stream.
	// Zero means 5 s.
	AckTimeout time.Duration
	// LossConfirm is the time between the two answers of the leader that
	// prove a loss. Zero means 10 s.
	LossConfirm time.Duration
	// GiveWay is how long Send waits for room while nothing flows before it
	// gives [ErrNoRoom], so that a stream in trouble does not stop others.
	// Zero means for ever.
	GiveWay time.Duration
	// RetryMost is the longest pause between attempts. Zero means 5 s.
	RetryMost time.Duration
	// Stored is told of more events that are stored: by a [Stream] in the
	// order they were sent, by [Lanes] in any. It is called without locks, by
	// one goroutine at a time; while it blocks, so do acknowledgements. It
	// must not call Run or Drain.
	Stored func(StoredRun)
	// Found is told of an event that was not sent for good because the stream
	// had it already, before Stored counts it. It is called with locks held
	// and must do no more than count. Nil means nobody.
	Found func(tx uint64)
	// Refused is told of an event that can never be stored. Nothing is in
	// flight behind it, and nothing is sent before it returns: nil says
	// that the dead letter is durable (Stored is not called for it), an
	// error ends Run. [Lanes] hold back only what has the event's key
	// meanwhile, and call it with others in flight.
	Refused func(ctx context.Context, r Refused) error
	// SignKey signs each message, see envelope.HeaderSignature. Nil means none.
	SignKey *envelope.Key
	// Logger gets changes of state. Nil discards.
	Logger *slog.Logger
}

// A Publisher stores messages in one stream; [Stream] and [Lanes] are two. It
// serves one session: Tail, Begin, then Run in its own goroutine and Send from
// others.
type Publisher interface {
	// Tail asks, for as long as it takes, for the stream's end.
	Tail(ctx context.Context) (Tail, error)
	// Begin takes that end and the highest sequence of this very stream
	// known to have been acknowledged, 0 if unknown. A lower end is a gap,
	// which Run declares.
	Begin(ctx context.Context, tail Tail, lastAcked uint64)
	// Send copies m and publishes it in its turn; it blocks where memory is
	// used up.
	Send(ctx context.Context, tx uint64, pos envelope.Position, m *Message) error
	// SendAside is Send for a message that is not live.
	SendAside(ctx context.Context, tx uint64, m *Message, a Aside) error
	// Passed says that the live event at pos is known to be stored, though it
	// was not sent in this session.
	Passed(pos envelope.Position)
	// EachHeader tells visit of the messages behind sequence from.
	EachHeader(ctx context.Context, from uint64, visit func(StoredMessage) error) (last uint64, err error)
	// Wait shows reason as what is waited for, and waits d.
	Wait(ctx context.Context, reason string, d time.Duration)
	// Run publishes until ctx ends, or gives what ends the session.
	Run(ctx context.Context) error
	// Drain waits until all that was sent is stored and Stored was told.
	Drain(ctx context.Context) error
	// Status gives what is known now.
	Status() Status
	// LastAcked is the highest sequence known to have been stored.
	LastAcked() uint64
}

var _ = []Publisher{(*Stream)(nil), (*Lanes)(nil)}

// A publisher is what chain and lanes share: the ways to the stream, what is
// known of it, what Stored is owed, and what is waited for.
type publisher struct {
	cfg          Config
	conn         *Conn
	log          *slog.Logger
	parse        ackParser
	kick         chan struct{}               // wakes Run
	worthTelling func() bool                 // whether who waits is to be woken after Stored was told
	suspect      suspicion                   // Run's alone
	pause        *backoff.ExponentialBackOff // Run's alone

	mu        sync.Mutex
	state     State
	reason    string
	since     time.Time
	templates templates
	created   time.Time // of the stream that is written to
	acked     uint64    // highest sequence known to have been stored
	facts     StreamFacts

	nc      *nats.Conn
	sub     *nats.Subscription
	inbox   string // with a dot at its end
	msg     nats.Msg
	replyTo []byte

	why     *failure // why sending stopped
	cut     bool     // the connection was lost in this round
	changed chan struct{}
	stopErr error

	owed        []StoredRun // to be told to Stored
	owedSpare   []StoredRun
	delivering  bool
	wantTelling int // who wait for the end of delivering

	lastPos     envelope.Position
	lastID      []byte
	lastAside   bool // the last message stored is not live
	storedAt    time.Time
	lastError   string
	lastErrorAt time.Time
	attempts    int
	count       Counters

	troubleSince time.Time // zero while flowing
	reported     string    // the reason that was logged last
	reportedAt   time.Time
}

// A StoredRun are events of one transaction that were stored one after the
// other.
type StoredRun struct {
	// Tx is the transaction's number, N how many events, and Bytes their bodies
	// together.
	Tx       uint64
	N, Bytes int
	// Age is how long after its commit the last of them was known to be
	// stored, by this machine's clock against the database's; 0 where
	// [Message.CommittedAt] was not given.
	Age time.Duration
}

func newPublisher(conn *Conn, cfg Config) publisher {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 64 << 20
	}
	if cfg.AckTimeout <= 0 {
		cfg.AckTimeout = 5 * time.Second
	}
	if cfg.LossConfirm <= 0 {
		cfg.LossConfirm = 10 * time.Second
	}
	if cfg.RetryMost <= 0 {
		cfg.RetryMost = 5 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return publisher{
		cfg: cfg, conn: conn, log: cfg.Logger.With(slog.String("stream", cfg.Stream)), parse: newAckParser(cfg.Stream),
		kick: make(chan struct{}, 1), templates: templates{stream: cfg.Stream}, since: time.Now(),
		pause: newBackOff(50*time.Millisecond, cfg.RetryMost),
	}
}

// LastAcked is the highest sequence known to have been stored.
func (s *publisher) LastAcked() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked
}

var errWaited = errors.New("waited")

// wait gives up the mutex until wake, until ctx ends (whose cause it gives), or
// for at most d, if d is not zero (errWaited).
func (s *publisher) wait(ctx context.Context, d time.Duration) error {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	var timeout <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-changed:
		return nil
	case <-timeout:
		return errWaited
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *publisher) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// drain waits until nothing is held and Stored was told. The mutex is held by
// the caller and given up meanwhile.
func (s *publisher) drain(ctx context.Context, holds func() bool) error {
	for holds() || s.delivering || len(s.owed) > 0 {
		if s.stopErr != nil {
			return s.stopErr
		}
		if err := s.wait(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// setState is the only place where the state changes.
func (s *publisher) setState(state State, reason string) {
	if s.state == state && s.reason == reason {
		return
	}
	s.state, s.reason, s.since = state, reason, time.Now()
	switch {
	case state == StateFlowing || state == StateStopped:
		s.troubleSince = time.Time{}
	case s.troubleSince.IsZero():
		s.troubleSince = s.since
	}
	s.wake()
}

// deliver tells Stored what it is owed. The mutex is held by the caller and
// given up meanwhile. One goroutine delivers at a time, so the order holds.
func (s *publisher) deliver() {
	if s.delivering || len(s.owed) == 0 {
		return
	}
	s.delivering = true
	for len(s.owed) > 0 {
		batch := s.owed
		s.owed = s.owedSpare[:0]
		s.mu.Unlock()
		if s.cfg.Stored != nil {
			for _, r := range batch {
				s.cfg.Stored(r)
			}
		}
		s.mu.Lock()
		s.owedSpare = batch
	}
	s.delivering = false
	if s.wantTelling > 0 || s.worthTelling() {
		s.wake()
	}
}

// told waits until no call of Stored is under way. The mutex is held by the caller
// and given up meanwhile.
func (s *publisher) told(ctx context.Context) error {
	s.wantTelling++
	defer func() { s.wantTelling-- }()
	for s.delivering {
		if err := s.wait(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// owe notes one more stored event. Events of one transaction become one run, so
// that who is told has one thing to do for many.
func (s *publisher) owe(e *entry, now time.Time) {
	n := len(s.owed)
	if n == 0 || s.owed[n-1].Tx != e.tx {
		s.owed = append(s.owed, StoredRun{Tx: e.tx})
		n++
	}
	r := &s.owed[n-1]
	r.N++
	r.Bytes += e.bodyLen
	if e.committed != 0 {
		r.Age = time.Duration(now.UnixMicro()-e.committed) * time.Microsecond
	}
}
