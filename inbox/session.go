package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// A session is one stretch of consuming: from finding out where things stand
// to the first trouble that makes this uncertain, or the stop.
type session struct {
	c       *Consumer
	token   string
	stop    context.Context //nolint:containedctx // Run's own, to tell stopping from trouble
	stream  jetstream.Stream
	source  jetstream.Consumer
	info    *jetstream.ConsumerInfo
	created time.Time // of the stream
	fence   *fence    // nil without an order
	lanes   *lanes
	settled atomic.Bool // whether it came to consume
	// recovered says that all that is undecided is in the lanes.
	recovered atomic.Bool

	// verified is the sequence up to which all is known to be decided.
	verified uint64
	server   string

	mu      sync.Mutex
	excuses map[uint64]uint64 // deliveries by our own doing
}

func newToken() string { return uuid.NewString() }

func newSession(c *Consumer, token string) *session {
	return &session{c: c, token: token, lanes: newLanes(c.cfg.Order == PerAggregate), excuses: map[uint64]uint64{}}
}

// run consumes until ctx ends or something is wrong. All that it starts has
// ended when it returns.
func (s *session) run(ctx context.Context) (err error) {
	s.stop = ctx
	if err := s.open(ctx); err != nil {
		return err
	}
	if s.fence != nil {
		defer func() { s.fence.release(ctx) }()
	}

	// Work goes on for a while after intake has ended.
	work, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	g, work := errgroup.WithContext(work)
	intake, stopIntake := context.WithCancel(work)
	defer stopIntake()
	defer context.AfterFunc(work, func() { s.lanes.close() })()

	beat, stopBeat := context.WithCancel(work)
	defer stopBeat()
	g.Go(func() error {
		select {
		case <-beat.Done():
			return nil
		case <-ctx.Done():
		}
		stopIntake()
		if pause(beat, s.c.cfg.DrainTimeout) == nil {
			end(errDrain)
		}
		return nil
	})
	g.Go(func() error { return s.extend(beat) })
	if s.fence != nil {
		g.Go(func() error { return s.fence.keep(beat) })
	}
	var busy sync.WaitGroup
	for worker := range s.c.cfg.Concurrency {
		busy.Add(1)
		g.Go(func() error { defer busy.Done(); return s.work(work, worker) })
	}
	g.Go(func() error { return s.verify(intake) })
	busy.Add(1)
	g.Go(func() error { defer busy.Done(); return s.requeue(intake, work) })
	g.Go(func() error { return s.clean(intake) })
	g.Go(func() error { return s.lag(intake) })
	g.Go(func() error {
		// First stop taking, then let what runs finish, then hang up.
		defer func() {
			stopIntake()
			s.lanes.close()
			busy.Wait()
			stopBeat()
		}()
		if s.fence != nil {
			if err := s.recoverOrdered(intake); err != nil {
				return errUnless(intake, err)
			}
			s.recovered.Store(true)
			s.lanes.open()
		}
		s.settled.Store(true)
		s.c.trouble.over(intake)
		return s.fetch(intake)
	})
	err = g.Wait()
	s.count()
	if ctx.Err() != nil {
		s.giveBack(ctx)
		if context.Cause(work) == errDrain { //nolint:errorlint // our own, unwrapped
			s.c.log.WarnContext(ctx, "handlers were cut off at the end of the drain timeout")
		}
		return nil
	}
	if s.fence == nil {
		s.giveBack(ctx)
	}
	return err
}

var errDrain = errors.New("the drain timeout is over")

// errUnless gives err, unless it is only that ctx has ended.
func errUnless(ctx context.Context, err error) error {
	if ended(ctx) {
		return nil
	}
	return err
}

func ended(ctx context.Context) bool { return ctx.Err() != nil }

// stopping waits, and says whether the consumer stops instead.
func (s *session) stopping(d time.Duration) bool { return pause(s.stop, d) != nil }

