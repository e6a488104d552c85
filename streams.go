package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// A stream is one stream of the session.
//
// One that cannot be started (it is missing, its server is away, its settings
// do not fit) or that has no room for more while nothing flows is left behind:
// the others go on, its further events are left to the next session, and as
// soon as it can be had again this session ends in good order for that next
// one, which the slot sends everything to again.
type stream struct {
	name string
	Stream
	pub  publish.Publisher
	mark mark // what it holds already of what the slot sends again; the reader's own
	met  atomic.Bool
	// limit is what the stream's settings keep us from promising; nil: nothing.
	limit atomic.Pointer[string]
	fill  atomic.Pointer[FillStatus]  // nil: not known
	base  dedup.Known                 // the stream's end at the start
	told  atomic.Pointer[dedup.Known] // the same as the witness may have it
	from  atomic.Uint64               // of a shared stream, see dedup.Known
	// passed is the last event of the stream that was passed over; the
	// reader's own.
	passed    envelope.Position
	overtaken overtaken

	counts  bool        // its last message is gone: the mark counts from what the witness has
	started bool        // Begin was called; set before the reader runs
	behind  atomic.Bool // its events are left to the next session

	cfg    *Config
	limits router.Limits // the reader's own, as is
	facts  publish.StreamFacts
}

// A mark recognises what a stream holds among what the slot sends again: a
// dedup.Mark in a chain, a dedup.Seen in lanes.
type mark interface {
	Met() bool
	Position() envelope.Position
	Pass(pos envelope.Position, id string) error
	Counts(pos envelope.Position) bool
	Stored(pos envelope.Position) bool
	Reached(walEnd envelope.LSN) error
}

// mechanism names how the stream is written to.
func (st *stream) mechanism() string {
	if st.Shared {
		return "lanes"
	}
	return "chain"
}

// stored is what the stream is known to hold, for the witness: how many messages
// and up to which event. Both must belong together, since a later start counts by
// their difference; so as long as the mark is not met it stays what it was.
func (st *stream) stored() dedup.Known {
	known := *st.told.Load()
	if s := st.pub.Status(); st.met.Load() && s.LastSeq > known.LastSeq {
		known.LastSeq, known.MsgID = s.LastSeq, s.MsgID
		if !s.Position.IsZero() {
			known.Position = s.Position
		}
	}
	known.From = max(known.From, st.from.Load())
	return known
}

const (
	// giveWayAfter is how long a stream may be in trouble, with no room left,
	// before the reader goes on without it.
	giveWayAfter = 2 * time.Second
	// startGrace is how long the start waits for the other streams once the
	// first one is there.
	startGrace = 3 * time.Second
	// renewEvery is the least time between two sessions that end only to take
	// up a stream that was left behind.
	renewEvery = 10 * time.Second
)

func (s *session) makeStreams() {
	names := s.router.Streams()
	streams := make([]*stream, 0, len(names))
	for _, name := range names {
		st := &stream{name: name, Stream: s.cfg.stream(name), cfg: s.cfg, overtaken: overtaken{lean: s.cfg.Lean}}
		cfg := publish.Config{
			Stream: name, Source: s.cfg.Source, Window: st.Window, MaxBytes: st.InFlightBytes,
			AckTimeout: s.cfg.AckTimeout, Stored: s.stored, Found: s.found, Refused: s.refusedByServer, SignKey: s.signKey, Logger: s.log,
		}
		cfg.Batching, _ = batching(s.cfg.AtomicBatches) // checked by New
		if len(names) > 1 {
			cfg.GiveWay = giveWayAfter
		}
		if st.Shared {
			st.pub = publish.NewLanes(s.nats, cfg)
		} else {
			st.pub = publish.New(s.nats, cfg)
		}
		st.told.Store(&dedup.Known{}) // nothing is known before start
		streams = append(streams, st)
	}
	s.mu.Lock()
	s.streams = streams
	s.mu.Unlock()
}

// known is what must be in a stream: what this process saw stored and what the
// witness remembers, whichever is more. From where lanes are to be read and what
// needs no reading are always the witness', which has written both at the same
// time: a slot that has fallen back sends again what lies between those of two
// times. Nor can what this process knew of another epoch mislead there.
func (s *session) known(name string, witnessed dedup.Known) dedup.Known {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if own := s.r.acked[name]; own.LastSeq > witnessed.LastSeq {
		own.From, own.Settled = witnessed.From, witnessed.Settled
		return own
	}
	return witnessed
}

