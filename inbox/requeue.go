package inbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// maxRequeueTries is how often a dead letter's try is begun without an end to
// it that is written down: by then it is taken to end its process.
const maxRequeueTries = 3

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

// A wish is a dead letter that is asked for.
type wish struct {
	id        int64
	stream    string
	sequence  int64
	subject   string
	aggregate string
}

// requeueAll goes through what is asked for in the order of the stream. With an
// order to keep, one that fails again keeps back those of its aggregate that
// were asked for with it.
func (s *session) requeueAll(ctx, work context.Context) error {
	last := wish{sequence: -1}
	for ctx.Err() == nil {
		var page []wish
		args := []any{s.c.cfg.Name, last.stream, last.sequence, last.id}
		err := s.c.read(ctx, s.c.sql.requeued, args, func(scan func(...any) error) error {
			var w wish
			defer func() { page = append(page, w) }()
			return scan(&w.id, &w.stream, &w.sequence, &w.subject, &w.aggregate)
		})
		if err != nil || len(page) == 0 {
			return err
		}
		for _, w := range page {
			last = w
			// Another partition's is for the process that has that one.
			if ctx.Err() != nil || s.lanes.ordered && !s.wanted(w.subject) {
				continue
			}
			if err := s.requeueOne(ctx, work, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// requeueOne applies one dead letter: receipt, effect and the dead letter's end
// in one transaction. Where the handler fails, the dead letter stays, with the
// new error, and waits to be asked for again. An error is trouble of the
// database.
func (s *session) requeueOne(ctx, work context.Context, w wish) error {
	c := s.c
	if s.lanes.ordered {
		// Never beside another event of its aggregate.
		ln := s.lanes.hold(ctx, w.aggregate)
		if ln == nil {
			return nil
		}
		defer s.lanes.release(ln)
	}
	tries := 0
	err := c.read(work, c.sql.requeueBegun, []any{w.id}, func(scan func(...any) error) error { return scan(&tries) })
	if err != nil || tries == 0 { // another process has it
		return err
	}
	if tries > maxRequeueTries {
		return s.refuse(work, w, reasonPermanent, errors.New("the process ended each time it handled this event"))
	}
	if tries == 1 {
		c.alone.RLock()
		defer c.alone.RUnlock()
	} else {
		c.alone.Lock()
		defer c.alone.Unlock()
	}
	for conflicts := 0; ; conflicts++ {
		r, e, err := s.requeueTry(work, w.id)
		if err == nil && e != nil && r.err == nil {
			c.count.requeued.Add(1)
			c.log.InfoContext(work, "dead letter applied", slog.Int64("dead_letter", w.id), slog.String("event_id", e.ID),
				slog.String("outcome", r.outcome.String()))
			return nil
		}
		conflict := err == nil && e != nil && r.class == classConflict
		switch {
		case conflict && conflicts < maxConflicts:
			if pause(work, conflictDelay(conflicts)) == nil {
				continue
			}
			fallthrough
		case err != nil, e == nil, conflict, r.class == classStopped, r.class == classTrouble:
			// It was no try that counts.
			return errors.Join(cmp.Or(err, r.err), c.unbegun(work, w.id))
		}
		return s.refuse(work, w, reasonOf(r), r.err)
	}
}

// unbegun takes a try back, also when ctx has ended.
func (c *Consumer) unbegun(ctx context.Context, id int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	return c.within(ctx, func(u unit) error {
		_, err := u.exec(ctx, c.sql.requeueUnbegun, id)
		return err
	})
}

// refuse writes down that a dead letter failed again.
func (s *session) refuse(ctx context.Context, w wish, reason string, cause error) error {
	c := s.c
	c.count.failed.Add(1)
	c.tele.failed(ctx)
	c.log.WarnContext(ctx, "dead letter failed again and stays", slog.Int64("dead_letter", w.id), slog.Any("err", cause))
	return c.within(ctx, func(u unit) error {
		if _, err := u.exec(ctx, c.sql.refused, w.id, errorText(cause), reason); err != nil || !s.lanes.ordered {
			return err
		}
		why := fmt.Sprintf("dead letter %d, which is before it in its aggregate, failed again", w.id)
		_, err := u.exec(ctx, c.sql.putBack, c.cfg.Name, w.aggregate, w.stream, w.sequence, w.id, why)
		return err
	})
}

func reasonOf(r result) string {
	if untrusted, is := errors.AsType[*untrustedError](r.err); is {
		return untrusted.reason()
	}
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

// requeueTry makes one try; without an entry another process has the dead
// letter.
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
	e, err := s.deadLetter(ctx, u, id)
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
	// Resolved first: an open dead letter keeps its event from being applied.
	if _, err := u.exec(ctx, c.sql.resolve, id); err != nil {
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
func (s *session) deadLetter(ctx context.Context, u unit, id int64) (*entry, error) {
	var found bool
	var event, headers sql.NullString
	var stream, subject string
	var payload, sum []byte
	var sequence, size int64
	err := u.query(ctx, s.c.sql.requeue, []any{id}, func(scan func(...any) error) error {
		found = true
		return scan(&event, &stream, &sequence, &subject, &headers, &payload, &size, &sum)
	})
	if err != nil {
		return nil, fmt.Errorf("read dead letter %d: %w", id, err)
	}
	if !found {
		return nil, nil //nolint:nilnil // there is none
	}
	h, err := readHeaders(cmp.Or(headers.String, "{}"))
	if err != nil {
		return nil, fmt.Errorf("dead letter %d: %w", id, err)
	}
	seq := uint64(max(sequence, 0))
	var gone error
	if payload == nil && size > 0 {
		raw, err := s.stream.GetMsg(ctx, seq)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && !sameSum(raw.Data, sum):
			gone = fmt.Errorf("its payload of %d bytes was too large to be copied, and stream %q does not have it at sequence %d any more", size, stream, seq)
		case err != nil:
			return nil, fmt.Errorf("read the payload of dead letter %d from stream %q, sequence %d: %w", id, stream, seq, err)
		default:
			payload = raw.Data
		}
	}
	e := &entry{Message: s.c.kept(subject, h, payload, stream, seq), seq: seq, worker: s.c.cfg.Concurrency}
	e.foreign = cmp.Or(gone, s.c.understand(e.Message))
	e.Late = true // newer ones may have been applied since
	return e, nil
}

func sameSum(data, sum []byte) bool {
	got := sha256.Sum256(data)
	return bytes.Equal(got[:], sum)
}