// open finds out where things stand.
func (s *session) open(ctx context.Context) error {
	c := s.c
	if err := c.signatures.load(); err != nil {
		return err
	}
	if err := s.attach(ctx); err != nil {
		return err
	}
	if err := s.register(ctx); err != nil {
		return err
	}
	if c.cfg.Order == PerAggregate {
		f, err := c.takeFence(ctx, s.token)
		if err != nil {
			return err
		}
		s.fence = f
		// What is outstanding is known only now that nobody else consumes.
		if s.info, err = s.source.Info(ctx); err != nil {
			return fmt.Errorf("read the state of JetStream consumer %q: %w", c.cfg.durable(), err)
		}
		if err := s.register(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fetch asks for as many messages as there is room for.
func (s *session) fetch(ctx context.Context) error {
	p := pace{least: s.c.cfg.hand(), most: s.mayWait(), since: time.Now()}
	if limit := s.info.Config.MaxRequestBatch; limit > 0 {
		p.least, p.most = min(p.least, limit), min(p.most, limit)
	}
	for n := 0; !ended(ctx); {
		room := s.lanes.room(ctx, p.hand(s.lanes.count()))
		if room == 0 {
			return nil
		}
		got, err := s.fetchOnce(ctx, room)
		if got > 0 || err == nil {
			n = 0
		}
		switch {
		case ended(ctx):
			return nil
		case err == nil:
			s.c.fetches.over(ctx)
			continue
		}
		if accepting, ok := errors.AsType[*acceptError](err); ok {
			return accepting.error
		}
		if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("JetStream consumer %q is gone: %w", s.c.cfg.durable(), err)
		}
		s.c.fetches.is(ctx, fmt.Errorf("fetch from stream %q: %w", s.c.cfg.Stream, err))
		if _, err := s.source.Info(ctx); errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("JetStream consumer %q: %w", s.c.cfg.durable(), err)
		}
		_ = pause(ctx, troubleDelay(n)) // the loop looks at ctx
		n++
	}
	return nil
}

// acceptError is trouble with a message that has come.
type acceptError struct{ error }

// fetchOnce makes one request, for up to room messages, and takes in what
// comes: nothing is delivered that there is no room for, since only what is in
// the lanes has its ack deadline extended.
func (s *session) fetchOnce(ctx context.Context, room int) (got int, err error) {
	const (
		wait = 10 * time.Second
		beat = 2 * time.Second
	)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	batch, err := s.source.Fetch(room, jetstream.FetchHeartbeat(beat), jetstream.FetchContext(ctx))
	if err != nil {
		return 0, err
	}
	var failed error
	for msg := range batch.Messages() {
		got++
		if failed == nil {
			if failed = s.accept(ctx, msg); failed != nil {
				cancel() // and read on until the fetch has ended
			}
		}
	}
	if failed != nil {
		return got, &acceptError{failed}
	}
	if err := batch.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return got, err
	}
	return got, nil
}

// accept takes one delivered message in.
func (s *session) accept(ctx context.Context, msg jetstream.Msg) error {
	e, err := newEntry(msg, s.c.understand)
	if err != nil {
		s.c.log.WarnContext(ctx, "message that JetStream did not deliver is passed over", slog.Any("err", err))
		return nil
	}
	key := ""
	if s.lanes.ordered {
		key = aggregateKey(e.Message)
		if s.lanes.full(key, s.mayWait(), max(1, s.c.cfg.hand()/8)) && !s.lanes.has(e.seq) {
			return s.park(ctx, e, key)
		}
	}
	s.lanes.add(e, key)
	s.count()
	return nil
}

func (s *session) count() {
	holding, waiting := s.lanes.sizes()
	s.c.count.holding.Store(int64(holding))
	s.c.count.waiting.Store(int64(waiting))
}

// extend keeps the ack deadlines of all that is here, until ctx ends.
func (s *session) extend(ctx context.Context) error {
	wait := s.info.Config.AckWait
	if len(s.info.Config.BackOff) > 0 {
		wait = s.info.Config.BackOff[0]
	}
	t := time.NewTicker(max(wait/3, 10*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		for _, msg := range s.lanes.deliveries() {
			// One that fails is delivered again, and the receipt tells.
			_ = msg.InProgress()
		}
	}
}

// giveBack lets others have at once what was taken and not begun.
func (s *session) giveBack(ctx context.Context) {
	n := 0
	for _, msg := range s.lanes.deliveries() {
		if msg.Nak() == nil {
			n++
		}
	}
	if n > 0 {
		s.c.log.DebugContext(ctx, "messages given back", slog.Int("count", n))
	}
	_ = s.c.cfg.JetStream.Conn().FlushTimeout(time.Second)
}

// excused gives how often a message came again by our own doing.
func (s *session) excused(seq uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.excuses[seq]
}

func (s *session) excuse(seq uint64, done bool) {
	const most = 100_000
	s.mu.Lock()
	defer s.mu.Unlock()
	if done || len(s.excuses) >= most {
		delete(s.excuses, seq)
		return
	}
	s.excuses[seq]++
}