// start reads the end of each stream and decides what is to be passed over. It
// waits until one stream is there, and a little for the others.
func (s *session) start(ctx context.Context) error {
	witnessed, err := s.take(ctx)
	if err != nil {
		return err
	}
	info, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	s.resumedAt = info.Confirmed
	at := dedup.Slot{Confirmed: info.Confirmed, WALEnd: info.ServerWALEnd, Epoch: s.epoch, Left: witness.Left(s.epochs)}
	for _, st := range s.streams {
		st.base = s.known(st.name, witnessed[st.name])
		before := st.base
		st.told.Store(&before)
	}
	tails, err := s.tails(ctx)
	if err != nil {
		return err
	}
	unmet := false
	for i, st := range s.streams {
		if tails[i] != nil {
			err = s.begin(ctx, st, *tails[i], at)
		} else {
			st.mark, err = st.remembered(at)
			st.behind.Store(true)
			s.log.WarnContext(ctx, "stream is left behind until it can be had; the others go on", slog.String("stream", st.name),
				slog.String("cause", st.pub.Status().Reason))
		}
		if err != nil {
			return err
		}
		if st.mark.Met() || !st.counts {
			base := st.base
			st.told.Store(&base)
		}
		st.met.Store(st.mark.Met())
		unmet = unmet || !st.mark.Met()
		s.log.InfoContext(ctx, "stream goes on", slog.String("stream", st.name), slog.Uint64("last_seq", st.base.LastSeq),
			slog.String("mark", st.mark.Position().String()), slog.Bool("mark_met", st.mark.Met()), slog.String("mechanism", st.mechanism()),
			slog.String("confirmed_lsn", info.Confirmed.String()))
	}
	if unmet {
		s.mu.Lock()
		s.ledger.Hold()
		s.mu.Unlock()
	}
	if slices.ContainsFunc(s.streams, func(st *stream) bool { return st.started && fleeting(st.facts) }) {
		s.fleeting = true
		s.cover.begin(true)
		s.delivered.begin(s.cfg.portion())
	}
	// From where lanes are to be read again must be known before they hold
	// anything.
	streams := make(map[string]dedup.Known, len(s.streams))
	for _, st := range s.streams {
		streams[st.name] = st.stored()
	}
	return s.write(ctx, 0, streams)
}

// remembered is the mark of a stream whose end cannot be read now.
func (st *stream) remembered(at dedup.Slot) (mark, error) {
	if st.Shared {
		return dedup.NewSeen(st.name, nil, st.base.Settled, at)
	}
	return dedup.Remembered(st.name, st.base, at)
}

// begin lets a stream whose end is known go on behind it.
func (s *session) begin(ctx context.Context, st *stream, tail publish.Tail, at dedup.Slot) error {
	err := s.checkLoss(ctx, st, tail)
	if lost, ok := errors.AsType[*dedup.LostError](err); ok {
		return s.lostEnd(ctx, st, tail, lost)
	}
	if err != nil {
		return err
	}
	if s.stranger && tail.Ours {
		return forgottenBy(s.cfg.Source, st.name, tail)
	}
	known := st.base
	if st.Shared {
		err = s.beginLanes(ctx, st, tail, at)
	} else {
		err = s.beginChain(ctx, st, &tail, at)
	}
	if err != nil {
		return err
	}
	st.facts = tail.Facts
	if setting, removes := tail.Facts.Removes(); removes && st.Shared {
		limit := fmt.Sprintf("the stream lets messages go (%s): an event whose outcome is unknown for longer than its duplicate window of %v can be stored twice",
			setting, tail.Facts.DuplicateWindow)
		st.limit.Store(&limit)
	}
	st.limits = router.Limits{MaxMsgSize: tail.Facts.Largest(), HeaderReserve: publish.HeaderReserve(st.name) + s.signReserve()}
	if st.Shared {
		st.limits.HeaderReserve += publish.LateReserve
	}
	st.pub.Begin(ctx, tail, known.LastSeq)
	st.started = true
	return nil
}

func (s *session) beginChain(ctx context.Context, st *stream, tail *publish.Tail, at dedup.Slot) error {
	known := st.base
	if err := s.passPhantoms(ctx, st, tail, at); err != nil {
		return err
	}
	mark, err := dedup.Start(st.name, markTail(*tail), known, at)
	if err != nil {
		return err
	}
	st.mark = mark
	st.base = dedup.Known{Created: tail.Created, LastSeq: tail.LastSeq, Position: mark.Position(), MsgID: tail.MsgID, Epoch: s.epoch}
	if tail.Gone {
		st.base.MsgID = known.MsgID
		st.counts = true
	}
	tail.Position = mark.Position()
	return nil
}

