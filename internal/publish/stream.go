package publish

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
)

// Config is what a [Stream] needs. Stream and Source have no default.
type Config struct {
	// Stream is the stream's name.
	Stream string
	// Source is what our messages carry as Walrelay-Source.
	Source string
	// Window is the number of messages in flight. A larger one raises
	// throughput a little and lengthens a resync. Zero means 1024.
	Window int
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
	// Stored is told that n more events of transaction tx are stored, in the
	// order they were sent. It is called without locks, by one goroutine at
	// a time; while it blocks, so do acknowledgements. It must not call Run
	// or Drain.
	Stored func(tx uint64, n int)
	// Refused is told of an event that can never be stored. Nothing is in
	// flight behind it, and nothing is sent before it returns: nil says
	// that the dead letter is durable (Stored is not called for it), an
	// error ends Run.
	Refused func(ctx context.Context, r Refused) error
	// Logger gets changes of state. Nil discards.
	Logger *slog.Logger
}

// A Stream publishes to one JetStream stream as a chain. It serves one session:
// Tail, Begin, then Run in its own goroutine and Send from others.
type Stream struct {
	cfg   Config
	conn  *Conn
	log   *slog.Logger
	parse ackParser
	kick  chan struct{} // wakes Run

	mu        sync.Mutex
	state     State
	reason    string
	since     time.Time
	w         window
	templates templates
	limit     int       // messages in flight allowed now
	created   time.Time // of the stream that the chain is on
	acked     uint64    // highest sequence known to have been stored
	baseID    identity  // of the message at w.base, zero if not known
	facts     StreamFacts

	nc      *nats.Conn
	sub     *nats.Subscription
	inbox   string // with a dot at its end
	msg     nats.Msg
	seqBuf  []byte
	replyTo []byte

	why        *failure // why sending stopped
	whyAt      time.Time
	answeredAt time.Time
	cut        bool // the connection was lost in this round
	headSince  time.Time
	changed    chan struct{}
	stopErr    error

	owed       []storedRun // to be told to Stored
	owedSpare  []storedRun
	delivering bool

	lastPos     envelope.Position
	lastID      []byte
	storedAt    time.Time
	lastError   string
	lastErrorAt time.Time
	attempts    int
	count       Counters

	troubleSince time.Time // zero while flowing
	reported     string    // the reason that was logged last
	reportedAt   time.Time
}

type storedRun struct {
	tx uint64
	n  int
}

// New gives a stream that does nothing yet.
func New(conn *Conn, cfg Config) *Stream {
	if cfg.Window <= 0 {
		cfg.Window = 1024
	}
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
	s := &Stream{
		cfg: cfg, conn: conn, log: cfg.Logger, parse: newAckParser(cfg.Stream),
		kick: make(chan struct{}, 1), templates: templates{stream: cfg.Stream}, since: time.Now(),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With(slog.String("stream", cfg.Stream))
	return s
}

// Begin sets where the chain goes on: after tail.LastSeq. lastAcked is the
// highest sequence of this very stream (same creation time) known to have been
// acknowledged, from the witness; 0 if unknown. A lower end is a gap, which Run
// declares. It is called once, before Run.
func (s *Stream) Begin(_ context.Context, tail Tail, lastAcked uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.base = tail.LastSeq
	s.acked = max(tail.LastSeq, lastAcked)
	s.created = tail.Created
	s.facts = tail.Facts
	s.baseID = tail.last
	s.cut = true // nothing in flight to wait for
	s.setState(StateResync, "")
}

// Send copies m and publishes it in its turn. It blocks while the window is
// full (when messages flow) or while the byte bound is; in an outage it queues
// up to that bound, and then waits or gives ErrNoRoom, as Config.GiveWay says. Position is the event's, tx what Stored is told.
func (s *Stream) Send(ctx context.Context, tx uint64, pos envelope.Position, m *Message) error {
	if m.MsgID == "" {
		return errNoID
	}
	size := dataLen(m) + entryBytes
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.roomFor(size) {
		if err := s.wait(ctx, s.cfg.GiveWay); err != nil && !errors.Is(err, errWaited) {
			return err
		}
		if s.cfg.GiveWay > 0 && !s.troubleSince.IsZero() && time.Since(s.troubleSince) >= s.cfg.GiveWay && !s.roomFor(size) {
			return ErrNoRoom
		}
	}
	if s.stopErr != nil {
		return s.stopErr
	}
	e := s.w.push(m, s.templates.find(m.Headers))
	e.tx, e.pos = tx, pos
	s.pump()
	return nil
}

func (s *Stream) roomFor(size int) bool {
	switch {
	case s.stopErr != nil:
		return true // Send gives that error
	case s.w.bytes > 0 && s.w.bytes+size > s.cfg.MaxBytes:
		return false
	default:
		return !s.sending() || s.w.held() < s.cfg.Window
	}
}

// Drain waits until everything sent is stored and Stored was told, or Run has
// returned.
func (s *Stream) Drain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.w.held() > 0 || s.delivering || len(s.owed) > 0 {
		if s.stopErr != nil {
			return s.stopErr
		}
		if err := s.wait(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

var errWaited = errors.New("waited")

// wait gives up the mutex until wake, until ctx ends (whose cause it gives), or
// for at most d, if d is not zero (errWaited).
func (s *Stream) wait(ctx context.Context, d time.Duration) error {
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

func (s *Stream) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// setState is the only place where the state changes.
func (s *Stream) setState(state State, reason string) {
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

func (s *Stream) sending() bool { return s.state == StateFlowing || s.state == StateProbing }

// deliver tells Stored what it is owed. The mutex is held by the caller and
// given up meanwhile. One goroutine delivers at a time, so the order holds.
func (s *Stream) deliver() {
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
				s.cfg.Stored(r.tx, r.n)
			}
		}
		s.mu.Lock()
		s.owedSpare = batch
	}
	s.delivering = false
	if s.w.held() == 0 || !s.sending() {
		s.wake()
	}
}

// headStored moves the head on, which the stream has at its place.
func (s *Stream) headStored(now time.Time) {
	e := s.w.at(s.w.head)
	s.lastPos = e.pos
	s.lastID = append(s.lastID[:0], e.id()...)
	s.storedAt, s.headSince = now, now
	s.baseID = identity{}
	s.owe(e.tx)
	s.w.stored()
	s.acked = max(s.acked, s.w.base)
}

// owe notes one more stored event of transaction tx.
func (s *Stream) owe(tx uint64) {
	if n := len(s.owed); n > 0 && s.owed[n-1].tx == tx {
		s.owed[n-1].n++
		return
	}
	s.owed = append(s.owed, storedRun{tx: tx, n: 1})
}

// known identifies the message at the base.
func (s *Stream) known() identity {
	if s.baseID.msgID != "" || len(s.lastID) == 0 {
		return s.baseID
	}
	return identity{source: s.cfg.Source, msgID: string(s.lastID), pos: s.lastPos}
}
