package publish

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// The client tells of its connection from a goroutine of its own, perhaps before
// it is ours: who was woken too early is woken again.
func TestWhoWaitsForAConnectionIsWokenWhenTheClientComesLast(t *testing.T) {
	t.Parallel()
	c := &Conn{}
	c.mu.Lock()
	c.setConnectedLocked(true, "s")
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	had := make(chan error, 1)
	go func() { had <- c.await(ctx) }()
	envtest.Eventually(t, 10*time.Second, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.changed == nil {
			return errors.New("nobody waits")
		}
		return nil
	})
	c.use(&nats.Conn{})
	if err := <-had; err != nil {
		t.Errorf("await() = %v, want a connection", err)
	}
}
