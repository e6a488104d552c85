package walrelay

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
)

// scan runs f in a read-only transaction with one snapshot, on a connection of
// its own: it may take long. Where the session has made the slot, the snapshot
// is that of what the slot will not send.
func (s *session) scan(ctx context.Context, f func(pgx.Tx) error) error {
	if s.held != nil {
		return f(s.held)
	}
	return s.scanNow(ctx, f)
}

// scanNow is scan with a snapshot of now.
func (s *session) scanNow(ctx context.Context, f func(pgx.Tx) error) error {
	conn, err := s.cfg.open(ctx, "scan")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// ownRouter is for who routes beside the reader; more is what his messages have
// of headers beside those of any that is not live, in bytes.
func (s *session) ownRouter(more int) (*router.Router, error) {
	r, err := newRouter(s.cfg)
	if err != nil {
		return nil, err
	}
	for _, st := range s.streams {
		r.SetLimits(st.name, router.Limits{
			MaxPayload: s.nats.MaxPayload(), MaxMsgSize: st.limits.MaxMsgSize, HeaderReserve: publish.HeaderReserve(st.name) + s.signReserve() + publish.AsideReserve + more,
		})
	}
	return r, nil
}

// A repair publishes rows of the tables beside the live events.
type repair struct {
	s      *session
	origin string // <kind>/<number>
	ref    uint64 // what the publishers report it by
	late   bool
	parks  bool           // what is of a parked aggregate is parked as well
	router *router.Router // its own, for records

	announced bool // its own goroutine's alone

	again  bool                                           // what was stored and is gone is to be stored again
	newID  bool                                           // each message gets an id of its own
	refuse func(context.Context, deadletter.Letter) error // takes what can never be stored; nil: it becomes a dead letter

	mu      sync.Mutex
	changed chan struct{}
	sent    int64
	done    int64 // of them those that are stored or dead-lettered
	refused int64
	found   int64 // those that a stream had already
}

// asideTx marks what a publisher reports of a repair: no transaction of the
// ledger has such a number.
const asideTx = 1 << 63

// originOf is what a job's messages say of where they come from.
func originOf(kind string, number int64) string { return fmt.Sprintf("%s/%d", kind, number) }

// newRepair gives a repair whose reports reach it until end is called.
func (s *session) newRepair(kind string, number int64, late bool) *repair {
	routes, _ := newRouter(s.cfg) // New has seen that the configuration can be compiled
	r := &repair{s: s, origin: originOf(kind, number), late: late, changed: make(chan struct{}), router: routes}
	r.parks = kind == job.Heal || kind == job.Backfill
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repairs++
	r.ref = asideTx | s.repairs
	if s.repairing == nil {
		s.repairing = map[uint64]*repair{}
	}
	s.repairing[r.ref] = r
	return r
}

func (r *repair) end() {
	if r.announced {
		r.s.asides.Add(-1)
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	delete(r.s.repairing, r.ref)
}

// announce tells the witness, before the first message, that what follows need
// not be live: where a stream lets messages go at once, a later start counts what
// stands behind the witness.
func (r *repair) announce(ctx context.Context) error {
	if r.announced {
		return nil
	}
	r.announced = true
	r.s.asides.Add(1)
	if !r.s.fleeting {
		return nil
	}
	streams := make(map[string]dedup.Known, len(r.s.streams))
	for _, st := range r.s.streams {
		streams[st.name] = st.stored()
	}
	return r.s.write(ctx, 0, streams)
}

// publish sends one row; it waits for room.
func (r *repair) publish(ctx context.Context, row *router.Row, routed *router.Routed) error {
	return r.publishAs(ctx, row, routed, r.late)
}

// publishAs is publish for who knows of the single row whether it is late.
func (r *repair) publishAs(ctx context.Context, row *router.Row, routed *router.Routed, late bool) error {
	s := r.s
	if err := r.announce(ctx); err != nil {
		return err
	}
	r.add(&r.sent, 1)
	letter := func() deadletter.Letter {
		l := letterOfRow(r.router, row, routed)
		l.Late = late
		return l
	}
	recorded, err := false, error(nil)
	if r.parks {
		recorded, err = s.follow(ctx, &routed.Event, letter)
	}
	if !recorded && err == nil && routed.Verdict == router.Refused {
		recorded, err = true, r.rejected(ctx, letter())
	}
	if err != nil {
		return err
	}
	if recorded {
		r.add(&r.refused, 1)
		r.add(&r.done, 1)
		return nil
	}
	m := publish.Message{
		Subject: routed.Message.Subject, Headers: routed.Message.Headers[1:], Body: routed.Message.Body, MsgID: routed.Message.MsgID,
		Table: routed.Event.Table, Key: aggregateKey(&routed.Event),
	}
	if r.newID {
		m.Headers = append(slices.Clone(m.Headers), envelope.Header{Name: envelope.HeaderEventID, Value: m.MsgID})
		m.MsgID = r.wireID(m.MsgID)
	}
	if late {
		s.r.count.late.Add(1)
	}
	st := s.streams[routed.StreamIndex]
	s.traced(ctx, &m, st.name, r.origin, row.Position, time.Time{})
	return st.pub.SendAside(ctx, r.ref, &m, publish.Aside{Origin: r.origin, Late: late, Once: !r.again})
}

// wireID is a new message id for an event. Every attempt of one job has the
// same, so that the stream recognises a second one.
func (r *repair) wireID(event string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(r.s.cfg.Source+"\x00"+r.origin+"\x00"+event)).String()
}

// rejected takes an event that can never be stored as it is.
func (r *repair) rejected(ctx context.Context, l deadletter.Letter) error {
	if r.refuse != nil {
		return r.refuse(ctx, l)
	}
	_, err := r.s.recordRefused(ctx, l)
	return err
}

func (r *repair) add(to *int64, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*to += n
	close(r.changed)
	r.changed = make(chan struct{})
}

// drain waits until everything that was sent is stored or dead-lettered.
func (r *repair) drain(ctx context.Context) error {
	for {
		r.mu.Lock()
		changed, left := r.changed, r.sent-r.done
		r.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

func (r *repair) stored() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done - r.refused
}

// found is told by the publishers of what a stream has already; they hold
// their locks meanwhile.
func (s *session) found(ref uint64) {
	if ref < asideTx {
		return
	}
	if r := s.repairOf(ref); r != nil {
		r.add(&r.found, 1)
	}
}

// repairOf gives the repair that a publisher reports of; nil for one that has
// ended.
func (s *session) repairOf(ref uint64) *repair {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.repairing[ref]
}

// aside tells the repair that the publishers report of.
func (s *session) aside(ref uint64, n int, refused bool) {
	r := s.repairOf(ref)
	if r == nil {
		return
	}
	if refused {
		r.add(&r.refused, int64(n))
	}
	r.add(&r.done, int64(n))
}
