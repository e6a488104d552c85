package faults_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// drill makes the plan's world, does to it what the plan says, and demands that
// the promise held.
func drill(t *testing.T, p *plan) {
	t.Helper()
	began := time.Now()
	v := &verdict{Seed: p.seed, Plan: p.String()}
	defer func() { v.report(t, time.Since(began)) }()
	s := newStage(t, p)
	defer s.keepLogs()
	defer s.stopBeside()
	if p.first {
		s.existBefore()
	}
	s.begin()
	honest := &witness{s: s}
	stop := s.beside(honest.watch)
	s.settle("the start")
	if p.kind == synced { // as doctor demands of who relies on it
		if err := s.awaitCopy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range p.acts {
		s.perform(a, v)
		if t.Failed() {
			return
		}
	}
	s.load.Stop()
	s.settle("the end of the workload")
	s.awaitWhole()
	v.judge(s)
	stop()
	lies, looks := honest.found()
	for _, lie := range lies {
		v.fault("I10: %s", lie)
	}
	if looks == 0 {
		v.fault("the relay never was ready: the drill drilled nothing")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !s.ready(ctx) {
		if rest(ctx, 50*time.Millisecond); ctx.Err() != nil {
			v.fault("I10: the relay is not ready when all is settled")
			break
		}
	}
	for _, f := range v.Faults {
		t.Error(f)
	}
}

// beside runs something until stopBeside or stop is called.
func (s *stage) beside(run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	s.besides = append(s.besides, stop)
	return stop
}

// stopBeside ends all that runs beside the faults. It comes before the clean-up,
// in which the relays and servers of a later world go first.
func (s *stage) stopBeside() {
	for _, stop := range s.besides {
		stop()
	}
}

// existBefore undoes what migrate did about the slot, and writes what the first
// start is to send.
func (s *stage) existBefore() {
	s.t.Helper()
	s.world.Exec("SELECT pg_drop_replication_slot($1)", s.world.Source)
	s.world.Exec("DELETE FROM walrelay.proven")
	s.world.Exec("INSERT INTO e2e.aggregate SELECT 'a' || i FROM generate_series(1, 12) AS i ON CONFLICT DO NOTHING")
	for range 10 {
		s.world.Exec("SELECT e2e.place(gen_random_uuid(), 'a' || (1 + i % 12), 'placed', '') FROM generate_series(1, 100) AS i")
	}
}

// perform injects the faults of an act, takes them back, and waits until the
// system goes on.
func (s *stage) perform(a act, v *verdict) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 4*patience)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(a))
	names := make([]string, len(a))
	for i, m := range a {
		names[i] = m.name
		wg.Go(func() { errs[i] = s.inject(ctx, &m, v) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			v.fault("%s: %v", a[i].name, err)
			s.t.Errorf("the fault %q cannot be had: %v", a[i].name, err)
			return
		}
	}
	s.settle(strings.Join(names, " + "))
	s.t.Logf("after %s: settled at %.1f s", strings.Join(names, " + "), v.since().Seconds())
}

func (s *stage) inject(ctx context.Context, m *moment, v *verdict) error {
	rest(ctx, m.after)
	from := v.since()
	if err := m.inject(ctx, s); err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	if m.mend != nil {
		rest(ctx, m.lasts)
		if err := m.mend(ctx, s); err != nil {
			return fmt.Errorf("mend: %w", err)
		}
	}
	v.injected(m.name, from)
	return nil
}

// mostPatience is for what goes on, if slowly: a machine that does other work as
// well is no fault.
const mostPatience = 5 * patience

// settle waits until everything that is written by now is stored and confirmed,
// as long as the confirmed LSN moves.
func (s *stage) settle(after string) {
	s.t.Helper()
	confirmed := func() (envelope.LSN, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
		defer cancel()
		return s.now().Confirmed(ctx)
	}
	last, _ := confirmed() // the server may be away
	for began := time.Now(); ; {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
		err := s.now().Settled(ctx)
		cancel()
		if err == nil || s.t.Failed() {
			return
		}
		now, failed := confirmed()
		if failed != nil || now <= last || time.Since(began) > mostPatience {
			s.t.Errorf("after %s: not settled after %s, and nothing moved for %s: %v", after, time.Since(began).Round(time.Second), patience, err)
			return
		}
		last = now
	}
}

// awaitWhole waits until nothing is open any more: gaps, jobs, parked letters,
// and rows that no proof covers; as long as they become fewer.
func (s *stage) awaitWhole() {
	s.t.Helper()
	w := s.now()
	for what, sql := range map[string]string{
		"gaps are open":           `SELECT count(*) FROM walrelay.gap WHERE state = 'open'`,
		"jobs are not done":       `SELECT count(*) FROM walrelay.job WHERE ended_at IS NULL`,
		"letters are parked":      `SELECT count(*) FROM walrelay.dead_letter WHERE parked_behind IS NOT NULL AND resolved_at IS NULL`,
		"rows of outbox unproven": unproven("walrelay.outbox"),
		"rows of bills unproven":  unproven("public.bills"),
	} {
		fewest, since := int64(math.MaxInt64), time.Now()
		envtest.Eventually(s.t, mostPatience, func() error {
			var n int64
			if err := w.Pool.QueryRow(context.WithoutCancel(s.t.Context()), sql).Scan(&n); err != nil {
				return err
			}
			if n < fewest {
				fewest, since = n, time.Now()
			}
			if time.Since(since) > patience {
				s.t.Fatalf("%d %s, and for %s they did not become fewer", n, what, patience)
			}
			if n > 0 {
				return fmt.Errorf("%d %s", n, what)
			}
			return nil
		})
	}
}

func unproven(table string) string {
	return `SELECT count(*) FROM ` + table + ` WHERE NOT EXISTS (SELECT FROM walrelay.proven p
		WHERE p.id = (SELECT max(id) FROM walrelay.proven) AND pg_visible_in_snapshot(xid, p.snapshot))`
}

// phantoms are the events that the relay has listed as ones that the promoted
// database never had.
func phantoms(ctx context.Context, w *fixture.World) (ids []string, err error) {
	err = w.Pool.QueryRow(ctx, `SELECT coalesce(array_agg(id), '{}') FROM
		(SELECT jsonb_array_elements_text(detail->'events') AS id FROM walrelay.gap WHERE kind = 'phantom' AND state = 'listed') AS events`).Scan(&ids)
	return ids, err
}
