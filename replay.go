package walrelay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/job"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/router"
)

// replay publishes retained rows again, in the order of the tables' seq, beside
// what is live. Only rows that are delivered are taken: those that the slot has
// yet to send come in their turn.
func (s *session) replay(ctx context.Context, j *job.Job) error {
	r := s.newRepair(j.Kind, j.ID, true)
	defer r.end()
	r.again, r.newID = true, j.Arguments.NewID
	eachSent, err := s.beginJob(ctx, j)
	if err != nil {
		return err
	}
	sent, err := newSeen(ctx, s.cfg.portion(), eachSent)
	if err != nil {
		return err
	}
	more := 0
	if r.newID {
		more = publish.NewIDReserve
	}
	routes, err := s.ownRouter(more)
	if err != nil {
		return err
	}
	taken, err := s.coverage(ctx)
	if err != nil {
		return err
	}
	j.Progress = job.Progress{}
	noted := time.Now()
	chosen := newChoice(s.cfg.Source, &j.Arguments)
	before := 0
	err = s.scanNow(ctx, func(tx pgx.Tx) error {
		if err := s.awaitDelivered(ctx, tx); err != nil {
			return err
		}
		kept, err := keptLetters(ctx, tx, s.cfg, len(j.Arguments.IDs) > 0)
		if err != nil {
			return err
		}
		var was func(*router.Event) bool
		was, before, err = sent.among(ctx, func(ask func(*router.Event) error) error {
			return chosen.each(ctx, tx, s.cfg.Tables, routes, func(_ *reconcile.Row, routed *router.Routed) error { return ask(&routed.Event) })
		})
		if err != nil {
			return err
		}
		return chosen.each(ctx, tx, s.cfg.Tables, routes, func(row *reconcile.Row, routed *router.Routed) error {
			j.Progress.Looked++
			switch {
			case was(&routed.Event):
			case routed.Verdict == router.Unrouted, routed.Verdict == router.Skip, routed.Event.ID == "", kept.has(&routed.Event), !taken.has(routed):
				j.Progress.Skipped++
			default:
				if err := r.publish(ctx, &row.Row, routed); err != nil {
					return err
				}
			}
			if time.Since(noted) < noteEvery {
				return nil
			}
			noted = time.Now()
			r.tell(&j.Progress, before)
			return s.noteJob(ctx, j)
		})
	})
	if err != nil {
		return ofTable(err)
	}
	if err := s.settleJob(ctx, j, r, before); err != nil {
		return err
	}
	return chosen.unmet()
}

// tell writes how far the repair is; before counts what earlier sessions sent.
func (r *repair) tell(p *job.Progress, before int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.Sent, p.Stored = r.sent+int64(before), r.done-r.refused-r.found+int64(before)
	p.Present, p.Refused = r.found, r.refused
}

// settleJob waits until all is stored, and notes how far it is meanwhile.
func (s *session) settleJob(ctx context.Context, j *job.Job, r *repair, before int) error {
	for {
		soon, cancel := context.WithTimeout(ctx, noteEvery)
		err := r.drain(soon)
		cancel()
		r.tell(&j.Progress, before)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if err := s.noteJob(ctx, j); err != nil {
			return err
		}
	}
}

// keptLetters are the events that a replay leaves alone: those of open dead
// letters, for which a requeue is the way, and of discarded ones unless they
// are asked for by their ids.
func keptLetters(ctx context.Context, tx pgx.Tx, cfg *Config, byID bool) (keptEvents, error) {
	kept := keptEvents{}
	err := deadletter.EachKept(ctx, tx, cfg.Schema, cfg.Source, !byID, func(table, id string) {
		kept[keyOf(table, id)] = struct{}{}
	})
	return kept, err
}

// A keptEvents is the events of dead letters, by table and id: as many as there
// are dead letters of an operator to deal with.
type keptEvents map[keyed]struct{}

func (k keptEvents) has(e *router.Event) bool {
	_, kept := k[keyOf(e.Table, e.ID)]
	return kept
}

// A choice says which rows a replay is for.
type choice struct {
	source string
	args   *job.Arguments
	ids    map[string]bool // as asked for; true once a row has it
}

func newChoice(source string, a *job.Arguments) *choice {
	c := &choice{source: source, args: a, ids: map[string]bool{}}
	for _, id := range a.IDs {
		c.ids[id] = false
	}
	return c
}

// each gives the chosen rows of all tables, routed as of now. What it gives is
// valid until the next one.
func (c *choice) each(ctx context.Context, tx pgx.Tx, tables []Table, routes *router.Router, do func(*reconcile.Row, *router.Routed) error) error {
	if c.args.Since.IsZero() && c.args.Until.IsZero() && len(c.args.IDs) == 0 && c.args.AggregateID == "" && c.args.AggregateType == "" {
		return jobFails("a replay names no rows; give --since or --until, --id, or --aggregate")
	}
	var routed router.Routed
	for _, t := range tables {
		table := routerTable(t)
		filter, some, err := c.filter(table)
		if err != nil {
			return err
		}
		if !some {
			continue
		}
		for row, err := range reconcile.Rows(ctx, tx, table, filter) {
			if err != nil {
				return badID(err, table)
			}
			if err := routes.Route(&row.Row, &routed); err != nil {
				return err
			}
			for _, id := range []string{routed.Event.RowID, routed.Event.ID} {
				if _, asked := c.ids[id]; asked {
					c.ids[id] = true
				}
			}
			if err := do(row, &routed); err != nil {
				return err
			}
		}
	}
	return nil
}

