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

func (v *verification) note(format string, args ...any) {
	v.report.Notes = append(v.report.Notes, fmt.Sprintf(format, args...))
}
