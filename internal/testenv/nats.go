package testenv

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
)

// natsConfigVariable holds the path of the configuration for the role of a
// nats-server. A file, since it may hold a password.
const natsConfigVariable = "WALRELAY_TESTENV_NATS"

// A NATS is a nats-server in a process of its own, which may be stopped, killed
// and started again. It is the version that is linked in, or the program that
// $WALRELAY_TEST_NATS names.
type NATS struct {
	env     *Env
	folder  string // removed by Close
	cfg     NATSConfig
	program string // of $WALRELAY_TEST_NATS, empty for the linked-in server

	mu     sync.Mutex
	run    *run
	closed bool
}

// StartNATS starts a nats-server as a child process and returns when it takes
// connections; ctx bounds only that. The Env stops it.
func (e *Env) StartNATS(ctx context.Context, cfg NATSConfig) (*NATS, error) {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	chosen := cfg.Port == 0
	const tries = 3
	for try := 1; ; try++ {
		n, err := e.newNATS(ctx, cfg)
		if err != nil {
			return nil, err
		}
		if err = n.Start(ctx); err == nil {
			return n, nil
		}
		// Another process may have been faster to the port.
		retry := chosen && try < tries && n.portTaken()
		err = errors.Join(err, n.Close())
		if !retry {
			return nil, err
		}
	}
}

// newNATS prepares a server without starting it.
func (e *Env) newNATS(ctx context.Context, cfg NATSConfig) (*NATS, error) {
	program, err := natsProgram()
	if err != nil {
		return nil, err
	}
	folder, err := e.folder("nats")
	if err != nil {
		return nil, err
	}
	if cfg.Dir == "" {
		cfg.Dir = folder
	}
	for _, path := range []*string{&cfg.Dir, &cfg.ConfigFile} {
		if *path == "" {
			continue
		}
		// The child has another working folder.
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, fmt.Errorf("find the path %s: %w", *path, err)
		}
	}
	if cfg.Port == 0 {
		if cfg.Port, err = e.base.port(ctx); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of nats-server: %w", err)
	}
	n := &NATS{env: e, folder: folder, cfg: cfg, program: program}
	if err := os.WriteFile(n.configFile(), text, 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of nats-server: %w", err)
	}
	e.adopt(n)
	return n, nil
}

// Start starts the stopped server again, on the same folder and port, and
// returns when it takes connections.
func (n *NATS) Start(ctx context.Context) error {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	if err := n.launch(ctx); err != nil {
		return err
	}
	if err := n.ready(ctx); err != nil {
		return n.explain("start", err)
	}
	return nil
}

// launch starts the process and does not wait until it answers.
func (n *NATS) launch(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return n.explain("start", errors.New("it was closed"))
	case n.run != nil && n.run.id.alive():
		return n.explain("start", errors.New("it is running"))
	}
	cmd, err := n.command(ctx)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(n.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	cmd.Dir = n.folder
	cmd.Stdout, cmd.Stderr = log, log
	// The process ends with its input, which stays open as long as we live.
	if _, err := cmd.StdinPipe(); err != nil {
		return errors.Join(fmt.Errorf("pipe to nats-server: %w", err), log.Close())
	}
	n.run, err = n.env.watch(cmd)
	return errors.Join(err, log.Close())
}

// ready waits until the server greets, which it does when its streams are
// recovered.
func (n *NATS) ready(ctx context.Context) error {
	n.mu.Lock()
	r := n.run
	n.mu.Unlock()
	var last error
	exited := false
	poll(ctx, func() bool {
		select {
		case <-r.exited:
			exited = true
			return true
		default:
		}
		last = greeting(ctx, loopback(n.cfg.Port))
		return last == nil
	})
	if exited {
		return errors.New("the server ended")
	}
	if last != nil {
		return fmt.Errorf("it does not answer: %w", last)
	}
	return nil
}

