package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats.go/jetstream"
)

func streamFaults() []fault {
	return []fault{
		{name: "stream full", fits: everywhere, on: []string{"stream"}, inject: fill, mend: makeRoom},
		{name: "stream full of bytes", fits: everywhere, on: []string{"stream"}, inject: squeeze, mend: makeRoom},
		{name: "stream purged", loses: true, fits: []kind{single, cluster}, on: []string{"stream"}, inject: purge},
		{name: "stream made anew", loses: true, fits: []kind{single}, on: []string{"stream", "broker"}, inject: makeAnew},
		{name: "stream restored", loses: true, fits: []kind{single}, on: []string{"stream", "broker"}, inject: keepCopy, mend: restoreCopy},
	}
}

// fill leaves a stream room for a few more messages.
func fill(ctx context.Context, s *stage) error {
	s.full = s.anyStream()
	return s.limit(ctx, s.full, func(cfg *jetstream.StreamConfig, state jetstream.StreamState) {
		cfg.MaxMsgs, cfg.Discard = int64(state.Msgs)+5, jetstream.DiscardNew
	})
}

func makeRoom(ctx context.Context, s *stage) error {
	return s.limit(ctx, s.full, func(cfg *jetstream.StreamConfig, _ jetstream.StreamState) {
		cfg.MaxMsgs, cfg.MaxBytes, cfg.Discard = -1, -1, jetstream.DiscardOld
	})
}

// squeeze has a stream refuse a message and take a smaller one that is on its way
// behind it, again and again: what is stored then has a hole.
func squeeze(ctx context.Context, s *stage) error {
	w := s.now()
	s.full = w.StreamName
	for range 12 {
		var bytes uint64
		err := s.limit(ctx, s.full, func(cfg *jetstream.StreamConfig, state jetstream.StreamState) {
			bytes = state.Bytes
			cfg.MaxBytes, cfg.Discard = int64(bytes)+int64(10_000+s.random(5_000)), jetstream.DiscardNew
		})
		if err != nil {
			return err
		}
		err = s.persist(ctx, func(ctx context.Context) error {
			_, err := s.now().Pool.Exec(ctx, `SELECT e2e.place(gen_random_uuid(), $1, 'placed', repeat('x', (random() * 1500)::int)) FROM generate_series(1, 40)`,
				fmt.Sprintf("a%d", 1+s.random(12)))
			return err
		})
		if err != nil {
			return err
		}
		err = s.persist(ctx, func(ctx context.Context) error { // one message more is too many
			stream, err := s.now().JetStream.Stream(ctx, s.full)
			if err == nil && stream.CachedInfo().State.Bytes < bytes+8_000 {
				err = fmt.Errorf("stream %s is not full", s.full)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) limit(ctx context.Context, name string, change func(*jetstream.StreamConfig, jetstream.StreamState)) error {
	return s.persist(ctx, func(ctx context.Context) error {
		stream, err := s.now().JetStream.Stream(ctx, name)
		if err != nil {
			return err
		}
		info := stream.CachedInfo()
		change(&info.Config, info.State)
		_, err = s.now().JetStream.UpdateStream(ctx, info.Config)
		return err
	})
}

// purge removes all messages. They were stored, and are not to come again.
func purge(ctx context.Context, s *stage) error {
	name := s.anyStream()
	return s.persist(ctx, func(ctx context.Context) error { return s.now().Purge(ctx, name) })
}

// makeAnew deletes a stream and makes an empty one of the same name. What it
// held is lost, and each event has to be in the new one: the operator asks for
// that, as the relay does not fill a new stream by itself.
func makeAnew(ctx context.Context, s *stage) error {
	name := s.anyStream()
	return s.now().Hands(ctx, func() error {
		return s.persist(ctx, func(ctx context.Context) error {
			js := s.now().JetStream
			cfg, err := s.deleted(ctx, name)
			if err != nil {
				return err
			}
			if _, err := js.CreateStream(ctx, *cfg); err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
				return err
			}
			s.now().Forget(name)
			return nil
		})
	})
}

// deleted deletes a stream and gives the configuration that it had.
func (s *stage) deleted(ctx context.Context, name string) (*jetstream.StreamConfig, error) {
	js := s.now().JetStream
	stream, err := js.Stream(ctx, name)
	switch {
	case err == nil:
		cfg := stream.CachedInfo().Config
		s.config = &cfg
	case s.config == nil || !errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, err
	}
	if err := js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, err
	}
	return s.config, nil
}

// keepCopy copies the broker's files.
func keepCopy(ctx context.Context, s *stage) error {
	if err := s.broker.Stop(ctx); err != nil {
		return err
	}
	s.copied = s.t.TempDir() + "/js"
	if err := os.CopyFS(s.copied, os.DirFS(s.broker.StoreDir())); err != nil {
		return fmt.Errorf("copy the broker's files: %w", err)
	}
	return s.broker.Start(ctx)
}

// restoreCopy puts them back: what was stored since is lost.
func restoreCopy(ctx context.Context, s *stage) error {
	return s.now().Hands(ctx, func() error {
		if err := s.broker.Stop(ctx); err != nil {
			return err
		}
		if err := os.RemoveAll(s.broker.StoreDir()); err != nil {
			return err
		}
		if err := os.CopyFS(s.broker.StoreDir(), os.DirFS(s.copied)); err != nil {
			return fmt.Errorf("restore the broker's files: %w", err)
		}
		return s.broker.Start(ctx)
	})
}
