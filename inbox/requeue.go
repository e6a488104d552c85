package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// requeue runs the handlers again for dead letters that an operator has asked
// for (`walrelay deadletters --consumer NAME requeue`), until ctx ends.
func (s *session) requeue(ctx, work context.Context) error {
	t := time.NewTicker(s.c.cfg.CheckInterval)
	defer t.Stop()
	for {
		if err := s.requeueAll(ctx, work); err != nil && ctx.Err() == nil {
			s.c.log.DebugContext(ctx, "dead letters not looked at", slog.Any("err", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (s *session) requeueAll(ctx, work context.Context) error {
	c := s.c
	for after := int64(0); ctx.Err() == nil; {
		id := int64(0)
		err := c.read(ctx, c.sql.requeued, []any{c.cfg.Name, after}, func(scan func(...any) error) error { return scan(&id) })
		if err != nil || id == 0 {
			return err
		}
		after = id
		if err := s.requeueOne(work, id); err != nil {
			return err
		}
	}
	return nil
}

// requeueOne applies one dead letter: receipt, effect and the dead letter's end
// in one transaction. Where the handler fails, the dead letter stays, with the
// new error, and waits to be asked for again. An error is trouble of the
// database.
func (s *session) requeueOne(ctx context.Context, id int64) error {
	c := s.c
	for conflicts := 0; ; conflicts++ {
		r, e, err := s.requeueTry(ctx, id)
		switch {
		case err != nil:
			return err
		case e == nil: // another process has it
			return nil
		case r.err == nil:
			c.count.requeued.Add(1)
			c.log.InfoContext(ctx, "dead letter applied", slog.Int64("dead_letter", id), slog.String("event_id", e.ID),
				slog.String("outcome", r.outcome.String()))
			return nil
		case r.class == classStopped, r.class == classTrouble:
			return r.err
		case r.class == classConflict && conflicts < maxConflicts:
			if err := pause(ctx, conflictDelay(conflicts)); err != nil {
				return err
			}
			continue
		}
		c.count.failed.Add(1)
		c.tele.failed(ctx)
		c.log.WarnContext(ctx, "dead letter failed again and stays", slog.Int64("dead_letter", id), slog.String("event_id", e.ID), slog.Any("err", r.err))
		return c.within(ctx, func(u unit) error {
			_, err := u.exec(ctx, c.sql.refused, id, errorText(r.err), reasonOf(r))
			return err
		})
	}
}

func reasonOf(r result) string {
	switch {
	case errors.As(r.err, new(*unknownError)):
		return reasonUnknown
	case r.unread || errors.As(r.err, new(*unreadableError)):
		return reasonUnreadable
	case r.class == classPermanent:
		return reasonPermanent
	}
	return reasonAttempts
}

func (s *session) requeueTry(ctx context.Context, id int64) (result, *entry, error) {
	c := s.c
	u, err := c.db.begin(ctx)
	if err != nil {
		return result{}, nil, err
	}
	done := false
	defer func() {
		if !done {
			giveUp(ctx, u)
		}
	}()
	e, by, err := s.deadLetter(ctx, u, id)
	if err != nil || e == nil {
		return result{}, nil, err
	}
	h, err := c.handler(e.Message)
	if e.foreign != nil {
		err = e.foreign
	}
	if err != nil {
		return result{err: err, class: classPermanent, unread: true}, e, nil
	}
	resolved := "requeued"
	if by == "" {
		by = "inbox"
	}
	// Resolved first: an open dead letter keeps its event from being applied.
	if _, err := u.exec(ctx, c.sql.resolve, id, by, resolved); err != nil {
		return result{}, nil, fmt.Errorf("resolve dead letter %d: %w", id, err)
	}
	fresh, err := c.receive(ctx, u, e, s.fence)
	if err != nil {
		return result{err: err, class: ownClass(ctx, err)}, e, nil
	}
	if fresh {
		if err := c.run(ctx, u, h, e.Message); err != nil {
			done = true
			return c.rolledBack(ctx, u, err), e, nil
		}
	}
	if err := c.tidy(ctx, u, e); err != nil {
		return result{err: err, class: ownClass(ctx, err)}, e, nil
	}
	done = true
	if err := u.commit(ctx); err != nil {
		return c.uncommitted(ctx, u, err), e, nil
	}
	if !fresh {
		return result{outcome: Duplicate}, e, nil
	}
	return result{outcome: Applied}, e, nil
}

// deadLetter reads and locks a dead letter; nil if another process has it.
func (s *session) deadLetter(ctx context.Context, u unit, id int64) (*entry, string, error) {
	var found bool
	var event sql.NullString
	var stream, subject, by string
	var headers sql.NullString
	var payload []byte
	var sequence, size int64
	var attempts int
	err := u.query(ctx, s.c.sql.requeue, []any{id}, func(scan func(...any) error) error {
		found = true
		return scan(&event, &stream, &sequence, &subject, &headers, &payload, &size, &by, &attempts)
	})
	if err != nil {
		return nil, "", fmt.Errorf("read dead letter %d: %w", id, err)
	}
	if !found {
		return nil, "", nil
	}
	h, err := readHeaders(cmp.Or(headers.String, "{}"))
	if err != nil {
		return nil, "", fmt.Errorf("dead letter %d: %w", id, err)
	}
	seq := uint64(max(sequence, 0))
	if payload == nil && size > 0 {
		raw, err := s.stream.GetMsg(ctx, seq)
		if err != nil {
			return nil, "", fmt.Errorf("read the payload of dead letter %d from stream %q, sequence %d: %w", id, stream, seq, err)
		}
		payload = raw.Data
	}
	e := &entry{Message: s.c.kept(subject, h, payload, stream, seq), seq: seq, worker: s.c.cfg.Concurrency}
	e.foreign = e.Message.read(s.c.cfg.Complete)
	return e, by, nil
}
