package faults_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walrelay/walrelay/internal/testenv"
)

func brokerFaults() []fault {
	return []fault{
		{
			name: "NATS killed", fits: []kind{single, synced, plain}, on: []string{"broker"},
			inject: func(ctx context.Context, s *stage) error { return s.broker.Kill(ctx) },
			mend:   func(ctx context.Context, s *stage) error { return s.broker.Start(ctx) },
		},
		{
			name: "NATS frozen", fits: []kind{single, synced, plain}, on: []string{"broker"},
			inject: func(_ context.Context, s *stage) error { return s.broker.Pause() },
			mend:   func(_ context.Context, s *stage) error { return s.broker.Resume() },
		},
		nodeFault("NATS node killed", (*stage).anyNode, kill, start),
		nodeFault("NATS node frozen", (*stage).anyNode, pause, resume),
		nodeFault("NATS leader killed", (*stage).leader, kill, start),
		nodeFault("NATS leader frozen", (*stage).leader, pause, resume),
		{
			name: "NATS leader steps down", fits: []kind{cluster}, on: []string{"broker"},
			inject: func(ctx context.Context, s *stage) error {
				return s.persist(ctx, func(ctx context.Context) error {
					_, err := s.now().Conn.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+s.anyStream(), nil)
					return err
				})
			},
		},
		{
			name: "NATS majority killed", fits: []kind{cluster}, on: []string{"broker"},
			inject: func(ctx context.Context, s *stage) error {
				return errors.Join(s.nodes[1].Kill(ctx), s.nodes[2].Kill(ctx))
			},
			mend: func(ctx context.Context, s *stage) error {
				return errors.Join(s.nodes[1].Start(ctx), s.nodes[2].Start(ctx))
			},
		},
	}
}

func kill(ctx context.Context, n *testenv.NATS) error  { return n.Kill(ctx) }
func start(ctx context.Context, n *testenv.NATS) error { return n.Start(ctx) }
func pause(_ context.Context, n *testenv.NATS) error   { return n.Pause() }
func resume(_ context.Context, n *testenv.NATS) error  { return n.Resume() }

// nodeFault is one on a node of the cluster, which which chooses.
func nodeFault(name string, which func(*stage, context.Context) (*testenv.NATS, error), inject, mend func(context.Context, *testenv.NATS) error) fault {
	return fault{
		name: name, fits: []kind{cluster}, on: []string{"broker"},
		inject: func(ctx context.Context, s *stage) error {
			n, err := which(s, ctx)
			if err != nil {
				return err
			}
			s.victim = n
			return inject(ctx, n)
		},
		mend: func(ctx context.Context, s *stage) error { return mend(ctx, s.victim) },
	}
}

func (s *stage) anyNode(context.Context) (*testenv.NATS, error) {
	return s.nodes[s.random(len(s.nodes))], nil
}

// leader is the server that leads one of the streams.
func (s *stage) leader(ctx context.Context) (*testenv.NATS, error) {
	var leader *testenv.NATS
	name := s.anyStream()
	err := s.persist(ctx, func(ctx context.Context) error {
		stream, err := s.now().JetStream.Stream(ctx, name)
		if err != nil {
			return err
		}
		info := stream.CachedInfo()
		for _, n := range s.nodes {
			if info.Cluster != nil && info.Cluster.Leader == n.Name() {
				leader = n
				return nil
			}
		}
		return fmt.Errorf("stream %s has no leader", name)
	})
	return leader, err
}

func databaseFaults() []fault {
	return []fault{
		{
			name: "PostgreSQL killed", fits: everywhere, on: []string{"database"},
			inject: func(ctx context.Context, s *stage) error { return s.primary.Kill(ctx) },
			mend:   func(ctx context.Context, s *stage) error { return s.primary.Start(ctx) },
		},
		{
			name: "PostgreSQL frozen", fits: everywhere, on: []string{"database"},
			inject: func(_ context.Context, s *stage) error { return s.primary.Pause() },
			mend:   func(_ context.Context, s *stage) error { return s.primary.Resume() },
		},
		{
			name: "PostgreSQL restarted", fits: everywhere, on: []string{"database"},
			inject: func(ctx context.Context, s *stage) error {
				// A relay that is frozen does not let go of the slot, and the
				// server waits for it.
				patience, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				if s.primary.Stop(patience, testenv.Fast) != nil {
					return s.primary.Stop(ctx, testenv.Immediate)
				}
				return nil
			},
			mend: func(ctx context.Context, s *stage) error { return s.primary.Start(ctx) },
		},
	}
}
