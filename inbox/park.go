package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"
)

// mayWait is how many messages may wait behind failed ones before further ones
// are parked: JetStream delivers nothing new once its limit is reached.
func (s *session) mayWait() int {
	const unlimited = 10_000
	if n := s.info.Config.MaxAckPending; n > 0 {
		return max(1, n/2)
	}
	return unlimited
}

// park stores a message behind others of its aggregate, and acknowledges it:
// it is the database's now.
func (s *session) park(ctx context.Context, e *entry, key string) error {
	c := s.c
	headers, err := json.Marshal(keptHeaders(e.Headers))
	if err != nil {
		return fmt.Errorf("write headers as JSON: %w", err)
	}
	var holds, n int64
	var setting string
	err = c.read(ctx, c.sql.park, []any{
		c.cfg.durable(), e.Stream, int64(e.seq), e.ID, key, text(e.Subject), string(headers), append([]byte{}, e.Raw...), s.fence.session, //nolint:gosec // sequences stay below 2^63
	}, func(scan func(...any) error) error { return scan(&holds, &n, &setting) })
	if err != nil {
		return fmt.Errorf("park event %s: %w", e.ID, err)
	}
	if holds == 0 {
		return errFenced
	}
	s.lanes.park(key, e.seq)
	c.count.parked.Add(1)
	if err := e.msg.Ack(); err != nil {
		c.log.DebugContext(ctx, "message not acknowledged", slog.Uint64("sequence", e.seq), slog.Any("err", err))
	}
	return nil
}

// doParked applies the first parked event of a lane.
func (s *session) doParked(ctx context.Context, worker int, j job) error {
	e, err := s.unparked(ctx, j.parked)
	if err != nil {
		s.lanes.finish(j.lane, 0)
		return err
	}
	if e != nil {
		e.lane, e.worker = j.lane, worker
		v := s.handle(ctx, e)
		switch {
		case v.end != nil:
			s.lanes.finish(j.lane, 0)
			return v.end
		case v.giveBack:
			s.lanes.finish(j.lane, 0)
			return nil
		case v.outcome == Failed:
			s.lanes.finish(j.lane, max(v.retry, 1))
			return nil
		case v.outcome == Skipped:
			err = s.c.within(ctx, func(u unit) error { return s.c.tidy(ctx, u, e) })
		case v.outcome == Applied, v.outcome == Duplicate, v.outcome == DeadLettered:
		}
		s.c.tally(ctx, e, v.outcome)
	}
	if err == nil {
		err = s.nextParked(ctx, j)
	}
	s.lanes.finish(j.lane, 0)
	if err != nil {
		return fmt.Errorf("go on to the next parked event: %w", err)
	}
	return nil
}

// nextParked finds what of a lane is still parked after the job's event.
func (s *session) nextParked(ctx context.Context, j job) error {
	for {
		parks := s.lanes.parks(j.lane)
		var next int64
		args := []any{s.c.cfg.durable(), s.c.cfg.Stream, j.lane.key, int64(j.parked)} //nolint:gosec // sequences stay below 2^63
		err := s.c.read(ctx, s.c.sql.nextParked, args, func(scan func(...any) error) error { return scan(&next) })
		if err != nil {
			return err
		}
		if s.lanes.unpark(j.lane, parks, uint64(next)) { //nolint:gosec // came from a uint64
			return nil
		}
	}
}

// unparked reads a parked event; nil if it is gone.
func (s *session) unparked(ctx context.Context, seq uint64) (*entry, error) {
	var found bool
	var subject, headers string
	var payload []byte
	err := s.c.read(ctx, s.c.sql.unparked, []any{s.c.cfg.durable(), s.c.cfg.Stream, int64(seq)}, func(scan func(...any) error) error { //nolint:gosec // sequences stay below 2^63
		found = true
		return scan(&subject, &headers, &payload)
	})
	if err != nil || !found {
		return nil, err
	}
	h, err := readHeaders(headers)
	if err != nil {
		return nil, err
	}
	e := &entry{Message: s.c.kept(subject, h, payload, s.c.cfg.Stream, seq), seq: seq, parked: true}
	e.foreign = e.Message.read(s.c.cfg.Complete)
	return e, nil
}

// kept makes a message of what the database has.
func (*Consumer) kept(subject string, h nats.Header, payload []byte, stream string, seq uint64) *Message {
	return &Message{Raw: payload, Headers: h, Subject: subject, Stream: stream, Sequence: seq}
}
