package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// Run consumes until ctx ends, and returns nil then: it stops taking messages,
// lets running handlers finish for up to Config.DrainTimeout, acknowledges what
// is committed, and gives the rest back at once. It returns an error only where
// waiting does not help: a mistake of a handler's registration, or a JetStream
// consumer whose settings break the promise. A database or a broker that is
// away is waited for; [Consumer.Status] names it.
//
// Run makes the durable consumer where there is none. It must not be called
// again before it has returned.
func (c *Consumer) Run(ctx context.Context) error {
	if err := c.freeze(); err != nil {
		return fmt.Errorf("consumer %q: %w", c.cfg.Name, err)
	}
	if c.cfg.JetStream == nil {
		return fmt.Errorf("consumer %q: inbox.Config: JetStream: want a connection to consume from", c.cfg.Name)
	}
	defer c.often.Flush(context.WithoutCancel(ctx))
	c.log.InfoContext(ctx, "consumer started", slog.String("stream", c.cfg.Stream))
	defer c.log.InfoContext(ctx, "consumer stopped")
	token := newToken()
	for n := 0; ctx.Err() == nil; n++ {
		s := newSession(c, token)
		err := s.run(ctx)
		if errors.As(err, new(*settingsError)) {
			return fmt.Errorf("consumer %q: %w", c.cfg.Name, err)
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			c.trouble.is(ctx, err)
		}
		if s.settled.Load() {
			n = 0
		}
		if pause(ctx, troubleDelay(n)) != nil {
			break
		}
	}
	return nil
}

// A settingsError is one that only another configuration mends.
type settingsError struct{ error }

func (e *settingsError) Unwrap() error { return e.error }
