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
		{name: "stream purged", fits: []kind{single, cluster}, on: []string{"stream"}, inject: purge},
		{name: "stream made anew", fits: []kind{single}, on: []string{"stream", "broker"}, inject: makeAnew},
		{name: "stream restored", fits: []kind{single}, on: []string{"stream", "broker"}, inject: keepCopy, mend: restoreCopy},
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
		cfg.MaxMsgs, cfg.Discard = -1, jetstream.DiscardOld
	})
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
