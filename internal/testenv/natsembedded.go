package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// An EmbeddedNATS is a nats-server within this process: ready in milliseconds,
// but it cannot be killed and dies with us.
type EmbeddedNATS struct {
	server *server.Server
	other  *NATS // in place of server where $WALRELAY_TEST_NATS names a program
	cfg    NATSConfig
	remove string // folder to remove at the end, may be empty
}

// StartEmbeddedNATS starts a nats-server in this process. Without a
// [NATSConfig.Dir] its folder is a temporary one, which a killed process leaves
// behind; [Env.Dir] is a better place.
func StartEmbeddedNATS(cfg NATSConfig) (*EmbeddedNATS, error) {
	const patience = 10 * time.Second
	n := &EmbeddedNATS{cfg: cfg}
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "walrelay-nats-")
		if err != nil {
			return nil, fmt.Errorf("make a folder for nats-server: %w", err)
		}
		n.cfg.Dir, n.remove = dir, dir
	}
	if cfg.Port == 0 {
		n.cfg.Port = server.RANDOM_PORT
	}
	o, err := n.cfg.options()
	if err != nil {
		return nil, errors.Join(err, n.clean())
	}
	if cfg.ServerName == "" {
		o.ServerName = "" // the port is not known yet
	}
	o.NoSigs, o.NoLog = true, true
	s, err := server.NewServer(o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a nats-server: %w", err), n.clean())
	}
	n.server = s
	// It may have to recover streams first; ReadyForConnections bounds it.
	s.Start()
	if !s.ReadyForConnections(patience) {
		n.Close()
		return nil, fmt.Errorf("start a nats-server in this process: not ready within %s; is port %d in use?", patience, cfg.Port)
	}
	if address, ok := s.Addr().(*net.TCPAddr); ok {
		n.cfg.Port = address.Port
	}
	return n, nil
}

// URL is what clients connect to, with user and password or token.
func (n *EmbeddedNATS) URL() string { return n.cfg.url() }

// Addr is the server's host and port.
func (n *EmbeddedNATS) Addr() string { return loopback(n.cfg.Port) }

// Port is the server's port for clients.
func (n *EmbeddedNATS) Port() int { return n.cfg.Port }

// StoreDir is the folder that holds the streams.
func (n *EmbeddedNATS) StoreDir() string { return n.cfg.storeDir() }

// Close stops the server and waits until nothing of it runs.
func (n *EmbeddedNATS) Close() {
	if n.other != nil {
		n.closeOther()
		return
	}
	n.server.Shutdown()
	n.server.WaitForShutdown()
	_ = n.clean() // a temporary folder; nobody can act on it
}

func (n *EmbeddedNATS) clean() error {
	if n.remove == "" {
		return nil
	}
	return os.RemoveAll(n.remove)
}

// StartEmbeddedNATS starts a nats-server in this process whose folder is in the Env's.
// The caller closes it before the Env. Where $WALRELAY_TEST_NATS names another
// version's program, that one runs as a child process instead.
func (e *Env) StartEmbeddedNATS(cfg NATSConfig) (*EmbeddedNATS, error) {
	if n, err := e.startOther(cfg); n != nil || err != nil {
		return n, err
	}
	if cfg.Dir == "" {
		dir, err := e.folder("nats")
		if err != nil {
			return nil, err
		}
		cfg.Dir = dir
	}
	return StartEmbeddedNATS(cfg)
}
