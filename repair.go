package walrelay

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/witness"
)

// keyed is an id's hash: sets of ids are kept as these, 16 bytes each, however
// long the ids are. Two ids do not share one in the life of a database.
type keyed [16]byte

func keyOf(parts ...string) keyed {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00"))) // which no text of PostgreSQL's holds
	return keyed(sum[:16])
}

// A finding is what a look through the outbox tables gave.
type finding struct {
	looked, missing int64
	oldest          time.Time // of the missing ones; zero where no row tells
}

// A present says which events need no repair: those in a stream, in any, and
// those among the dead letters, in whatever state.
type present map[keyed]struct{}

func (p present) has(e *router.Event) bool {
	_, stored := p[keyOf(e.ID)]
	_, dead := p[keyOf(e.Table, e.ID)]
	return stored || dead
}

// add notes an event by its message id.
func (p present) add(id string) { p[keyOf(id)] = struct{}{} }

// present reads the streams from where they are to be looked through, and the
// dead letters. Streams that only earlier routes had are looked through as
// well.
func (s *session) present(ctx context.Context, from map[string]uint64) (present, error) {
	p := s.delivered.copy()
	note := func(m publish.StoredMessage) error {
		if m.Header.Get(envelope.HeaderSource) == s.cfg.Source {
			p.add(m.Header.Get(envelope.HeaderMsgID))
			if id := m.Header.Get(envelope.HeaderEventID); id != "" {
				p.add(id)
			}
		}
		return nil
	}
	looked := map[string]bool{}
	for _, st := range s.streams {
		looked[st.name] = true
		if _, err := st.pub.EachHeader(ctx, from[st.name], note); err != nil {
			return nil, fmt.Errorf("look through stream %q: %w", st.name, err)
		}
	}
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT "table", event_id FROM `+pgx.Identifier{s.cfg.Schema, "dead_letter"}.Sanitize()+`
			WHERE source = $1 AND event_id IS NOT NULL`, s.cfg.Source)
		if err != nil {
			return err
		}
		var table, id string
		_, err = pgx.ForEachRow(rows, []any{&table, &id}, func() error {
			p[keyOf(table, id)] = struct{}{}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look through the dead letters: %w", err)
	}
	// Streams that only earlier routes had: the last proof and the witness, as
	// this session found it, name them.
	earlier := map[string]bool{}
	for name := range from {
		earlier[name] = true
	}
	for name := range s.taken {
		earlier[name] = true
	}
	for name := range earlier {
		if looked[name] {
			continue
		}
		old := publish.New(s.nats, publish.Config{Stream: name, Source: s.cfg.Source, Logger: s.log})
		_, err := old.EachHeader(ctx, from[name], note)
		if gone, ok := errors.AsType[*publish.APIError](err); ok && gone.NotFound() {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look through stream %q, which earlier routes had: %w", name, err)
		}
	}
	return p, nil
}

// marginOfClock is added where rows can be told by created_at alone: a
// transaction may have begun that long before it committed.
const marginOfClock = time.Hour

// missing gives each row that a gap is about and that is not present, routed as of
// now, in the order of the table's seq. What it gives is valid until the next
// one.
func (s *session) missing(ctx context.Context, tx pgx.Tx, d witness.GapDetail, have present, routes *router.Router, out *finding,
	each func(row *reconcile.Row, routed *router.Routed) error,
) error {
	for _, t := range s.cfg.Tables {
		table := router.Table{Schema: t.Schema, Name: t.Name, Columns: router.Columns(t.Columns)}
		exact, err := hasXid(ctx, tx, table)
		if err != nil {
			return err
		}
		filter := reconcile.RowFilter{SeenBy: d.Seen, NotSeenBy: d.NotSeen}
		if !exact {
			filter = reconcile.RowFilter{}
			if !d.Since.IsZero() && table.Columns.Effective().CreatedAt != "" {
				filter.Since = d.Since.Add(-marginOfClock)
			}
		}
		var routed router.Routed
		for row, err := range reconcile.Rows(ctx, tx, table, filter) {
			if err != nil {
				return err
			}
			if !exact && tx != s.held && younger(row, d.Until) {
				continue // the slot has yet to send it
			}
			out.looked++
			if err := routes.Route(&row.Row, &routed); err != nil {
				return err
			}
			switch routed.Verdict {
			case router.Publish, router.Refused:
			case router.Skip, router.Unrouted, router.NotOutbox:
				continue
			}
			if routed.Event.ID == "" || have.has(&routed.Event) {
				continue // without an id nobody can tell whether it was recorded
			}
			out.missing++
			if row.HasCreatedAt && (out.oldest.IsZero() || row.CreatedAt.Before(out.oldest)) {
				out.oldest = row.CreatedAt
			}
			if err := each(row, &routed); err != nil {
				return err
			}
		}
	}
	return nil
}

// younger says whether a row was written after a gap was found. A time in the
// future is somebody's own, and tells nothing.
func younger(row *reconcile.Row, until time.Time) bool {
	return !until.IsZero() && row.HasCreatedAt && row.CreatedAt.After(until) && row.CreatedAt.Before(time.Now().Add(time.Minute))
}

func hasXid(ctx context.Context, tx pgx.Tx, t router.Table) (bool, error) {
	column := t.Columns.Effective().Xid
	if column == "" {
		return false, nil
	}
	var has bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = $3 AND NOT a.attisdropped)`, t.Schema, t.Name, column).Scan(&has)
	return has, err
}

