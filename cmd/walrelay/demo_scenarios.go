package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/testenv"
)

// A play is a scenario of the demo; it can end in several lines.
type play struct {
	name string
	run  func(context.Context, *world) ([]demoScenario, error)
}

func scenarios() []play {
	return []play{
		{"dual write, commit first", func(ctx context.Context, w *world) ([]demoScenario, error) {
			return dualWrite(ctx, w, "commit_first", "dual write: commit, crash, publish")
		}},
		{"dual write, publish first", func(ctx context.Context, w *world) ([]demoScenario, error) {
			return dualWrite(ctx, w, "publish_first", "dual write: publish, crash, commit")
		}},
		{"outbox, no receipt", func(ctx context.Context, w *world) ([]demoScenario, error) {
			return outboxKilled(ctx, w, "no_receipt", "outbox, relay killed after publish, no receipt", "--no-receipt")
		}},
		{"outbox, receipt", func(ctx context.Context, w *world) ([]demoScenario, error) {
			return outboxKilled(ctx, w, "receipt", "outbox, relay killed after publish, receipt")
		}},
	}
}

// dualWrite lets a service write to PostgreSQL and to JetStream, one after the
// other, and kills it in between.
func dualWrite(ctx context.Context, w *world, name, title string) ([]demoScenario, error) {
	s, err := w.shop(ctx, name)
	if err != nil {
		return nil, err
	}
	defer s.close(ctx)
	service, err := w.spawn(ctx, "service", "demo-part", strings.ReplaceAll(name, "_", "-"),
		"--database-url", s.url, "--nats", w.nats.URL(), "--source", name)
	if err != nil {
		return nil, err
	}
	<-service.done // it is killed between its two writes
	if service.err == nil {
		return nil, fmt.Errorf("the service was to be killed and ended by itself")
	}
	result, err := s.settle(ctx, title, "--no-receipt")
	if err != nil {
		return nil, err
	}
	return []demoScenario{result}, nil
}

// outboxKilled kills the relay after it has published and before PostgreSQL
// has heard of it, starts it again, and then lets the broker deliver everything
// once more.
func outboxKilled(ctx context.Context, w *world, name, title string, flags ...string) ([]demoScenario, error) {
	s, err := w.shop(ctx, name)
	if err != nil {
		return nil, err
	}
	defer s.close(ctx)
	proxy, err := w.env.Proxy(w.pg.Addr())
	if err != nil {
		return nil, err
	}
	defer proxy.Close()
	throughProxy := strings.Replace(s.url, w.pg.Addr(), proxy.Addr(), 1)
	relay, err := s.relay(ctx, throughProxy)
	if err != nil {
		return nil, err
	}
	if err := s.relaying(ctx); err != nil {
		return nil, err
	}
	// What the relay says to PostgreSQL is held back from here on.
	if err := proxy.Hold(testenv.Upstream); err != nil {
		return nil, err
	}
	if err := s.order(ctx); err != nil {
		return nil, err
	}
	err = until(ctx, "the event is stored", func(ctx context.Context) (bool, error) {
		n, err := s.stored(ctx)
		return n == 1, err
	})
	if err != nil {
		return nil, err
	}
	relay.kill()
	proxy.Close()

	again, err := s.relay(ctx, s.url)
	if err != nil {
		return nil, err
	}
	if err := s.confirmed(ctx); err != nil {
		return nil, err
	}
	if err := again.stop(ctx); err != nil {
		return nil, err
	}
	first, err := s.settle(ctx, title, flags...)
	if err != nil {
		return nil, err
	}
	if err := s.redeliver(ctx); err != nil {
		return nil, err
	}
	second, err := s.settle(ctx, "  ...and the broker redelivers everything", flags...)
	if err != nil {
		return nil, err
	}
	return []demoScenario{first, second}, nil
}

// redeliver makes the broker forget what it has delivered: the consumer begins
// at the stream's first message again. It has to be there, since package inbox
// makes a missing one anew behind what it knows to be applied.
func (s *shop) redeliver(ctx context.Context) error {
	old, err := s.w.js.Consumer(ctx, s.stream, demoConsumer)
	if err != nil {
		return fmt.Errorf("look at the consumer: %w", err)
	}
	if err := s.w.js.DeleteConsumer(ctx, s.stream, demoConsumer); err != nil {
		return fmt.Errorf("make the broker forget what it delivered: %w", err)
	}
	cfg := old.CachedInfo().Config
	cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverAllPolicy, 0
	if _, err := s.w.js.CreateConsumer(ctx, s.stream, cfg); err != nil {
		return fmt.Errorf("make the broker forget what it delivered: %w", err)
	}
	return nil
}

// settle lets the consumer apply all that the stream holds, and counts.
func (s *shop) settle(ctx context.Context, title string, flags ...string) (demoScenario, error) {
	consumer, err := s.consumer(ctx, append([]string{"--until-empty"}, flags...)...)
	if err != nil {
		return demoScenario{}, err
	}
	<-consumer.done
	if err := consumer.failed(); err != nil {
		return demoScenario{}, err
	}
	r := demoScenario{Name: title}
	if r.Orders, err = s.count(ctx, `SELECT count(*) FROM orders`); err != nil {
		return r, err
	}
	if r.Charges, err = s.count(ctx, `SELECT count(*) FROM charge`); err != nil {
		return r, err
	}
	if r.Stored, err = s.stored(ctx); err != nil {
		return r, err
	}
	switch {
	case r.Orders > r.Charges:
		r.Verdict = "lost"
	case r.Orders < r.Charges && r.Orders == 0:
		r.Verdict = "invented"
	case r.Orders < r.Charges:
		r.Verdict = "charged twice"
	}
	return r, nil
}

// relaying waits until a relay holds the slot and has confirmed something of
// this session: it reads.
func (s *shop) relaying(ctx context.Context) error {
	return until(ctx, "the relay streams", func(ctx context.Context) (bool, error) {
		n, err := s.count(ctx, `SELECT count(*) FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid
			WHERE s.slot_name = current_database() AND r.state = 'streaming' AND r.flush_lsn >= s.confirmed_flush_lsn`)
		return n == 1, err
	})
}

// confirmed waits until the slot has passed everything that was committed.
func (s *shop) confirmed(ctx context.Context) error {
	end := ""
	if err := s.db.QueryRow(ctx, `SELECT pg_current_wal_lsn()`).Scan(&end); err != nil {
		return fmt.Errorf("ask for the end of WAL: %w", err)
	}
	return until(ctx, "the slot has confirmed "+end, func(ctx context.Context) (bool, error) {
		n, err := s.count(ctx, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = current_database() AND confirmed_flush_lsn >= '`+end+`'`)
		return n == 1, err
	})
}

// order places one order of customer 1 with its event, in one transaction.
func (s *shop) order(ctx context.Context) error { return placeOrder(ctx, s.db, 1) }
