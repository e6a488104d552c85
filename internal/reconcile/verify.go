package reconcile

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/witness"
)

const (
	// clockMargin is how far the clocks of PostgreSQL, of NATS and of those who
	// write created_at may be apart where only times can tell.
	clockMargin = time.Hour
	// removalMargin is the same for what a stream has removed.
	removalMargin = 10 * time.Minute
)

// A Config says what is verified.
type Config struct {
	// Connect opens a connection with witness.PinSettings.
	Connect func(context.Context) (*pgx.Conn, error)
	NATS    *nats.Conn
	Domain  string // JetStream's; empty for the default
	// Source, Slot and Schema are the relay's.
	Source, Slot, Schema string
	// Router is the relay's own: tables, routes, form of the message.
	Router router.Config
	// Since leaves out events that were written before; zero leaves out none.
	Since time.Time
	// Retention is how long published rows are kept: a message without a row
	// that is older is no finding. Zero means seven days.
	Retention time.Duration
	// Wait bounds the wait for the slot's confirmed LSN. Zero means 30 s.
	Wait time.Duration
	// Bodies compares bodies byte for byte. Without it streams are read without
	// bodies, and lengths are compared.
	Bodies bool
	// Show is how many findings of each kind are told. Zero means 20.
	Show int
	// Progress is told twice a second how far it is; nil tells nobody.
	Progress func(Progress)
}

// Progress says how far a verification is.
type Progress struct {
	// Phase says in a few words what is waited for.
	Phase string
	// Rows and Messages were read so far; Total is how many messages there are
	// to read, 0 if not known yet.
	Rows, Messages, Total uint64
}

// Verify compares the outbox tables with the streams. What it finds is in the
// report; an error says that it could not be found out.
//
// It takes a snapshot of the tables, waits until the slot's confirmed LSN has
// passed the end of the write-ahead log as of that snapshot, and only then reads
// the streams, up to their ends as of then: every row of the snapshot must be in
// them, or among the dead letters. Where no relay confirms, the newest proven
// snapshot tells which rows were delivered; all others that are nowhere are on
// their way.
//
// Memory does not depend on the number of events: a few tens of megabytes.
// Temporary files take 40 bytes a row and 40 bytes a message.
func Verify(ctx context.Context, cfg Config) (*Report, error) {
	if cfg.Retention <= 0 {
		cfg.Retention = 7 * 24 * time.Hour
	}
	if cfg.Wait <= 0 {
		cfg.Wait = 30 * time.Second
	}
	if cfg.Show <= 0 {
		cfg.Show = 20
	}
	v := &verification{cfg: cfg, hash: newHasher(), rows: &spill{}, letters: &spill{}, events: &spill{}}
	defer v.close(context.WithoutCancel(ctx))
	v.phase.Store("connecting")
	defer v.tell(ctx)()
	if err := v.run(ctx); err != nil {
		return nil, err
	}
	return &v.report, nil
}

// A verification is one run.
type verification struct {
	cfg    Config
	router *router.Router
	hash   *hasher
	clock  clock
	moment
	proof   proof
	epoch   uint32    // the present one
	started time.Time // when the source first ran; zero if not known

	table, side *pgx.Conn // the one holds the snapshot, the other asks
	tx          pgx.Tx

	rows, letters, events *spill
	streams               []*streamReader
	places                []uint32 // OIDs of tables that rows were found in, by number
	oldest                tick     // of the rows
	olderToo              bool     // there are rows from before Since

	report Report

	phase                     atomic.Value
	rowsRead, messages, total atomic.Uint64
}

func (v *verification) close(ctx context.Context) {
	for _, s := range []*spill{v.rows, v.letters, v.events} {
		s.close()
	}
	for _, c := range []*pgx.Conn{v.table, v.side} {
		if c != nil {
			_ = c.Close(ctx)
		}
	}
}

