package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
)

// A session is one life of the replication connection: it opens the
// connections, takes the slot, finds where each stream goes on, and then moves
// events from the reader over the publishers to the ledger until something
// breaks or a stop is asked for. Whatever it knows goes with it: the next
// session starts from PostgreSQL and the streams alone.
//
// Its goroutines: the reader (owns the replication connection's reads, decoder
// and router), the confirmer (owns its writes and the witness), the listener
// (owns one SQL connection), and one publisher a stream.
type session struct {
	r    *Relay
	cfg  *Config
	log  *slog.Logger
	id   uuid.UUID
	nats *publish.Conn

	life   context.Context //nolint:containedctx // what its SQL statements end with, see sqlConn
	repl   *slot.Conn
	sql    *sqlConn
	listen *pgx.Conn

	epoch  uint32
	router *router.Router

	mu      sync.Mutex // guards the ledger: reader and acknowledgements meet there
	ledger  slot.Ledger
	streams []*stream // set once, by open; Status may look before that

	frames    atomic.Uint64 // messages read; the confirmer tells silence from it
	received  atomic.Uint64 // LSN
	confirmed atomic.Uint64 // LSN last told to PostgreSQL
	relayed   atomic.Bool   // reading has begun
	reply     chan struct{} // a status is wanted at once
	broken    atomic.Pointer[error]
	cancel    atomic.Pointer[context.CancelFunc] // ends all goroutines; nil before run
	slotInfo  atomic.Pointer[slotSeen]
	lookNow   chan struct{} // slot and publication are to be looked at
}

// A stream is one stream of the session.
type stream struct {
	name string
	pub  *publish.Stream
	mark atomic.Pointer[dedup.Mark] // nil until its end was read; the reader's own afterwards
	met  atomic.Bool
	base dedup.Known // the stream's end at the start

	limits router.Limits // the reader's own, as is
	facts  publish.StreamFacts
}

// stored is what the stream is known to hold.
func (s *stream) stored() dedup.Known {
	known := s.base
	st := s.pub.Status()
	if st.LastSeq > known.LastSeq {
		known.LastSeq, known.Position, known.MsgID = st.LastSeq, st.Position, st.MsgID
	}
	return known
}

func newSession(r *Relay, conn *publish.Conn) *session {
	id := uuid.New()
	return &session{
		r: r, cfg: &r.cfg, id: id, nats: conn,
		log:   r.log.With(slog.String("session", id.String())),
		reply: make(chan struct{}, 1), lookNow: make(chan struct{}, 1),
	}
}

// run returns nil after a stop in good order, else why the session ended. When
// ctx ends, the reader stops taking WAL, what is in flight is awaited,
// confirmed, and only then does everything hang up; likewise when the reader
// meets what it must not pass. Any other error stops all at once.
func (s *session) run(ctx context.Context) error {
	s.r.count.sessions.Add(1)
	defer s.close()
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s.life = life
	s.cancel.Store(&cancel)
	opening := context.AfterFunc(ctx, cancel)
	if err := s.open(ctx); err != nil {
		return err
	}
	if !opening() {
		return context.Cause(ctx)
	}
	g, work := errgroup.WithContext(life)
	spawn := func(f func() error) {
		g.Go(func() error {
			err := f()
			if err != nil {
				cancel() // no statement is to hold up the end
			}
			return err
		})
	}
	intake, stopIntake := context.WithCancel(work)
	defer context.AfterFunc(ctx, stopIntake)()
	defer context.AfterFunc(intake, s.repl.Interrupt)()
	background, stopBackground := context.WithCancel(work)
	defer stopBackground()

	spawn(func() error { return s.listenLoop(background) })
	spawn(func() error { return s.confirmLoop(background) })
	spawn(func() error { return s.inspectLoop(background) })
	var halted error // why the reading ended where the rest is in order
	spawn(func() error {
		defer stopBackground()
		err := s.relay(intake, func(st *stream) {
			spawn(func() error { return s.noteGap(work, st.pub.Run(background)) })
		})
		switch {
		case work.Err() != nil:
			return err
		case ctx.Err() != nil:
			s.r.state.set(work, StateStopping, "waiting for what is in flight")
		case halts(err):
			halted = err
		default:
			return err
		}
		return s.drain(work)
	})
	err := g.Wait()
	if p := s.broken.Load(); p != nil {
		err = *p
	}
	if err == nil {
		err = s.leave(context.WithoutCancel(ctx))
	}
	if halted != nil {
		return halted
	}
	return err
}

// relay finds where each stream goes on, lets the publishers run, and reads.
func (s *session) relay(ctx context.Context, run func(*stream)) error {
	s.r.state.set(ctx, StateWaiting, "waiting for the end of the streams")
	if err := s.start(ctx); err != nil {
		return err
	}
	for _, st := range s.streams {
		run(st)
	}
	s.relayed.Store(true)
	s.r.state.set(ctx, StateRelaying, "")
	return newReader(s).run(ctx)
}

