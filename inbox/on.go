package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A Handler applies one event inside the transaction tx, whatever the event's
// type. [On] makes one of a typed function; [Middleware] sees this form.
type Handler func(ctx context.Context, tx Tx, m *Message) error

// A Middleware wraps every handler of a consumer, inside of the transaction
// and after the receipt: what it writes to tx commits with the effect.
type Middleware func(next Handler) Handler

// On registers the handler of one event type. Its effect belongs into tx: it
// is committed together with the receipt, or not at all. What a handler does
// outside of tx is done again with each attempt (see package idempotency for
// that). ctx carries the event as the cause of what outbox.Append writes.
//
// An error rolls back and asks for another attempt after the backoff; see
// [Permanent] and [RetryAfter]. A panic is an error. A handler must not commit
// or roll back tx, nor use it after it has returned.
//
// Mistakes, such as a second handler for a type, are returned by Run before it
// begins. On must not be called once Run has been.
func On[T any](c *Consumer, eventType string, handle func(ctx context.Context, tx pgx.Tx, e Event[T]) error) {
	if _, ok := c.db.(*pgxDatabase); !ok {
		c.mistake(fmt.Errorf("handler for %q: this consumer's database is a *sql.DB: use inbox.OnSQL", eventType))
		return
	}
	c.on(eventType, handle == nil, func(ctx context.Context, tx Tx, m *Message) error {
		data, err := decode[T](m)
		if err != nil {
			return err
		}
		return handle(ctx, tx.Pgx, Event[T]{Message: *m, Data: data})
	})
}

// OnSQL is [On] for a consumer of [NewSQL]. database/sql gives no means to keep
// a handler from ending tx: it is noticed afterwards and counts as a failed
// attempt.
func OnSQL[T any](c *SQLConsumer, eventType string, handle func(ctx context.Context, tx *sql.Tx, e Event[T]) error) {
	c.on(eventType, handle == nil, func(ctx context.Context, tx Tx, m *Message) error {
		data, err := decode[T](m)
		if err != nil {
			return err
		}
		return handle(ctx, tx.SQL, Event[T]{Message: *m, Data: data})
	})
}

// Use adds middleware around all handlers, the first outermost. It must not be
// called once Run has been.
func (c *Consumer) Use(middleware ...Middleware) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.middleware = append(c.middleware, middleware...)
}

func (c *Consumer) on(eventType string, missing bool, h Handler) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.frozen:
		c.mistakes = append(c.mistakes, fmt.Errorf("handler for %q: registered after Run", eventType))
	case eventType == "":
		c.mistakes = append(c.mistakes, errors.New("handler without an event type"))
	case missing:
		c.mistakes = append(c.mistakes, fmt.Errorf("handler for %q: it is nil", eventType))
	case c.handlers[eventType] != nil:
		c.mistakes = append(c.mistakes, fmt.Errorf("handler for %q: there is one already; an event has one handler in a consumer", eventType))
	default:
		c.handlers[eventType] = h
	}
}

func (c *Consumer) mistake(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mistakes = append(c.mistakes, err)
}

// freeze ends the registration of handlers, and reports its mistakes.
func (c *Consumer) freeze() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.frozen {
		c.frozen = true
		for eventType, h := range c.handlers {
			for _, wrap := range slices.Backward(c.middleware) {
				h = wrap(h)
			}
			c.handlers[eventType] = h
		}
		if len(c.handlers) == 0 {
			c.mistakes = append(c.mistakes, errors.New("no handlers: register them with inbox.On before Run"))
		}
	}
	return errors.Join(c.mistakes...)
}

// handler gives what to call for m, or why there is nothing. Handlers are
// frozen by now.
func (c *Consumer) handler(m *Message) (Handler, error) {
	if h := c.handlers[m.Type]; h != nil {
		return h, nil
	}
	return nil, &unknownError{m.Type}
}
