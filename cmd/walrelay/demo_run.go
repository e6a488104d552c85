package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
)

const (
	demoWriters = 4
	// A fault comes each time that another part of the orders is stored.
	demoFaults = 9
)

// longRun places orders by several services at once while relay, consumer and
// broker are killed in turn, and counts what is there in the end.
func longRun(ctx context.Context, w *world, orders int, progress io.Writer) (demoAccount, error) {
	var a demoAccount
	s, err := w.shop(ctx, "run")
	if err != nil {
		return a, err
	}
	defer s.close(ctx)
	relay, err := s.relay(ctx, s.url)
	if err != nil {
		return a, err
	}
	consumer, err := s.consumer(ctx)
	if err != nil {
		return a, err
	}
	var writers []*process
	for i := range demoWriters {
		p, err := w.spawn(ctx, "writer", "demo-part", "writer", "--database-url", s.url, "--nats", w.nats.URL(), "--source", s.name,
			"--seed", strconv.Itoa(i+1), "--orders", strconv.Itoa(orders/demoWriters))
		if err != nil {
			return a, err
		}
		writers = append(writers, p)
	}
	for fault := range demoFaults {
		err := until(ctx, "more orders are stored", func(ctx context.Context) (bool, error) {
			n, err := s.stored(ctx)
			return n >= orders*(fault+1)/(demoFaults+2), err
		})
		if err != nil {
			return a, errors.Join(err, relay.failed(), consumer.failed())
		}
		switch fault % 3 {
		case 0:
			fmt.Fprintln(progress, "  kill -9 the relay")
			relay.kill()
			a.RelayKills++
			if relay, err = s.relay(ctx, s.url); err != nil {
				return a, err
			}
		case 1:
			fmt.Fprintln(progress, "  kill -9 the broker and start it again; kill -9 the relay as well")
			if err := w.nats.Kill(ctx); err != nil {
				return a, err
			}
			relay.kill()
			a.RelayKills++
			if err := w.nats.Start(ctx); err != nil {
				return a, err
			}
			a.BrokerRestarts++
			if relay, err = s.relay(ctx, s.url); err != nil {
				return a, err
			}
		case 2:
			fmt.Fprintln(progress, "  kill -9 the consumer")
			consumer.kill()
			a.ConsumerKills++
			if consumer, err = s.consumer(ctx); err != nil {
				return a, err
			}
		}
	}
	for _, p := range writers {
		<-p.done
		if err := p.failed(); err != nil {
			return a, err
		}
	}
	if err := s.finish(ctx, relay, consumer); err != nil {
		return a, err
	}
	return a, s.account(ctx, &a)
}

// finish waits until the relay has confirmed everything and the consumer has
// taken all of it.
func (s *shop) finish(ctx context.Context, relay, consumer *process) error {
	if err := s.confirmed(ctx); err != nil {
		return errors.Join(err, relay.failed())
	}
	err := until(ctx, "the consumer has taken everything", func(ctx context.Context) (bool, error) {
		c, err := s.w.js.Consumer(ctx, s.stream, demoConsumer)
		if err != nil {
			return false, fmt.Errorf("look at the consumer: %w", err)
		}
		info := c.CachedInfo()
		return info.NumPending == 0 && info.NumAckPending == 0, nil
	})
	if err != nil {
		return errors.Join(err, consumer.failed())
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return errors.Join(consumer.stop(ctx), relay.stop(ctx))
}

// account compares the orders, the stream and the charges. It knows nothing of
// the faults.
func (s *shop) account(ctx context.Context, a *demoAccount) error {
	for _, c := range []struct {
		to  *int
		sql string
	}{
		{&a.Committed, `SELECT count(*) FROM orders`},
		{&a.Applied, `SELECT count(*) FROM charge`},
		{&a.Lost, `SELECT count(*) FROM orders WHERE NOT EXISTS (SELECT FROM charge WHERE order_id = orders.id)`},
		{&a.AppliedTwice, `SELECT count(*) FROM (SELECT order_id FROM charge GROUP BY order_id HAVING count(*) > 1) twice`},
		{&a.OutOfOrder, `SELECT count(*) FROM (SELECT number < max(number) OVER (PARTITION BY customer ORDER BY seq) AS late FROM charge) c WHERE late`},
	} {
		n, err := s.count(ctx, c.sql)
		if err != nil {
			return err
		}
		*c.to = n
	}
	return s.accountOfStream(ctx, a)
}

func (s *shop) accountOfStream(ctx context.Context, a *demoAccount) error {
	n, err := s.stored(ctx)
	if err != nil {
		return err
	}
	consumer, err := s.w.js.OrderedConsumer(ctx, s.stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", s.stream, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read stream %s: %w", s.stream, err)
	}
	defer messages.Stop()
	seen, newest := map[string]bool{}, map[int]int{}
	for range n {
		msg, err := messages.Next()
		if err != nil {
			return fmt.Errorf("read stream %s: %w", s.stream, err)
		}
		id := msg.Headers().Get(envelope.HeaderMsgID)
		if seen[id] {
			a.StoredTwice++
		}
		seen[id] = true
		var order orderPlaced
		if err := json.Unmarshal(msg.Data(), &order); err != nil {
			return fmt.Errorf("read a message of stream %s: %w", s.stream, err)
		}
		if order.Number < newest[order.Customer] {
			a.OutOfOrder++
		}
		newest[order.Customer] = max(newest[order.Customer], order.Number)
	}
	a.Stored = len(seen)
	return nil
}