// drain waits until everything that was handed to the publishers is stored.
func (s *session) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DrainTimeout)
	defer cancel()
	for _, st := range s.streams {
		if st.mark.Load() == nil {
			continue
		}
		if err := st.pub.Drain(ctx); err != nil {
			s.log.WarnContext(ctx, "stopping with messages that are not acknowledged; they will be sent again",
				slog.String("stream", st.name), slog.Duration("drain_timeout", s.cfg.DrainTimeout))
		}
	}
	return nil
}

// leave confirms what is stored and hangs up in good order.
func (s *session) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.confirmLast(ctx); err != nil {
		return fmt.Errorf("confirm at the end: %w", err)
	}
	return s.repl.End(ctx)
}

// list gives the streams to those who may come before open has made them.
func (s *session) list() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// stored is told by the publishers, in the stream's order.
func (s *session) stored(tx uint64, n int) {
	s.r.count.stored.Add(uint64(n)) //nolint:gosec // a count
	s.settle(tx, n)
}

// settle tells the ledger that n events of a transaction are stored or
// recorded.
func (s *session) settle(tx uint64, n int) {
	s.mu.Lock()
	err := s.ledger.Stored(tx, n)
	s.mu.Unlock()
	if err != nil {
		s.fail(err)
	}
}

// fail ends the session for a cause found where no error can be returned.
func (s *session) fail(err error) {
	if !s.broken.CompareAndSwap(nil, &err) {
		return
	}
	if cancel := s.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}

func (s *session) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.repl != nil {
		s.repl.Close()
	}
	if s.sql != nil {
		s.sql.close(ctx)
	}
	if s.listen != nil {
		_ = s.listen.Close(ctx)
	}
}

// known is what must be in a stream: what this process saw stored and what the
// witness remembers, whichever is more.
func (s *session) known(name string, witnessed dedup.Known) dedup.Known {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if own := s.r.acked[name]; own.LastSeq > witnessed.LastSeq {
		return own
	}
	return witnessed
}

// start reads the end of each stream and decides what is to be passed over.
func (s *session) start(ctx context.Context) error {
	witness, err := s.take(ctx)
	if err != nil {
		return err
	}
	info, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	at := dedup.Slot{Confirmed: info.Confirmed, WALEnd: info.ServerWALEnd, Epoch: s.epoch}
	unmet := false
	for _, st := range s.streams {
		tail, err := st.pub.Tail(ctx)
		if err != nil {
			return err
		}
		if problems := publish.Problems(tail.Facts); len(problems) > 0 {
			return chainError(st.name, problems)
		}
		known := s.known(st.name, witness[st.name])
		mark, err := dedup.Start(st.name, markTail(tail), known, at)
		if err != nil {
			return err
		}
		st.base = dedup.Known{Created: tail.Created, LastSeq: tail.LastSeq, Position: mark.Position(), MsgID: tail.MsgID}
		if tail.Gone {
			st.base.MsgID = known.MsgID
		}
		st.facts = tail.Facts
		st.limits = router.Limits{MaxMsgSize: tail.Facts.MaxMsgSize, HeaderReserve: publish.HeaderReserve(st.name)}
		st.pub.Begin(ctx, tail, known.LastSeq)
		st.met.Store(mark.Met())
		st.mark.Store(mark)
		unmet = unmet || !mark.Met()
		s.log.InfoContext(ctx, "stream goes on", slog.String("stream", st.name), slog.Uint64("last_seq", tail.LastSeq),
			slog.String("mark", mark.Position().String()), slog.Bool("mark_met", mark.Met()),
			slog.String("confirmed_lsn", info.Confirmed.String()))
	}
	if unmet {
		s.mu.Lock()
		s.ledger.Hold()
		s.mu.Unlock()
	}
	return nil
}

func markTail(t publish.Tail) dedup.Tail {
	tail := dedup.Tail{
		Created: t.Created, LastSeq: t.LastSeq, Gone: t.Gone, Ours: t.Ours,
		Position: t.Position, MsgID: t.MsgID, Subject: t.Subject,
	}
	if t.Origin != "" {
		// The mark of a message that is not live is another event's position,
		// whose id nobody has noted.
		tail.MsgID = ""
	}
	return tail
}

// lsn is a helper for atomics that hold one.
func lsn(v *atomic.Uint64) envelope.LSN { return envelope.LSN(v.Load()) }

func chainError(name string, problems []publish.Problem) error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = errors.New(p.String())
	}
	return &slot.MisfitError{
		Object: fmt.Sprintf("stream %q", name), Problem: "cannot be written in order",
		Fix: errors.Join(errs...).Error(),
	}
}