// filter is false where the choice names no row of the table.
func (c *choice) filter(t router.Table) (reconcile.RowFilter, bool, error) {
	a := c.args
	f := reconcile.RowFilter{Since: a.Since, Until: a.Until, AggregateType: a.AggregateType, AggregateID: a.AggregateID}
	name := t.Schema + "." + t.Name
	if (!a.Since.IsZero() || !a.Until.IsZero()) && t.Columns.Effective().CreatedAt == "" {
		return f, false, jobFails("table %s has no created_at column, by which its rows were to be chosen; choose by --id or --aggregate", name)
	}
	if len(a.IDs) == 0 {
		return f, true, nil
	}
	f.IDs = []string{}
	for _, id := range a.IDs {
		parsed, err := envelope.ParseMsgID(id)
		switch {
		case err != nil || !strings.Contains(id, ":") || parsed.Source != c.source:
			f.IDs = append(f.IDs, id) // as the column has it
		case parsed.Table == name && parsed.ID != "":
			f.IDs = append(f.IDs, parsed.ID)
		}
	}
	return f, len(f.IDs) > 0, nil
}

// badID explains a value that the column cannot have.
func badID(err error, t router.Table) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "22P02" {
		return jobFails("an id or aggregate is none that table %s.%s can have: %s; give message ids, which name their table, where several tables have ids of different types", t.Schema, t.Name, pg.Message)
	}
	return err
}

// unmet fails a job some of whose ids no row has.
func (c *choice) unmet() error {
	var none []string
	for _, id := range c.args.IDs {
		if !c.ids[id] {
			none = append(none, id)
		}
	}
	const shown = 5
	switch {
	case len(none) == 0:
		return nil
	case len(none) > shown:
		return jobFails("no row has the id of %d of those asked for, such as %s; the others were sent", len(none), strings.Join(none[:shown], ", "))
	}
	return jobFails("no row has the id %s; the others were sent", strings.Join(none, ", "))
}

// A ReplayPlan says what a replay would send.
type ReplayPlan struct {
	Rows    int64            `json:"rows"`    // that are chosen
	Streams map[string]int64 `json:"streams"` // how many of them go where
	Refused int64            `json:"refused"` // of them those that would become or stay dead letters
	Skipped int64            `json:"skipped"` // of them those that no route publishes, and dead letters that are not to be sent
	Oldest  time.Time        `json:"oldest,omitzero"`
}

// A Replay says which rows are to be published again. What is set is joined by
// and.
type Replay struct {
	// Since and Until bound when events were written: at or after Since,
	// before Until.
	Since, Until time.Time
	// IDs are ids of rows as PostgreSQL prints them, or message ids.
	IDs []string
	// AggregateType and AggregateID name one aggregate.
	AggregateType, AggregateID string
}

// PlanReplay says what a replay with the configuration cfg would send. It
// changes nothing and asks PostgreSQL alone.
func PlanReplay(ctx context.Context, cfg Config, which Replay) (*ReplayPlan, error) {
	conn, err := openVerb(ctx, &cfg, "replay")
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	routes, err := newRouter(&cfg)
	if err != nil {
		return nil, err
	}
	plan := &ReplayPlan{Streams: map[string]int64{}}
	chosen := newChoice(cfg.Source, &job.Arguments{
		Since: which.Since, Until: which.Until, IDs: which.IDs, AggregateType: which.AggregateType, AggregateID: which.AggregateID,
	})
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		kept, err := keptLetters(ctx, tx, &cfg, len(which.IDs) > 0)
		if err != nil {
			return err
		}
		return chosen.each(ctx, tx, cfg.Tables, routes, func(row *reconcile.Row, routed *router.Routed) error {
			plan.add(row, routed, kept)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("count what would be sent: %w", err)
	}
	return plan, chosen.unmetPlan()
}

// unmetPlan is unmet before anything is sent.
func (c *choice) unmetPlan() error {
	for _, id := range c.args.IDs {
		if !c.ids[id] {
			return fmt.Errorf("no row has the id %s; walrelay replay sends rows that are still in their table", id)
		}
	}
	return nil
}

func (p *ReplayPlan) add(row *reconcile.Row, routed *router.Routed, kept keptEvents) {
	p.Rows++
	switch {
	case routed.Verdict == router.Unrouted, routed.Verdict == router.Skip, routed.Event.ID == "", kept.has(&routed.Event):
		p.Skipped++
		return
	case routed.Verdict == router.Refused:
		p.Refused++
	default:
		p.Streams[routed.Stream]++
	}
	if created, ok := row.CreatedAt(); ok && (p.Oldest.IsZero() || created.Before(p.Oldest)) {
		p.Oldest = created
	}
}
