package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/walrelay/walrelay/internal/causation"
)

// An Outcome says what became of an event that was given to a consumer.
type Outcome int

const (
	// Failed means that nothing was changed: the error says why.
	Failed Outcome = iota
	// Applied means that effect and receipt are committed.
	Applied
	// Duplicate means that the event was applied, or dead-lettered, before.
	Duplicate
	// Skipped means that a policy passed the message over.
	Skipped
	// DeadLettered means that the event is in the dead letters.
	DeadLettered
)

func (o Outcome) String() string {
	switch o {
	case Failed:
		return "failed"
	case Applied:
		return "applied"
	case Duplicate:
		return "duplicate"
	case Skipped:
		return "skipped"
	case DeadLettered:
		return "dead_lettered"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// A result is what one try came to.
type result struct {
	outcome Outcome
	err     error
	class   class // of err
	// unread says that the message was not even given to a handler.
	unread bool
	// counted says that the attempt is in the database already.
	counted bool
	// deferred says that the event was not tried, since an earlier one of
	// its aggregate failed.
	deferred bool
}

var (
	errFenced = errors.New("another process has taken over this consumer")
	// errOtherServer ends a session: another database server may have
	// forgotten commits, which must come before what is next.
	errOtherServer = errors.New("the database server has restarted or changed")
)

// Apply applies one event that came in another way than through [Consumer.Run],
// exactly as Run would: receipt first, then the handler, in one transaction.
// It tries once, counts nothing, and never writes a dead letter. m needs an ID
// and a Type; where they are empty, they are read from m.Headers. With
// [Config.SignatureKeys] it needs the headers, subject and payload as they came.
//
// An error leaves nothing changed, unless it is the commit's and the
// connection was lost then: Apply it again, the receipt tells.
func (c *Consumer) Apply(ctx context.Context, m Message) (Outcome, error) {
	if err := c.freeze(); err != nil {
		return Failed, fmt.Errorf("consumer %q: %w", c.cfg.Name, err)
	}
	if err := c.signatures.verify(&m); err != nil {
		return Failed, fmt.Errorf("consumer %q: %w", c.cfg.Name, err)
	}
	if m.ID == "" || m.Type == "" {
		if err := m.read(c.cfg.Complete); err != nil {
			return Failed, fmt.Errorf("consumer %q: %w", c.cfg.Name, err)
		}
	}
	for conflicts := 0; ; conflicts++ {
		r := c.try(ctx, &entry{Message: &m}, nil)
		if r.class == classConflict && r.err != nil && conflicts < maxConflicts {
			if err := pause(ctx, conflictDelay(conflicts)); err == nil {
				continue
			}
		}
		if r.err != nil {
			return r.outcome, fmt.Errorf("consumer %q: event %s: %w", c.cfg.Name, m.ID, r.err)
		}
		return r.outcome, nil
	}
}

// try applies one event in a transaction of its own.
func (c *Consumer) try(ctx context.Context, e *entry, f *fence) result {
	h, err := c.handler(e.Message)
	if e.foreign != nil {
		err = e.foreign
	}
	if err != nil {
		return result{err: err, class: classPermanent, unread: true}
	}
	u, err := c.db.begin(ctx)
	if err != nil {
		return result{err: err, class: classify(ctx, err)}
	}
	fresh, err := c.receive(ctx, u, e, f)
	if err != nil {
		giveUp(ctx, u)
		return result{err: err, class: ownClass(ctx, err)}
	}
	if fresh {
		if err := c.run(ctx, u, h, e.Message); err != nil {
			return c.rolledBack(ctx, u, err)
		}
	}
	if err := c.tidy(ctx, u, e); err != nil {
		giveUp(ctx, u)
		return result{err: err, class: ownClass(ctx, err)}
	}
	if err := u.commit(ctx); err != nil {
		return c.uncommitted(ctx, u, err)
	}
	c.trouble.over(ctx)
	if !fresh {
		return result{outcome: Duplicate}
	}
	return result{outcome: Applied}
}

// receive writes the receipt, and says whether the event is new.
func (c *Consumer) receive(ctx context.Context, u unit, e *entry, f *fence) (fresh bool, err error) {
	started, known, err := u.server(ctx)
	if err != nil {
		return false, err
	}
	if known {
		return c.receiveFast(ctx, u, e, f, started)
	}
	statement, args := c.sql.receive, []any{c.cfg.Name, e.ID, e.Stream, int64(e.Sequence)} //nolint:gosec // sequences stay below 2^63
	if f != nil {
		statement, args = c.sql.receiveFenced, append(args, c.cfg.durable(), f.session)
	}
	var holds, inserted int64
	var server, setting string
	err = u.query(ctx, statement, args, func(scan func(...any) error) error {
		return scan(&holds, &inserted, &server, &setting)
	})
	if err != nil {
		return false, fmt.Errorf("write the receipt: %w", err)
	}
	return inserted > 0, c.vouch(holds, server, f)
}

// receiveFast is receive for a connection whose server is known.
func (c *Consumer) receiveFast(ctx context.Context, u unit, e *entry, f *fence, server string) (fresh bool, err error) {
	if err := c.vouch(1, server, f); err != nil {
		return false, err
	}
	args := []any{c.cfg.Name, e.ID, e.Stream, int64(e.Sequence)} //nolint:gosec // sequences stay below 2^63
	statement := c.sql.freshChecked
	switch {
	case f != nil:
		statement, args = c.sql.freshFenced, append(args, c.cfg.durable(), f.session, e.worker)
	case e.Deliveries == 1 && e.Origin == "":
		// There can be no dead letter of an event that comes for the
		// first time.
		statement = c.sql.fresh
	}
	n, err := u.exec(ctx, statement, args...)
	if err != nil {
		return false, fmt.Errorf("write the receipt: %w", err)
	}
	if n > 0 || f == nil {
		return n > 0, nil
	}
	// A duplicate, or not ours to apply.
	var holds int64
	err = u.query(ctx, c.sql.holds, []any{c.cfg.durable(), f.stream, f.session}, func(scan func(...any) error) error { return scan(&holds) })
	if err != nil {
		return false, fmt.Errorf("look whether the session still holds: %w", err)
	}
	return false, c.vouch(holds, server, f)
}

// vouch checks that the transaction is on the server, and of the session,
// that it is believed to be.
func (c *Consumer) vouch(holds int64, server string, f *fence) error {
	if holds == 0 {
		return errFenced
	}
	known := c.server.Load()
	if known != nil && *known == server {
		return nil
	}
	if f != nil {
		return errOtherServer
	}
	if c.server.CompareAndSwap(known, &server) && known != nil {
		c.askRecheck()
	}
	return nil
}

func (c *Consumer) askRecheck() {
	select {
	case c.recheck <- struct{}{}:
	default:
	}
}

// tidy removes what failed attempts and parking have left of an event.
func (c *Consumer) tidy(ctx context.Context, u unit, e *entry) error {
	if e.Deliveries != 1 {
		if _, err := u.exec(ctx, c.sql.forget, c.cfg.Name, e.ID); err != nil {
			return fmt.Errorf("remove the count of attempts: %w", err)
		}
	}
	if e.parked {
		if _, err := u.exec(ctx, c.sql.unpark, c.cfg.durable(), e.Stream, int64(e.Sequence)); err != nil { //nolint:gosec // sequences stay below 2^63
			return fmt.Errorf("remove the parked event: %w", err)
		}
	}
	return nil
}

// run calls the handler, and makes errors of its panics.
func (c *Consumer) run(ctx context.Context, u unit, h Handler, m *Message) (err error) {
	if c.cfg.HandlerTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.HandlerTimeout)
		defer cancel()
	}
	ctx = causation.With(ctx, causation.Cause{EventID: m.ID, CorrelationID: first(m.Headers, causation.HeaderCorrelationID)})
	ctx, end := c.tele.start(ctx, m)
	defer func() { end(err) }()
	defer func() {
		if v := recover(); v != nil {
			p := &PanicError{Value: v, Stack: debug.Stack()}
			c.log.ErrorContext(ctx, "handler panicked", slog.String("event_id", m.ID), slog.String("event_type", m.Type),
				slog.String("stack", string(p.Stack)))
			err = p
		}
	}()
	if err := h(ctx, u.handle(), m); err != nil {
		return err
	}
	if err := u.ended(); err != nil {
		return err
	}
	return ctx.Err()
}

// rolledBack ends a transaction whose handler failed, and judges the error.
func (c *Consumer) rolledBack(ctx context.Context, u unit, err error) result {
	alive := giveUp(ctx, u)
	class := classify(ctx, err)
	// A statement whose own context ended takes its connection with it.
	timedOut := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if class == classHandler && !alive && !timedOut && !hasState(err) && !errors.As(err, new(*PanicError)) {
		class = classTrouble
	}
	return result{err: err, class: class}
}

// uncommitted judges the error of a commit. Where its outcome is not known,
// the receipt tells at the next try.
func (c *Consumer) uncommitted(ctx context.Context, u unit, err error) result {
	giveUp(ctx, u)
	class := classify(ctx, err)
	if class == classHandler && lost(err) {
		class = classTrouble
	}
	return result{err: fmt.Errorf("commit: %w", err), class: class}
}

// ownClass judges the error of one of our own statements, which says nothing
// about the event.
func ownClass(ctx context.Context, err error) class {
	if errors.Is(err, errFenced) || errors.Is(err, errOtherServer) {
		return classTrouble
	}
	class := classify(ctx, err)
	if class != classHandler && class != classPermanent {
		return class
	}
	if lockWait(err) {
		return classConflict
	}
	return classTrouble
}
