package publish

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/walrelay/walrelay/envelope"
)

// Run keeps the lanes going: it watches for answers that do not come, finds out
// what is stored, and sends again, for ever. It returns nil when ctx ends, or
// what ends the session: a [*GapError], or the error of Refused. When it has
// returned, Stored is not called any more.
func (l *Lanes) Run(ctx context.Context) error {
	return l.serve(ctx, l, func(ctx context.Context) error {
		l.mu.Lock()
		begun := l.state == StateResync
		l.mu.Unlock()
		if !begun {
			return errNotBegun
		}
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return l.keep(ctx) })
		g.Go(func() error { return l.refuseAll(ctx) })
		return g.Wait()
	})
}

func (l *Lanes) keep(ctx context.Context) error {
	for {
		if err := l.recover(ctx); err != nil {
			return err
		}
		for !l.stalled() {
			if err := l.tend(ctx); err != nil {
				return err
			}
			if err := l.rest(ctx); err != nil {
				return err
			}
		}
	}
}

// stalled says whether sending has stopped, and stops it if an answer has not
// come in time.
func (l *Lanes) stalled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		return true
	}
	if n := l.overdue(time.Now(), false); n > 0 {
		l.count.Timeouts += uint64(n)
		l.fail(&failure{
			class: ClassResync, rank: rankConsequence, scope: scopeStream,
			reason: "no acknowledgement within " + l.cfg.AckTimeout.String() + ": the outcome is unknown",
		})
	}
	return !l.open
}

// rest waits until there is something to do.
func (l *Lanes) rest(ctx context.Context) error {
	l.mu.Lock()
	pause := max(l.cfg.AckTimeout/4, time.Millisecond)
	if due := l.holds.due(); !due.IsZero() {
		pause = min(pause, max(time.Until(due), 0))
	}
	held := ""
	if l.open && l.holds.shown != nil {
		held = l.holds.shown.reason
	}
	l.mu.Unlock()
	if held != "" {
		l.report(ctx, held)
	}
	l.resumed(ctx)
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.kick:
	case <-t.C:
	}
	return nil
}