// errLimit ends a count that has seen enough.
var errLimit = errors.New("more than the limit")

// count says how many events of a gap are missing, up to a limit.
func (s *session) count(ctx context.Context, d witness.GapDetail, limit int64) (found finding, err error) {
	err = s.scan(ctx, func(tx pgx.Tx) error {
		found, err = s.countIn(ctx, tx, d, limit)
		return err
	})
	return found, err
}

// countIn does so as a transaction sees the tables.
func (s *session) countIn(ctx context.Context, tx pgx.Tx, d witness.GapDetail, limit int64) (finding, error) {
	var found finding
	have, err := s.present(ctx, d.From)
	if err != nil {
		return found, err
	}
	routes, err := s.ownRouter(0)
	if err != nil {
		return found, err
	}
	err = s.missing(ctx, tx, d, have, routes, &found, func(*reconcile.Row, *router.Routed) error {
		if found.missing > limit {
			return errLimit
		}
		return nil
	})
	if errors.Is(err, errLimit) {
		err = nil
	}
	return found, err
}

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
	cfg, err := s.cfg.postgres(s.cfg.DatabaseURL, "scan")
	if err != nil {
		return err
	}
	conn, err := openSQL(ctx, cfg)
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
			MaxPayload: s.nats.MaxPayload(), MaxMsgSize: st.limits.MaxMsgSize, HeaderReserve: publish.HeaderReserve(st.name) + publish.AsideReserve + more,
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

// newRepair gives a repair whose reports reach it until end is called.
func (s *session) newRepair(kind string, number int64, late bool) *repair {
	routes, _ := newRouter(s.cfg) // New has seen that the configuration can be compiled
	r := &repair{s: s, origin: fmt.Sprintf("%s/%d", kind, number), late: late, changed: make(chan struct{}), router: routes}
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
	s := r.s
	if err := r.announce(ctx); err != nil {
		return err
	}
	r.add(&r.sent, 1)
	letter := func() deadletter.Letter { return letterOfRow(r.router, row, routed) }
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
	return s.streams[routed.StreamIndex].pub.SendAside(ctx, r.ref, &m, publish.Aside{Origin: r.origin, Late: r.late, Once: !r.again})
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

// aggregateKey joins type and id so that no two aggregates share one.
func aggregateKey(e *router.Event) string { return e.AggregateType + "\x00" + e.AggregateID }
