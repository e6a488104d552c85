package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
)

const (
	// fetchBytes bounds what the client holds of a stream at a time.
	fetchBytes = 16 << 20
	// stalled is how long a stream may give nothing though its leader has more.
	stalled = time.Minute
	// sizeHeader is how JetStream tells the length of a body that it leaves
	// out.
	sizeHeader = "Nats-Msg-Size"
)

// A streamReader reads one stream up to the end that it had when the reading
// began, and spills what is the source's.
type streamReader struct {
	v      *verification
	index  int
	report *StreamReport
	state  streamState
	events *spill
	order  *spill // nil: not wanted

	// from is the first sequence that was read; those between FirstSeq and it
	// were left out for --since.
	from uint64

	last     uint64    // sequence
	firstAt  time.Time // when the first of the messages that were read was stored
	inside   time.Time // when the newest message that is gone from within was stored, at the latest
	newest   envelope.Position
	disorder bool // a live message came behind one of a later position
	counting bool // the first time over: report counts
}

// begin asks for the stream's end.
func (r *streamReader) begin(ctx context.Context) (err error) {
	if r.state, err = askState(ctx, r.v.cfg.leader(), r.report.Name); err != nil {
		return err
	}
	r.report.FirstSeq, r.report.LastSeq = r.state.State.FirstSeq, r.state.State.LastSeq
	return nil
}

// end asks what the stream has removed up to now: a consumer or time may remove
// messages while they are read.
func (r *streamReader) end(ctx context.Context) error {
	now, err := askState(ctx, r.v.cfg.leader(), r.report.Name)
	if err != nil {
		return err
	}
	if !now.Created.Equal(r.state.Created) {
		return fmt.Errorf("stream %q was made anew while it was read; verify again", r.report.Name)
	}
	r.report.Removed = now.State.Deleted
	if first := max(now.Config.FirstSeq, 1); now.State.FirstSeq > first {
		r.report.Removed += now.State.FirstSeq - first
	}
	return nil
}

// removedUntil says until when what the stream removed was stored, at the
// latest; zero where it removed nothing.
func (r *streamReader) removedUntil() time.Time {
	switch {
	case r.report.Removed == 0:
		return time.Time{}
	case r.firstAt.IsZero(), r.last < r.state.State.LastSeq:
		return r.state.At // its last message is gone
	case !r.inside.IsZero():
		return r.inside
	}
	return r.firstAt // what was before it
}

// read reads the sequences from..to, or from a time on.
func (r *streamReader) read(ctx context.Context, from uint64, since time.Time, to uint64) error {
	if r.state.State.Messages == 0 || to < r.state.State.FirstSeq || from > to || r.state.State.LastTime.Before(since) {
		r.from = to + 1
		return nil
	}
	if r.state.Config.Retention != "" && r.state.Config.Retention != "limits" {
		return r.walk(ctx, from, to)
	}
	r.from, r.last = 0, 0
	cfg := jetstream.OrderedConsumerConfig{HeadersOnly: !r.v.cfg.Bodies, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from}
	if !since.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartSeq, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, 0, &since
	} else {
		r.last, r.from = from-1, from
	}
	js, err := r.v.cfg.jetStream()
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	consumer, err := js.OrderedConsumer(ctx, r.report.Name, cfg)
	if err != nil {
		return fmt.Errorf("read stream %q: %w", r.report.Name, err)
	}
	f := &feed{r: r, to: to, done: make(chan struct{})}
	consuming, err := consumer.Consume(f.take, jetstream.PullMaxBytes(max(fetchBytes, int(2*r.v.cfg.NATS.MaxPayload()))),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { f.trouble(err) }))
	if err != nil {
		return fmt.Errorf("read stream %q: %w", r.report.Name, err)
	}
	err = f.wait(ctx)
	consuming.Stop()
	<-consuming.Closed()
	if err != nil {
		return fmt.Errorf("read stream %q behind message %d: %w", r.report.Name, r.last, err)
	}
	if r.from == 0 {
		r.from = to + 1
	}
	return nil
}

// walk reads message by message from the leader, where a consumer of ours would
// be refused (a work queue) or would hold messages back (interest).
func (r *streamReader) walk(ctx context.Context, from, to uint64) error {
	r.from, r.last = from, from-1
	for {
		m, err := askMessage(ctx, r.v.cfg.leader(), r.report.Name, r.last+1, true)
		if err != nil {
			return err
		}
		if m == nil || m.Seq > to {
			return nil
		}
		if err := r.message(m.Seq, m.Time, m.Subject, m.header, m.Body); err != nil {
			return fmt.Errorf("read stream %q: %w", r.report.Name, err)
		}
		if m.Seq == to {
			return nil
		}
	}
}

// A feed is one consumer's messages. The client calls take from a goroutine of
// its own.
type feed struct {
	r    *streamReader
	to   uint64
	done chan struct{}

	mu    sync.Mutex
	over  bool
	err   error // ends the reading
	heard error // what the client last complained of; it goes on by itself
	idle  bool  // nothing came since the last look
}

func (f *feed) take(msg jetstream.Msg) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	f.idle = false
	meta, err := msg.Metadata()
	if err == nil && meta.Sequence.Stream > f.to {
		f.end(nil)
		return
	}
	if err == nil {
		err = f.r.message(meta.Sequence.Stream, meta.Timestamp, msg.Subject(), msg.Headers(), msg.Data())
	}
	if err != nil || meta.Sequence.Stream == f.to {
		f.end(err)
	}
}