// greeting connects and reads the INFO line that a nats-server begins with.
func greeting(ctx context.Context, address string) (err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	word, err := bufio.NewReader(conn).ReadString(' ')
	if err != nil {
		return err
	}
	if word != "INFO " {
		return errors.New("another program listens on the port")
	}
	return nil
}

// Stop ends the server in order (SIGTERM) and waits for it. Stopping a stopped
// server does nothing.
func (n *NATS) Stop(ctx context.Context) error { return n.end(ctx, syscall.SIGTERM, "stop") }

// Kill ends the server by SIGKILL and waits for it.
func (n *NATS) Kill(ctx context.Context) error { return n.end(ctx, syscall.SIGKILL, "kill") }

func (n *NATS) end(ctx context.Context, sig syscall.Signal, what string) error {
	r := n.current()
	if r == nil {
		return nil
	}
	r.id.signal(sig)
	select {
	case <-r.exited:
		return nil
	case <-ctx.Done():
		return n.explain(what, ctx.Err())
	}
}

// Pause stops the process (SIGSTOP): connections stay open and nobody answers.
func (n *NATS) Pause() error {
	r := n.current()
	if r == nil {
		return n.explain("pause", errors.New("it is not running"))
	}
	r.id.freeze()
	return nil
}

// Resume lets a paused server go on.
func (n *NATS) Resume() error {
	r := n.current()
	if r == nil {
		return n.explain("resume", errors.New("it is not running"))
	}
	r.id.thaw()
	return nil
}

// Close kills the server and removes its files, but not a folder that
// [NATSConfig] named.
func (n *NATS) Close() error {
	n.mu.Lock()
	closed := n.closed
	n.closed = true
	n.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killPatience)
	defer cancel()
	err := n.Kill(ctx)
	n.env.release(n)
	return errors.Join(err, os.RemoveAll(n.folder))
}

func (n *NATS) interrupt() {
	if r := n.current(); r != nil {
		r.id.signal(syscall.SIGKILL)
	}
}

func (n *NATS) current() *run {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.run.live()
}

// URL is what clients connect to, with user and password or token.
func (n *NATS) URL() string { return n.cfg.url() }

// Addr is the server's host and port.
func (n *NATS) Addr() string { return loopback(n.cfg.Port) }

// Port is the server's port for clients, the same after every start.
func (n *NATS) Port() int { return n.cfg.Port }

// Name is the server's name, as in the answers about a cluster.
func (n *NATS) Name() string { return n.cfg.name() }

// StoreDir is the folder that holds the streams.
func (n *NATS) StoreDir() string { return n.cfg.storeDir() }

// LogFile is the file that the server logs to, over all its starts.
func (n *NATS) LogFile() string { return filepath.Join(n.folder, "nats.log") }

// Pid is the server's process id, zero while it is down.
func (n *NATS) Pid() int {
	if r := n.current(); r != nil {
		return r.id.Pid
	}
	return 0
}

func (n *NATS) configFile() string { return filepath.Join(n.folder, "nats.json") }

func (n *NATS) portTaken() bool {
	return strings.Contains(logTail(n.LogFile()), "address already in use")
}

func (n *NATS) explain(what string, err error) error {
	return fmt.Errorf("%s nats-server on port %d: %w%s", what, n.cfg.Port, err, logTail(n.LogFile()))
}

// serveNATS is the role of a nats-server: it ends by a signal, or with its
// input, that is, with the process that started it.
func serveNATS(input io.Reader, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the configuration of nats-server: %w", err)
	}
	var cfg NATSConfig
	if err := json.Unmarshal(text, &cfg); err != nil {
		return fmt.Errorf("read the configuration of nats-server: %w", err)
	}
	o, err := cfg.options()
	if err != nil {
		return err
	}
	s, err := server.NewServer(o)
	if err != nil {
		return fmt.Errorf("make a nats-server: %w", err)
	}
	s.ConfigureLogger()
	go func() {
		_, _ = io.Copy(io.Discard, input)
		s.Shutdown()
	}()
	s.Start()
	s.WaitForShutdown()
	return nil
}