// tell starts to report progress; the function that it gives ends that.
func (v *verification) tell(ctx context.Context) (stop func()) {
	if v.cfg.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				phase, _ := v.phase.Load().(string)
				v.cfg.Progress(Progress{Phase: phase, Rows: v.rowsRead.Load(), Messages: v.messages.Load(), Total: v.total.Load()})
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (v *verification) run(ctx context.Context) (err error) {
	if v.router, err = router.New(v.cfg.Router); err != nil {
		return err
	}
	for _, c := range []**pgx.Conn{&v.table, &v.side} {
		if *c, err = v.cfg.Connect(ctx); err != nil {
			return err
		}
	}
	if v.tx, v.moment, err = begin(ctx, v.table); err != nil {
		return err
	}
	v.clock = newClock(v.at)
	v.report = Report{Source: v.cfg.Source, SnapshotAt: v.at, LSN: v.after.String(), Since: v.cfg.Since, Bodies: v.cfg.Bodies}
	if v.proof, err = newestProven(ctx, v.side, v.cfg.Schema, v.cfg.Source); err != nil {
		return err
	}
	w, err := witness.Read(ctx, v.side, v.cfg.Schema, v.cfg.Source)
	if err != nil {
		return err
	}
	if w.Exists && w.RoutesHash != "" && w.RoutesHash != v.router.Hash() {
		v.note("tables or routes are not those that the relay ran with: what differs may be due to that")
	}
	v.epoch = w.Epoch
	var started *time.Time
	if err := v.side.QueryRow(ctx, `SELECT min(at) FROM `+pgx.Identifier{v.cfg.Schema, "epoch"}.Sanitize()+` WHERE source = $1`, v.cfg.Source).Scan(&started); err != nil {
		return fmt.Errorf("read the epochs of source %q: %w", v.cfg.Source, err)
	}
	if started != nil {
		v.started = *started
	}
	g, within := errgroup.WithContext(ctx)
	g.Go(func() error { return v.readTables(within) })
	g.Go(func() error { return v.readStreams(within) })
	if err := g.Wait(); err != nil {
		return err
	}
	return v.judge(ctx)
}

// readStreams waits for the proof and then reads what must be complete by it.
func (v *verification) readStreams(ctx context.Context) error {
	why, err := confirm(ctx, v.side, v.cfg.Slot, v.after, v.cfg.Wait, func(now envelope.LSN) {
		v.phase.Store(fmt.Sprintf("waiting until the relay has confirmed %v; now %v", v.after, now))
	})
	if err != nil {
		return err
	}
	v.proof.confirmed, v.proof.why = why == "", why
	v.phase.Store("reading")
	if err := v.readLetters(ctx); err != nil {
		return err
	}
	names := v.router.Streams()
	v.report.Streams = make([]StreamReport, len(names))
	for i, name := range names {
		v.report.Streams[i].Name = name
		r := &streamReader{v: v, index: i, report: &v.report.Streams[i], events: v.events, counting: true}
		if err := r.begin(ctx); err != nil {
			return err
		}
		v.total.Add(r.state.State.Messages)
		v.streams = append(v.streams, r)
	}
	var since time.Time
	if !v.cfg.Since.IsZero() {
		since = v.cfg.Since.Add(-clockMargin)
	}
	for _, r := range v.streams {
		if err := r.read(ctx, r.state.State.FirstSeq, since, r.state.State.LastSeq); err != nil {
			return err
		}
		if err := r.end(ctx); err != nil {
			return err
		}
	}
	return nil
}

// readLetters notes which events are dead letters, in whatever state.
func (v *verification) readLetters(ctx context.Context) error {
	rows, err := v.side.Query(ctx, `SELECT event_id FROM `+pgx.Identifier{v.cfg.Schema, "dead_letter"}.Sanitize()+`
		WHERE source = $1 AND event_id IS NOT NULL`, v.cfg.Source)
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	var id string
	var record [recordBytes]byte
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		e := entry{key: v.hash.key(id), of: ofLetter, stream: noStream}
		e.encode(&record)
		return v.letters.add(&record)
	})
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	return nil
}

func (v *verification) readTables(ctx context.Context) error {
	for _, t := range v.cfg.Router.Tables {
		f := RowFilter{Since: v.cfg.Since, Proven: v.proof.snapshot, Unordered: true, Batch: 50_000}
		n, err := v.readTable(ctx, v.tx, t, f, 0)
		if err != nil {
			return err
		}
		v.report.Tables = append(v.report.Tables, TableReport{Name: t.Schema + "." + t.Name, Rows: n})
		if !v.cfg.Since.IsZero() && !v.olderToo {
			for _, err := range Rows(ctx, v.tx, t, RowFilter{Until: v.cfg.Since, Unordered: true, Batch: 1}) {
				if err != nil {
					return err
				}
				v.olderToo = true
				break
			}
		}
	}
	return nil
}

