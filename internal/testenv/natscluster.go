package testenv

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// StartNATSCluster starts n nats-servers, each a child process, as one cluster.
// It returns when a stream with n replicas can be made there, which takes some
// seconds. Of cfg's fields those that are a single server's (Port, ServerName,
// ClusterPort, Routes) are chosen for each; a Dir gets one folder a server.
func (e *Env) StartNATSCluster(ctx context.Context, n int, cfg NATSConfig) ([]*NATS, error) {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	if cfg.Cluster == "" {
		cfg.Cluster = "walrelay"
	}
	cfg.Routes = nil
	ports := make([]int, n)
	for i := range ports {
		port, err := e.base.port(ctx)
		if err != nil {
			return nil, err
		}
		ports[i] = port
		cfg.Routes = append(cfg.Routes, "nats://"+loopback(port))
	}
	var servers []*NATS
	fail := func(err error) ([]*NATS, error) {
		errs := []error{err}
		for _, s := range servers {
			errs = append(errs, s.Close())
		}
		return nil, errors.Join(errs...)
	}
	for i := range n {
		member := cfg
		member.Port, member.ClusterPort = 0, ports[i]
		member.ServerName = fmt.Sprintf("n%d", i+1)
		if cfg.Dir != "" {
			member.Dir = filepath.Join(cfg.Dir, member.ServerName)
		}
		s, err := e.newNATS(ctx, member)
		if err != nil {
			return fail(err)
		}
		servers = append(servers, s)
		if err := s.launch(ctx); err != nil {
			return fail(err)
		}
	}
	for _, s := range servers {
		if err := s.ready(ctx); err != nil {
			return fail(s.explain("start", err))
		}
	}
	if err := replicates(ctx, servers); err != nil {
		return fail(fmt.Errorf("start a cluster of %d nats-servers: %w%s", n, err, logTail(servers[0].LogFile())))
	}
	return servers, nil
}

// replicates waits until a stream on all servers can be made, and removes it
// again: only that shows that the servers know each other and have a leader.
func replicates(ctx context.Context, servers []*NATS) error {
	const (
		try   = 2 * time.Second
		probe = "WALRELAY_TESTENV_PROBE"
	)
	nc, err := nats.Connect(servers[0].URL(), nats.ReconnectWait(50*time.Millisecond), nats.MaxReconnects(-1))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	var last error
	done := poll(ctx, func() bool {
		tryCtx, cancel := context.WithTimeout(ctx, try)
		defer cancel()
		_, last = js.CreateOrUpdateStream(tryCtx, jetstream.StreamConfig{
			Name: probe, Subjects: []string{probe}, Storage: jetstream.MemoryStorage, Replicas: len(servers),
		})
		return last == nil
	})
	if !done {
		return errors.Join(ctx.Err(), last)
	}
	if err := js.DeleteStream(ctx, probe); err != nil {
		return fmt.Errorf("remove the stream that was made to try: %w", err)
	}
	return nil
}