func (f *feed) end(err error) {
	f.over, f.err = true, err
	close(f.done)
}

func (f *feed) trouble(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard = err
	if !f.over && errors.Is(err, jetstream.ErrStreamNotFound) {
		f.end(err)
	}
}

// wait waits for the end. Where nothing comes the leader is asked whether there
// is more: the end itself may have been deleted, and a follower may lag.
func (f *feed) wait(ctx context.Context) error {
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	came := time.Now()
	for {
		select {
		case <-f.done:
			return f.err
		case <-ctx.Done():
			f.stop()
			return ctx.Err()
		case <-look.C:
		}
		f.mu.Lock()
		idle, last, heard := f.idle, f.r.last, f.heard
		f.idle = true
		f.mu.Unlock()
		if !idle {
			came = time.Now()
			continue
		}
		if f.r.from == 0 {
			// Nothing is as young as was asked for. Were something only slow,
			// it would be read with the rest before anything is called missing.
			if time.Since(came) > 3*time.Second {
				f.stop()
				return nil
			}
			continue
		}
		next, err := askMessage(ctx, f.r.v.cfg.leader(), f.r.report.Name, max(last+1, f.r.state.State.FirstSeq), true)
		switch {
		case err == nil && (next == nil || next.Seq > f.to):
			f.stop()
			return nil
		case time.Since(came) > stalled:
			f.stop()
			return errors.Join(errors.New("nothing came for a minute though the stream has more"), heard, err)
		}
	}
}

func (f *feed) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
}

// message takes one message of the stream.
func (r *streamReader) message(seq uint64, at time.Time, subject string, h nats.Header, body []byte) error {
	if r.firstAt.IsZero() || at.Before(r.firstAt) {
		r.firstAt = at
	}
	if r.from == 0 {
		r.from = seq
	} else if seq != r.last+1 && r.last+1 > r.state.State.FirstSeq && at.After(r.inside) {
		r.inside = at
	}
	r.last = seq
	v := r.v
	v.messages.Add(1)
	if r.counting {
		r.report.Read++
	}
	if one(h, envelope.HeaderSource) != v.cfg.Source {
		return nil
	}
	e := entry{of: ofMessage, ref: seq, stream: uint16(r.index)} //nolint:gosec // streams are few
	told := v.told(h, r.index, subject)
	id := told.id
	if told.event != "" && told.event != id {
		e.flags |= flagForced
		id = told.event
	}
	live, err := r.place(h, &told, &e)
	if err != nil {
		return fmt.Errorf("message %d: %w", seq, err)
	}
	if r.counting {
		r.report.Ours++
		if !live {
			r.report.NotLive++
		}
		if told.late == "1" {
			r.report.Late++
		}
	}
	if r.events == nil {
		return nil
	}
	if e.when = v.clock.parse(told.created); e.when == 0 {
		// It does not tell; it was written before it was stored, as a rule not
		// long before.
		e.when = v.clock.tick(at.Add(-clockMargin))
	}
	e.key = v.hash.key(id)
	size := len(body)
	if !v.cfg.Bodies {
		body = nil
		if told.size != "" {
			if size, err = strconv.Atoi(told.size); err != nil {
				return fmt.Errorf("message %d: header %s: %w", seq, sizeHeader, err)
			}
		}
	}
	e.digest = uint64(v.hash.body(told.digest, size, body))
	var record [recordBytes]byte
	e.encode(&record)
	return r.events.add(&record)
}

// A told is what the headers of a message tell: the first value of each, and the
// digest of those that are the row's to decide.
type told struct {
	id, event, origin, position, late, created, size string
	digest                                           digest
}

// told goes through the headers once: to look each of them up takes longer.
func (v *verification) told(h nats.Header, stream int, subject string) (t told) {
	t.digest = v.hash.begin(stream, subject)
	for name, values := range h {
		for _, value := range values {
			t.digest = v.hash.header(t.digest, name, value)
		}
		if len(values) == 0 {
			continue
		}
		switch name {
		case envelope.HeaderMsgID:
			t.id = values[0]
		case envelope.HeaderEventID:
			t.event = values[0]
		case envelope.HeaderOrigin:
			t.origin = values[0]
		case envelope.HeaderPosition:
			t.position = values[0]
		case envelope.HeaderLate:
			t.late = values[0]
		case envelope.HeaderCreatedAt:
			t.created = values[0]
		case sizeHeader:
			t.size = values[0]
		}
	}
	return t
}

// place looks at the message's position: it sees disorder, and messages that are
// newer than the tables' snapshot.
func (r *streamReader) place(h nats.Header, told *told, e *entry) (live bool, err error) {
	live = told.origin == ""
	text := told.position
	if text == "" {
		return live, nil
	}
	p, err := envelope.ParsePosition(text)
	if err != nil {
		return live, nil //nolint:nilerr // not as we write it: the row will differ, or be unknown
	}
	if p.Epoch >= r.v.epoch && p.Commit > r.v.before {
		e.flags |= flagNewer
	}
	if !live || told.late == "1" {
		return live, nil
	}
	if r.newest.Compare(p) >= 0 {
		r.disorder = true
	}
	r.newest = p
	if r.order == nil {
		return live, nil
	}
	return live, r.order.add(orderRecord(r.v.hash, h, e.ref, p))
}

// one is the only value of a header, without the client's canonical forms.
func one(h nats.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}