// readTable notes the rows of one table.
func (v *verification) readTable(ctx context.Context, tx pgx.Tx, t router.Table, f RowFilter, flags uint8) (n uint64, err error) {
	var out router.Routed
	var record [recordBytes]byte
	place, table := -1, uint32(0)
	for row, err := range Rows(ctx, tx, t, f) {
		if err != nil {
			return n, err
		}
		n++
		v.rowsRead.Add(1)
		if err := v.router.Route(&row.Row, &out); err != nil {
			return n, err
		}
		if place < 0 || row.Table != table {
			place, table = v.place(row.Table), row.Table
		}
		e := entry{
			key: v.hash.key(out.Event.ID), of: ofRow, flags: flags, stream: noStream, when: v.clock.parse(out.Event.CreatedAt),
			ref: uint64(place)<<48 | uint64(row.TID.Block)<<16 | uint64(row.TID.Offset), //nolint:gosec // places are counted from 0
		}
		if out.StreamIndex >= 0 {
			e.stream = uint16(out.StreamIndex) //nolint:gosec // streams are few
		}
		if row.Proven || row.Xid == 0 && v.proof.snapshot != "" && row.HasCreatedAt && row.CreatedAt.Before(v.proof.at.Add(-clockMargin)) {
			e.flags |= flagProven
		}
		switch out.Verdict {
		case router.Publish:
			e.digest = v.hash.routed(&out, v.cfg.Bodies)
		case router.Skip:
			e.flags |= flagSkip
		case router.Unrouted:
			e.flags |= flagUnrouted
		case router.Refused, router.NotOutbox:
			e.flags |= flagRefused
		}
		if flags&flagNewer == 0 && e.when != 0 && (v.oldest == 0 || e.when < v.oldest) {
			v.oldest = e.when
		}
		e.encode(&record)
		if err := v.rows.add(&record); err != nil {
			return n, err
		}
	}
	return n, nil
}

// place numbers the tables that rows are found in.
func (v *verification) place(oid uint32) int {
	for i, known := range v.places {
		if known == oid {
			return i
		}
	}
	v.places = append(v.places, oid)
	return len(v.places) - 1
}

// judge matches, looks again where a finding could have another reason, and
// fills the report.
func (v *verification) judge(ctx context.Context) error {
	v.phase.Store("comparing")
	m := &matcher{proven: v.proof.confirmed, since: v.judgedSince(), started: v.clock.tick(v.started), limit: v.cfg.Show}
	match := func() error {
		m.removed = m.removed[:0]
		for _, r := range v.streams {
			until := r.removedUntil()
			r.report.RemovedUntil = until
			if !until.IsZero() {
				until = until.Add(removalMargin)
			}
			m.removed = append(m.removed, v.clock.tick(until))
		}
		return m.run(v.rows, v.letters, v.events)
	}
	if err := match(); err != nil {
		return err
	}
	again := false
	if m.out.missing.count > 0 {
		// A row's created_at is what its writer says: look at the rest of the
		// streams before a row is called missing.
		more, err := v.readRest(ctx)
		if err != nil {
			return err
		}
		again = more
	}
	if m.out.unknown.count > 0 {
		if err := v.readNewer(ctx); err != nil {
			return err
		}
		again = true
	}
	if again {
		if err := match(); err != nil {
			return err
		}
	}
	order, err := v.disorder(ctx)
	if err != nil {
		return err
	}
	v.report.JudgedSince = v.clock.time(m.since)
	v.fill(&m.out)
	return v.details(ctx, &m.out, &order)
}

// judgedSince is when an event must have been written for its row to be there
// still: not before the oldest row, not before what retention may have deleted.
func (v *verification) judgedSince() tick {
	if v.oldest == 0 {
		return 0
	}
	since := max(v.oldest, v.clock.tick(v.at.Add(-v.cfg.Retention))) + 1
	if v.olderToo {
		since = v.clock.tick(v.at.Add(-v.cfg.Retention)) + 1
	}
	if !v.cfg.Since.IsZero() {
		since = max(since, v.clock.tick(v.cfg.Since))
	}
	return since
}

