package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

const (
	// fewHeaders are read from the leader one by one, which needs no
	// consumer.
	fewHeaders = 256
	// pulled is how many headers are asked for at a time.
	pulled = 256
	// pullWait is how long the server keeps a request for them.
	pullWait = 2 * time.Second
	// behindWait is the pause before a server that lags is asked again.
	behindWait = 50 * time.Millisecond
	// consumerLife is how long the server keeps a consumer of ours that
	// nobody reads, should its end not reach the server.
	consumerLife = 30 * time.Second
)

// headers tells visit of the messages behind sequence from up to sequence to,
// which the leader has said to be the end, without bodies where there are many.
// What was removed is passed over. visit is called by one goroutine at a time.
// It gives how far all was read, also with an error.
//
// A consumer may be served by a follower that lags, so wherever it has no more
// the leader is asked. Without the permission or the room for a consumer, and
// where one would take messages away, they are read from the leader alone.
func (s *publisher) headers(ctx context.Context, facts StreamFacts, from, to uint64, visit func(StoredMessage) error) (uint64, error) {
	first, more, err := s.behind(ctx, from, to)
	if err != nil {
		return from, err
	}
	if !more {
		return max(from, to), nil
	}
	from = first - 1
	if to-from > fewHeaders && (facts.Retention == "" || facts.Retention == "limits") {
		c := consumer{publisher: s, read: from, to: to, visit: visit}
		made, err := c.run(ctx)
		if made || err == nil {
			return c.read, err
		}
		if _, none := errors.AsType[*noConnectionError](err); none || ctx.Err() != nil {
			return c.read, err
		}
	}
	if err := s.each(ctx, from, to, visit); err != nil {
		return from, err
	}
	return to, nil
}

// behind gives the first sequence behind from, up to to, that the stream has.
func (s *publisher) behind(ctx context.Context, from, to uint64) (first uint64, more bool, err error) {
	if from >= to {
		return 0, false, nil
	}
	m, more, err := s.nextOf(ctx, from+1, to)
	return m.Seq, more, err
}

// nextOf reads the first message from seq to to. That there is none is believed
// only from a leader that has had to.
func (s *publisher) nextOf(ctx context.Context, seq, to uint64) (StoredMessage, bool, error) {
	m, found, err := s.conn.nextFromLeader(ctx, s.cfg.Stream, seq)
	if err != nil || found {
		return m, found && m.Seq <= to, err
	}
	info, err := s.conn.StreamInfo(ctx, s.cfg.Stream)
	if err != nil {
		return StoredMessage{}, false, err
	}
	if info.LastSeq < to {
		return StoredMessage{}, false, errLagging
	}
	m, found, err = s.conn.nextFromLeader(ctx, s.cfg.Stream, seq)
	return m, found && m.Seq <= to, err
}

// each reads whole messages from the leader, some at a time.
func (s *publisher) each(ctx context.Context, from, to uint64, visit func(StoredMessage) error) error {
	var mu sync.Mutex
	share := (to-from)/readers + 1
	g, ctx := errgroup.WithContext(ctx)
	for start := from + 1; start <= to; start += share {
		last := min(to, start+share-1)
		g.Go(func() error {
			for seq := start; seq <= last; {
				m, more, err := s.nextOf(ctx, seq, last)
				if err != nil || !more {
					return err
				}
				mu.Lock()
				err = visit(m)
				mu.Unlock()
				if err != nil {
					return err
				}
				seq = m.Seq + 1
			}
			return nil
		})
	}
	return g.Wait()
}

// A consumer reads headers through an ephemeral consumer without acks.
type consumer struct {
	*publisher
	visit    func(StoredMessage) error
	read, to uint64
	number   uint64 // of the consumer's last delivery
	name     string
	nc       *nats.Conn
	sub      *nats.Subscription
}

// run says whether the consumer could be made.
func (c *consumer) run(ctx context.Context) (made bool, err error) {
	if c.nc, err = c.conn.client(); err != nil {
		return false, err
	}
	inbox := c.nc.NewInbox()
	c.name = "walrelay-" + inbox[strings.LastIndexByte(inbox, '.')+1:]
	if err := c.create(ctx); err != nil {
		return false, err
	}
	defer c.remove(context.WithoutCancel(ctx))
	if c.sub, err = c.nc.SubscribeSync(inbox); err != nil {
		return true, fmt.Errorf("subscribe to headers of stream %q: %w", c.cfg.Stream, err)
	}
	defer func() { _ = c.sub.Unsubscribe() }() // the connection may be gone, and the subscription with it
	for c.read < c.to {
		if err := c.pull(ctx); err != nil {
			return true, fmt.Errorf("read headers of stream %q: %w", c.cfg.Stream, err)
		}
	}
	return true, nil
}

func (c *consumer) create(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{"stream_name": c.cfg.Stream, "config": map[string]any{
		"name": c.name, "deliver_policy": "by_start_sequence", "opt_start_seq": c.read + 1, "ack_policy": "none",
		"replay_policy": "instant", "headers_only": true, "mem_storage": true, "num_replicas": 1,
		"inactive_threshold": consumerLife,
	}})
	if err != nil {
		return err
	}
	data, err := c.conn.request(ctx, "CONSUMER.CREATE."+c.cfg.Stream+"."+c.name, body)
	if err != nil {
		return err
	}
	var answer struct {
		Error *wireError `json:"error"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return fmt.Errorf("answer about a consumer of stream %q: %w", c.cfg.Stream, err)
	}
	if answer.Error != nil {
		return answer.Error.api()
	}
	return nil
}

// remove spares the server the consumer's remaining life; it is no matter if
// that does not work out.
func (c *consumer) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = c.conn.request(ctx, "CONSUMER.DELETE."+c.cfg.Stream+"."+c.name, nil)
}

// pull asks for some headers and reads them.
func (c *consumer) pull(ctx context.Context) error {
	ask := fmt.Appendf(nil, `{"batch":%d,"expires":%d}`, pulled, pullWait)
	if err := c.nc.PublishRequest(c.conn.apiSubject("CONSUMER.MSG.NEXT."+c.cfg.Stream+"."+c.name), c.sub.Subject, ask); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pullWait+c.conn.cfg.RequestTimeout)
	defer cancel()
	for range pulled {
		m, err := c.sub.NextMsgWithContext(ctx)
		if err != nil {
			return err
		}
		if m.Reply == "" { // no message, but why there is none
			return c.lag(ctx)
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		c.number++
		if meta.Sequence.Consumer != c.number {
			return fmt.Errorf("delivery %d came as number %d", c.number, meta.Sequence.Consumer)
		}
		seq := meta.Sequence.Stream
		if seq <= c.to {
			if err := c.visit(StoredMessage{Subject: m.Subject, Seq: seq, Header: m.Header, Time: meta.Timestamp}); err != nil {
				return err
			}
		}
		c.read = min(seq, c.to)
		if c.read == c.to {
			return nil
		}
		if meta.NumPending == 0 {
			return c.lag(ctx)
		}
	}
	return nil
}

// lag asks the leader whether there is more than the consumer has, and pauses
// if so.
func (c *consumer) lag(ctx context.Context) error {
	_, more, err := c.behind(ctx, c.read, c.to)
	if err != nil {
		return err
	}
	if !more {
		c.read = c.to
		return nil
	}
	sleep(ctx, behindWait)
	return nil
}
