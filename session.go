package walrelay

import (
	"context"
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
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
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

	signKey     *envelope.Key // nil: messages are not signed
	signKeyText []byte

	life   context.Context //nolint:containedctx // what its SQL statements end with, see sqlConn
	repl   *slot.Conn
	sql    *sqlConn
	listen *pgx.Conn

	epoch  uint32          // of now
	epochs []witness.Epoch // oldest first, that of now is the last
	begins *witness.Epoch  // that of now where this session is its first; nil once it is noted
	router *router.Router
	leaves bool // partitions come under their own names
	// published is the version of the publication that was found to be in order.
	published string

	mu      sync.Mutex // guards the ledger: reader and acknowledgements meet there
	ledger  slot.Ledger
	streams []*stream // set once, by open; Status may look before that

	frames       atomic.Uint64          // messages read; the confirmer tells silence from it
	received     atomic.Uint64          // LSN
	confirmed    atomic.Uint64          // LSN last told to PostgreSQL
	relayed      atomic.Bool            // reading has begun
	paused       atomic.Pointer[string] // why nothing is to be delivered; nil: it is
	holding      atomic.Pointer[string] // what else the reader waits for; nil: nothing
	reply        chan struct{}          // a status is wanted at once
	broken       atomic.Pointer[error]
	cancel       atomic.Pointer[context.CancelFunc] // ends all goroutines; nil before run
	slotInfo     atomic.Pointer[slotSeen]
	progress     progress
	withheld     atomic.Pointer[string] // whom PostgreSQL waits for, as of the last look; empty or nil for nobody
	withheldSaid bool                   // in the log; of inspectLoop alone
	lookNow      chan struct{}          // slot and publication are to be looked at
	jobsNow      chan struct{}          // something was asked for

	taken      map[string]dedup.Known // what the witness remembered when this session took it; nil before
	stranger   bool                   // it remembered no stream: no relay of this source ever started here
	heldConn   *pgx.Conn              // of held
	held       pgx.Tx                 // sees exactly what a slot made in this session will not send; nil: none was made
	backfillOf string                 // its snapshot
	backfillAt envelope.LSN
	fleeting   bool // a stream lets messages go at once; set by start
	cover      cover
	delivered  delivery
	gapOpen    atomic.Bool   // nothing is proven while a gap is open
	dropWait   time.Duration // of the next drop of a partition; the retention's alone
	asides     atomic.Int32  // repairs that may have sent something
	repairs    uint64        // guarded by mu, as is repairing
	repairing  map[uint64]*repair
	parking    parking
	resumedAt  envelope.LSN // from where on the slot sends

	untold   []int64   // open gaps whose rows only the audit can tell; the reader's, until that begins
	awaiting []job.Job // heals that are done once it has; as before, then the prover's
	seenJob  int64     // newest job that was open when the gaps were looked at; the reader's, then the job loop's

	renewal    atomic.Bool // the session ends so that the next one takes up a stream
	stopIntake context.CancelFunc
	spawn      func(func() error) // starts a goroutine that the session waits for
}

func newSession(r *Relay, conn *publish.Conn) *session {
	id := uuid.New()
	return &session{
		r: r, cfg: &r.cfg, id: id, nats: conn,
		log:   r.log.With(slog.String("session", id.String())),
		reply: make(chan struct{}, 1), lookNow: make(chan struct{}, 1), jobsNow: make(chan struct{}, 1),
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
	s.spawn = func(f func() error) {
		g.Go(func() error {
			err := f()
			if err != nil {
				cancel() // no statement is to hold up the end
			}
			return err
		})
	}
	intake, stopIntake := context.WithCancel(work)
	s.stopIntake = stopIntake
	defer context.AfterFunc(ctx, stopIntake)()
	defer context.AfterFunc(intake, s.repl.Interrupt)()
	background, stopBackground := context.WithCancel(work)
	defer stopBackground()

	s.spawn(func() error { return s.listenLoop(background) })
	s.spawn(func() error { return s.confirmLoop(background) })
	s.spawn(func() error { return s.inspectLoop(background) })
	s.spawn(func() error { return s.pauseLoop(background) })
	s.spawn(func() error { return s.fillLoop(background) })
	var halted error // why the reading ended where the rest is in order
	s.spawn(func() error {
		defer stopBackground()
		err := s.relay(intake, func(st *stream) {
			if st.started {
				s.spawn(func() error { return s.noteGap(work, st.pub.Run(background)) })
			} else {
				s.spawn(func() error { s.catchUp(intake, st); return nil })
			}
		})
		stopIntake() // who works beside the reader ends with it
		switch {
		case work.Err() != nil:
			return err
		case ctx.Err() != nil:
			s.r.state.set(work, StateStopping, "waiting for what is in flight")
		case s.renewal.Load() && err == nil:
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
	switch {
	case halted != nil:
		return halted
	case err == nil && s.renewal.Load() && ctx.Err() == nil:
		return errRenew
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
	r := newReader(s)
	if err := r.recall(ctx); err != nil { // until then nothing can be delivered
		return err
	}
	s.r.state.set(ctx, StateRelaying, "")
	return r.run(ctx)
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
func (s *session) stored(run publish.StoredRun) {
	if run.Tx >= asideTx {
		s.aside(run.Tx, run.N, false)
		return
	}
	s.r.count.stored.Add(uint64(run.N))          //nolint:gosec // a count
	s.r.count.storedBytes.Add(uint64(run.Bytes)) //nolint:gosec // a count
	s.r.count.latency.add(run.Age, run.N)
	s.settle(run.Tx, run.N)
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
	s.letGo(ctx)
	s.delivered.end()
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