// readRest reads what --since left out of the streams.
func (v *verification) readRest(ctx context.Context) (more bool, err error) {
	for _, r := range v.streams {
		first, to := r.state.State.FirstSeq, r.from-1
		if r.from == 0 || to < first {
			continue
		}
		more = true
		from, last := r.from, r.last
		if err := r.read(ctx, first, time.Time{}, to); err != nil {
			return more, err
		}
		if from <= r.state.State.LastSeq {
			r.last = last
		}
	}
	return more, nil
}

// readNewer notes the rows that came after the snapshot: their messages are not
// unknown.
func (v *verification) readNewer(ctx context.Context) error {
	tx, err := v.side.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("take a second snapshot of the outbox: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written
	for _, t := range v.cfg.Router.Tables {
		s, err := describe(ctx, tx, t)
		if err != nil {
			return fmt.Errorf("read table %s: %w", s.relation, err)
		}
		f := RowFilter{Unordered: true}
		switch {
		case s.columns.Xid != "":
			f.NotSeenBy = v.snapshot
		case s.columns.CreatedAt != "":
			f.Since = v.at.Add(-clockMargin)
		}
		if _, err := v.readTable(ctx, tx, t, f, flagNewer); err != nil {
			return err
		}
	}
	return nil
}

// disorder looks at each aggregate of the streams in which positions do not
// only rise.
func (v *verification) disorder(ctx context.Context) (all first, err error) {
	for _, r := range v.streams {
		if !r.disorder {
			continue
		}
		v.phase.Store("looking at the order of stream " + r.report.Name)
		found, err := r.look(ctx)
		if err != nil {
			return all, err
		}
		all.count += found.count
		all.kept = append(all.kept, found.kept...)
	}
	all.trim(v.cfg.Show)
	return all, nil
}

// look reads the stream once more for the order of its aggregates.
func (r *streamReader) look(ctx context.Context) (first, error) {
	again := &streamReader{v: r.v, index: r.index, report: r.report, state: r.state, order: &spill{}}
	defer again.order.close()
	if err := again.read(ctx, max(r.from, r.state.State.FirstSeq), time.Time{}, r.state.State.LastSeq); err != nil {
		return first{}, err
	}
	return disordered(again.order, uint16(r.index), r.v.cfg.Show) //nolint:gosec // streams are few
}

// fill takes over the counts.
func (v *verification) fill(m *matched) {
	r := &v.report
	r.OnTheirWay, r.DeadLettered, r.Skipped, r.Unrouted = m.onTheirWay, m.deadLettered, m.skipped, m.unrouted
	r.NotJudged, r.Replayed, r.NotCompared = m.notJudged, m.replayed, m.notCompared
	for i, gone := range m.gone {
		// No more rows can be among the removed than were removed.
		certain := gone - min(gone, r.Streams[i].Removed)
		r.NotVerifiable += gone - certain
		if certain > 0 {
			r.Missing.Count += certain
			v.note("%d of the missing rows cannot be named: %d rows of stream %s are not there, and it has removed only %d messages",
				certain, gone, r.Streams[i].Name, r.Streams[i].Removed)
		}
	}
	switch {
	case v.proof.confirmed:
		r.Proof = ProofConfirmed
	case v.proof.snapshot != "":
		r.Proof = ProofSnapshot
		v.note("%s: rows that are nowhere count as missing only where the proven snapshot of %s saw them, else as on their way",
			v.proof.why, v.proof.at.UTC().Format(time.RFC3339))
	default:
		r.Proof = ProofNone
		v.note("%s, and there is no proven snapshot: rows that are nowhere count as on their way", v.proof.why)
	}
	if m.beforeStart > 0 {
		v.note("%d of the missing rows were written before source %s first ran, at %s: what was there before its slot was made is sent by a backfill alone",
			m.beforeStart, v.cfg.Source, v.started.UTC().Format(time.RFC3339))
	}
	if m.notJudged > 0 && r.JudgedSince.IsZero() {
		v.note("no row tells from when on rows are kept, so that messages without a row were not judged")
	}
}

func (v *verification) note(format string, args ...any) {
	v.report.Notes = append(v.report.Notes, fmt.Sprintf(format, args...))
}