// tend does what needs questions to the stream, while other lanes flow.
func (l *Lanes) tend(ctx context.Context) error {
	if err := l.judge(ctx); err != nil {
		return err
	}
	if err := l.look(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	now := time.Now()
	due := l.holds.due()
	l.mu.Unlock()
	if due.IsZero() || due.After(now) {
		return nil
	}
	// The configuration may be what has changed.
	info, err := l.conn.StreamInfo(ctx, l.cfg.Stream)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && info.Created.Equal(l.created) {
		l.facts = info.Facts
	}
	l.retry(now)
	l.pump()
	return nil
}

// recover returns when messages can be sent again.
func (l *Lanes) recover(ctx context.Context) error {
	if l.stopped(ctx) {
		l.waitFor(ctx)
	}
	for {
		err := l.resync(ctx)
		if err == nil {
			return nil
		}
		if err = l.another(ctx, err); err != nil {
			return err
		}
	}
}

// resync makes sure that the stream has what it acknowledged, and begins to
// send again, with one message first.
func (l *Lanes) resync(ctx context.Context) error {
	l.show(StateResync)
	if _, err := l.subscribe(l.onAcks); err != nil {
		return err
	}
	info, err := l.holdsItsWord(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.facts = info.Facts
	l.end = max(l.acked, info.LastSeq)
	l.overdue(time.Now(), l.cut)
	l.why, l.cut = nil, false
	l.open, l.proven, l.limit = true, false, 1
	l.count.Resyncs++
	if l.held == 0 {
		l.attempts = 0
	}
	l.pump()
	l.assess()
	l.wake()
	return nil
}

// holdsItsWord asks for the stream's end and compares it, and the message at
// the highest sequence acknowledged, with what was acknowledged. The end alone
// says little where others write: they fill up what was lost.
func (l *Lanes) holdsItsWord(ctx context.Context) (StreamInfo, error) {
	acked := l.promised()
	info, err := l.conn.StreamInfo(ctx, l.cfg.Stream)
	if err != nil {
		return StreamInfo{}, err
	}
	if err := l.checkLoss(acked, end{created: info.Created, lastSeq: info.LastSeq}); err != nil {
		return StreamInfo{}, err
	}
	l.mu.Lock()
	seq, created := l.acked, l.created
	top := identity{source: l.cfg.Source, msgID: string(l.lastID), pos: l.lastPos}
	l.mu.Unlock()
	if top.msgID == "" {
		return info, nil
	}
	at, err := l.place(ctx, seq)
	if err != nil {
		return StreamInfo{}, err
	}
	l.mu.Lock()
	same := l.acked == seq // else another message is the top by now
	l.mu.Unlock()
	if at.found && same && !at.identity().sameID(top) {
		return StreamInfo{}, &GapError{
			Stream: l.cfg.Stream, Acked: seq, LastSeq: info.LastSeq, Created: created, CreatedNow: info.Created, Replaced: true,
		}
	}
	return info, nil
}

// judge finds out what duplicate replies mean: the message there is the event
// itself, another one under the same id, or gone.
func (l *Lanes) judge(ctx context.Context) error {
	l.mu.Lock()
	lanes := l.judged.take()
	seqs := make([]uint64, len(lanes))
	for i, ln := range lanes {
		seqs[i] = ln.first.dup
	}
	l.mu.Unlock()
	if len(lanes) == 0 {
		return nil
	}
	places, err := l.places(ctx, seqs)
	if err != nil {
		return l.unread(ctx, lanes, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, ln := range lanes {
		l.sentence(ln, seqs[i], places[seqs[i]])
	}
	l.assess()
	l.pump()
	l.wake()
	l.deliver()
	return nil
}

func (l *Lanes) sentence(ln *lane, seq uint64, at place) {
	p := ln.first
	p.dup = 0
	switch {
	case at.found && at.is(l.cfg.Source, &p.entry):
		l.found(ln, seq)
	case at.found:
		p.fail = &failure{class: ClassPermanent, rank: rankCause, permanent: ReasonIDInUse, reason: l.inUse(at, seq, p.pos)}
		l.settle(ln)
	case p.once, p.maybe && seq > p.floor:
		// Stored by an attempt without answer, and consumed since; or stored
		// at some time, which is enough.
		l.found(ln, seq)
	default:
		l.holdAlone(ln, l.goneReason(p.pos, seq))
	}
}

// found takes out the first message of ln, which was found at seq.
func (l *Lanes) found(ln *lane, seq uint64) {
	l.count.Found++
	if l.cfg.Found != nil && !ln.first.maybe {
		l.cfg.Found(ln.first.tx)
	}
	if !ln.first.aside {
		l.floors.found(ln.first.pos, seq)
	}
	l.stored(ln, seq)
}

// unread deals with lanes about which the stream could not be asked.
func (l *Lanes) unread(ctx context.Context, lanes []*lane, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range lanes {
		l.holdReading(ln, fmt.Sprintf("what stream %q has stored cannot be read: %v", l.cfg.Stream, err))
	}
	l.assess()
	return nil
}

// refuseAll hands over dead letters, one after the other.
func (l *Lanes) refuseAll(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.toRefuse:
		}
		for {
			more, err := l.refuseOne(ctx)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
}

func (l *Lanes) refuseOne(ctx context.Context) (more bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.refused.pop()
	if ln == nil {
		return false, nil
	}
	p := ln.first
	if err := l.handOver(ctx, &p.entry, p.fail.permanent, p.fail.reason); err != nil {
		return false, err
	}
	l.next(ln, false)
	l.assess()
	l.pump()
	l.wake()
	return true, nil
}

// Top gives the last message of our source that ReadTail found, with its
// position and message id; 0 where it found none.
func (l *Lanes) Top() (seq uint64, pos envelope.Position, msgID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.topSeq, l.top.pos, l.top.msgID
}

// ReadTail reads, for as long as it takes, the headers of the messages behind
// sequence from up to the stream's end, and gives the ids of our live events
// among them by position. Events before position since are left out. last is
// the end that was read to. Messages that the stream has removed are not seen.
//
// It is called before Begin, by one who holds the slot, so that nothing of ours
// is added meanwhile. from is what [Lanes.Floor] gave for since, or the
// stream's end of the very first start. An event takes about 150 bytes. each,
// where it is not nil, is told of the headers of every such event.
func (l *Lanes) ReadTail(
	ctx context.Context, from uint64, since envelope.Position, each func(nats.Header, envelope.Position),
) (seen map[envelope.Position]string, last uint64, err error) {
	pause := newBackOff(reconnectFirst, l.cfg.RetryMost)
	seen = map[envelope.Position]string{}
	var most envelope.Position
	var topSeq uint64
	var top identity
	note := func(m StoredMessage) error {
		id := place{msg: m}.identity()
		if id.source == l.cfg.Source && m.Seq > topSeq {
			topSeq, top = m.Seq, id
		}
		if id.source == l.cfg.Source && m.Header.Get(envelope.HeaderOrigin) == "" && !id.pos.IsZero() && id.pos.Compare(since) >= 0 {
			seen[id.pos] = id.msgID
			if each != nil {
				each(m.Header, id.pos)
			}
			if id.pos.Compare(most) > 0 {
				most = id.pos
			}
		}
		return nil
	}
	read := from
	for {
		l.show(StateTail)
		var info StreamInfo
		info, err = l.conn.StreamInfo(ctx, l.cfg.Stream)
		if err == nil {
			last = info.LastSeq
			read, err = l.headers(ctx, info.Facts, read, last, note)
		}
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			l.trouble(ctx, err, pause.NextBackOff())
		}
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.floors.begin(from, most)
	l.read, l.hasRead = read, true
	l.topSeq, l.top = topSeq, top
	return seen, last, nil
}
