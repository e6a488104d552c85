package sandbox

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/nats-io/nats.go/jetstream"
)

// Settled waits until the relay has stored n messages and a JetStream consumer
// has been given all of its own, and acknowledged them.
func (s *Sandbox) Settled(ctx context.Context, n uint64, consumers ...string) error {
	return Until(ctx, func() error {
		stream, err := s.JetStream.Stream(ctx, Stream)
		if err != nil {
			return fmt.Errorf("look up the stream: %w", err)
		}
		if got := stream.CachedInfo().State.Msgs; got != n {
			return fmt.Errorf("the stream has %d messages, want %d", got, n)
		}
		for _, name := range consumers {
			consumer, err := stream.Consumer(ctx, name)
			if err != nil {
				return fmt.Errorf("look up consumer %q: %w", name, err)
			}
			if info := consumer.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
				return fmt.Errorf("consumer %q has %d messages before it and %d in hand", name, info.NumPending, info.NumAckPending)
			}
		}
		return nil
	})
}

// Redeliver makes the broker forget what it has delivered: the consumer, which
// must not run now, begins at the stream's first message again. It is made anew
// here, since package inbox would make a missing one behind what it knows to be
// applied.
func (s *Sandbox) Redeliver(ctx context.Context, consumers ...string) error {
	for _, name := range consumers {
		old, err := s.JetStream.Consumer(ctx, Stream, name)
		if err != nil {
			return fmt.Errorf("look up consumer %q: %w", name, err)
		}
		if err := s.JetStream.DeleteConsumer(ctx, Stream, name); err != nil {
			return fmt.Errorf("delete consumer %q: %w", name, err)
		}
		cfg := old.CachedInfo().Config
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverAllPolicy, 0
		if _, err := s.JetStream.CreateConsumer(ctx, Stream, cfg); err != nil {
			return fmt.Errorf("make consumer %q anew: %w", name, err)
		}
	}
	return nil
}

// NATS is the broker's URL, once StartRelay was called.
func (s *Sandbox) NATS() string { return s.broker.URL() }

// Start starts a process that does not outlive the sandbox.
func (s *Sandbox) Start(cmd *exec.Cmd) error { return s.env.Child(cmd) }

// Dir is a folder that Close removes.
func (s *Sandbox) Dir() string { return s.env.Dir() }