// beginLanes looks which events the stream holds of those that the slot may
// send again. Where nobody remembers the stream, it holds none.
func (s *session) beginLanes(ctx context.Context, st *stream, tail publish.Tail, at dedup.Slot) error {
	from, settled := st.base.From, st.base.Settled
	if st.base.Created.IsZero() {
		from, settled = tail.LastSeq, envelope.Position{}
	}
	lanes := st.pub.(*publish.Lanes) //nolint:forcetypeassert,errcheck // a shared stream has nothing else
	seen, last, err := lanes.ReadTail(ctx, from, settled, st.overtaken.note)
	if err != nil {
		return err
	}
	if st.mark, err = dedup.NewSeen(st.name, seen, settled, at); err != nil {
		return err
	}
	if err := s.listSeen(ctx, st, seen, at); err != nil {
		return err
	}
	st.from.Store(from)
	known := st.base
	st.base = dedup.Known{Created: tail.Created, LastSeq: last, From: from, Settled: settled, Position: known.Position, Epoch: s.epoch}
	// A message of ours tells a later loss that others fill up.
	if seq, pos, id := lanes.Top(); seq >= known.LastSeq && seq > 0 {
		st.base.LastSeq, st.base.Position, st.base.MsgID = seq, pos, id
	} else if known.MsgID != "" {
		st.base.LastSeq, st.base.MsgID = known.LastSeq, known.MsgID
	}
	return nil
}

// tails reads the ends of all streams at the same time; nil for those that
// could not be had in time.
func (s *session) tails(ctx context.Context) ([]*publish.Tail, error) {
	type found struct {
		i    int
		tail publish.Tail
		err  error
	}
	asking, enough := context.WithCancel(ctx)
	results := make(chan found, len(s.streams))
	for i, st := range s.streams {
		go func() {
			tail, err := st.tail(asking)
			results <- found{i: i, tail: tail, err: err}
		}()
	}
	tails := make([]*publish.Tail, len(s.streams))
	var late <-chan time.Time
	for range s.streams {
		select {
		case f := <-results:
			if f.err != nil && asking.Err() == nil {
				enough()
				return nil, f.err
			}
			if f.err != nil {
				continue
			}
			tails[f.i] = &f.tail
			if late == nil {
				grace := time.NewTimer(startGrace)
				defer grace.Stop()
				late = grace.C
			}
			continue
		case <-late:
		}
		enough() // those that are still asking give up, and say so
		f := <-results
		if f.err == nil {
			tails[f.i] = &f.tail
		}
	}
	enough()
	return tails, ctx.Err()
}

// tail asks until the stream is there and can be written to.
func (st *stream) tail(ctx context.Context) (publish.Tail, error) {
	for {
		tail, err := st.pub.Tail(ctx)
		if err != nil {
			return tail, err
		}
		problems := streamProblems(st.cfg, st.Stream, tail.Facts)
		if len(problems) == 0 {
			return tail, nil
		}
		st.pub.Wait(ctx, chainError(st.name, problems).Error(), 5*time.Second)
	}
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

// errRenew ends a session in good order so that the next one, which begins at
// once, does what this one cannot: take up a stream, or heal a gap.
var errRenew = errors.New("a new session is to begin")

// catchUp waits until a stream that was left behind can be had, then asks for
// a new session. It returns when ctx ends.
func (s *session) catchUp(ctx context.Context, st *stream) {
	if st.started {
		if err := st.pub.Drain(ctx); err != nil {
			return // Run has ended, or the session has
		}
	} else if _, err := st.tail(ctx); err != nil {
		return
	}
	s.r.wait(ctx, time.Until(s.r.renewedAt().Add(renewEvery)))
	if ctx.Err() != nil {
		return
	}
	s.renew(ctx, fmt.Sprintf("stream %q can be had again", st.name))
}

// leaveBehind lets the reader go on without a stream.
func (s *session) leaveBehind(ctx context.Context, st *stream) {
	if st.behind.Swap(true) {
		return
	}
	s.log.WarnContext(ctx, "stream is left behind: it is in trouble and has no room for more; the others go on",
		slog.String("stream", st.name), slog.String("cause", st.pub.Status().Reason), slog.Int("bytes", st.InFlightBytes))
	s.spawn(func() error { s.catchUp(ctx, st); return nil })
}

// owe leaves an event of the open transaction to the next session.
func (s *session) owe(ctx context.Context, st *stream) {
	s.r.count.left.Add(1)
	s.mu.Lock()
	first := !s.ledger.Owes()
	s.ledger.Owe()
	s.mu.Unlock()
	if first {
		s.log.WarnContext(ctx, "nothing is confirmed from here on until the stream can be had: the slot keeps the write-ahead log",
			slog.String("stream", st.name))
	}
}

// drain waits until everything that was handed to the publishers is stored. A
// session that is only renewed does not wait for those in trouble.
func (s *session) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DrainTimeout)
	defer cancel()
	g := new(errgroup.Group)
	for _, st := range s.streams {
		status := st.pub.Status()
		if !st.started || s.renewal.Load() && !status.Healthy() {
			continue
		}
		g.Go(func() error {
			if err := st.pub.Drain(ctx); err != nil {
				s.log.WarnContext(ctx, "stopping with messages that are not acknowledged; they will be sent again",
					slog.String("stream", st.name), slog.Duration("drain_timeout", s.cfg.DrainTimeout))
			}
			return nil
		})
	}
	return g.Wait()
}

// lsn is a helper for atomics that hold one.
func lsn(v *atomic.Uint64) envelope.LSN { return envelope.LSN(v.Load()) }
