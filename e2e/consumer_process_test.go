package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	osexec "os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/inbox"
)

// consumerVariable holds the settings of a process that is a consumer.
const consumerVariable = "WALRELAY_E2E_CONSUMER"

// The steps at which a consumer's process can be told to die.
const (
	afterReceive = "after receive"
	afterReceipt = "after receipt"
	afterEffect  = "after effect"
	duringCommit = "during commit with the connection cut"
	afterCommit  = "after commit"
	duringAck    = "during ack"
)

var consumerSteps = []string{afterReceive, afterReceipt, afterEffect, duringCommit, afterCommit, duringAck}

// consumerSettings are what a consumer's process is told.
type consumerSettings struct {
	Database, NATS string
	Config         struct {
		Name, Partition    string
		Subjects           []string
		Order              inbox.Order
		Concurrency, Batch int
		MaxAttempts        int
		AckWait, Lease     time.Duration
	}
	// DieAt is a step, and DieAfter the number of times it is passed.
	DieAt    string
	DieAfter int64
	// PoisonN kills the process when an event with that number is handled.
	PoisonN int
	// SleepSeconds is spent in the database between receipt and effect.
	SleepSeconds int
	Verbose      bool
}

// consumerRole plays a consumer if this process was started to be one.
func consumerRole() bool {
	text := os.Getenv(consumerVariable)
	if text == "" {
		return false
	}
	var s consumerSettings
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.consume()
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
	return true
}

// A trap kills its process when it was passed often enough.
type trap struct {
	at     string
	passes atomic.Int64
}

// spring says whether the process is to die now.
func (t *trap) spring(at string) bool { return t.at == at && t.passes.Add(-1) == 0 }

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (t *trap) pass(at string) {
	if t.spring(at) {
		die()
	}
}

// orderEvent is what the events say.
type orderEvent struct {
	N int `json:"n"`
}

func (s *consumerSettings) consume() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	t := &trap{at: s.DieAt}
	t.passes.Store(s.DieAfter)
	pool, err := s.pool(ctx, t)
	if err != nil {
		return err
	}
	defer pool.Close()
	nc, err := nats.Connect(s.NATS, nats.SetCustomDialer(ackDialer{t}), nats.ReconnectWait(20*time.Millisecond), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	cfg := inbox.Config{
		Name: s.Config.Name, Partition: s.Config.Partition, DB: pool, JetStream: js, Stream: consumerStream, Subjects: s.Config.Subjects,
		Order: s.Config.Order, Concurrency: s.Config.Concurrency, Batch: s.Config.Batch, MaxAttempts: s.Config.MaxAttempts,
		AckWait: s.Config.AckWait, Lease: s.Config.Lease, MinBackoff: 10 * time.Millisecond, MaxBackoff: 200 * time.Millisecond,
		CheckInterval: 100 * time.Millisecond, DrainTimeout: 5 * time.Second,
		Complete: func(*inbox.Message) { t.pass(afterReceive) },
	}
	if s.Verbose {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	c, err := inbox.New(cfg)
	if err != nil {
		return err
	}
	inbox.On(c, "placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[orderEvent]) error {
		t.pass(afterReceipt)
		if s.PoisonN != 0 && e.Data.N == s.PoisonN {
			die()
		}
		if s.SleepSeconds > 0 {
			if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, s.SleepSeconds); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `INSERT INTO effect (event_id, aggregate, n) VALUES ($1, $2, $3)`, e.ID, e.AggregateID, e.Data.N)
		if err == nil {
			t.pass(afterEffect)
		}
		return err
	})
	// From here on it waits for what is away; to make it took a database that answers.
	_, _ = fmt.Println("ready")
	return c.Run(ctx)
}

// pool gives connections that watch for COMMIT.
func (s *consumerSettings) pool(ctx context.Context, t *trap) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(s.Database)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(s.Config.Concurrency) + 4
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &commitConn{Conn: conn, trap: t}, nil
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// commitConn dies while a commit is on its way, or has just been answered.
type commitConn struct {
	net.Conn
	trap    *trap
	pending atomic.Bool
}

func (c *commitConn) Write(b []byte) (int, error) {
	commit := bytes.Contains(b, []byte("commit\x00"))
	if commit {
		c.pending.Store(true)
	}
	n, err := c.Conn.Write(b)
	if commit && c.trap.spring(duringCommit) {
		_ = c.Close()
		die()
	}
	return n, err
}

func (c *commitConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.pending.Load() && bytes.Contains(b[:n], []byte("COMMIT\x00")) {
		c.pending.Store(false)
		c.trap.pass(afterCommit)
	}
	return n, err
}

// ackDialer gives connections that die in the middle of an ack.
type ackDialer struct{ trap *trap }

func (d ackDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return nil, err
	}
	return &ackConn{Conn: conn, trap: d.trap}, nil
}

type ackConn struct {
	net.Conn
	trap *trap
}

func (c *ackConn) Write(b []byte) (int, error) {
	if i := bytes.Index(b, []byte("+ACK")); i >= 0 && c.trap.spring(duringAck) {
		_, _ = c.Conn.Write(b[:i+2])
		die()
	}
	return c.Conn.Write(b)
}

// A consumerProcess is a consumer in a process of its own.
type consumerProcess struct {
	cmd    *osexec.Cmd
	exited chan struct{}
	once   sync.Once
	stderr bytes.Buffer
}

// startConsumer gives a process that is ready, or has died before it was.
func startConsumer(t testing.TB, s consumerSettings) *consumerProcess {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &consumerProcess{cmd: osexec.Command(self), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), consumerVariable+"="+string(text))
	p.cmd.Stderr = &p.stderr
	ready := make(chan struct{})
	p.cmd.Stdout = &readyWriter{ready: ready}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	select {
	case <-ready:
	case <-p.exited:
	case <-time.After(time.Minute):
		p.kill()
		t.Errorf("a consumer is not ready a minute after its start: %s", p.stderr.String())
	}
	return p
}

// readyWriter closes ready once it was written to.
type readyWriter struct {
	ready chan struct{}
	once  sync.Once
}

func (w *readyWriter) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.ready) })
	return len(b), nil
}

func (p *consumerProcess) signal(sig os.Signal) { _ = p.cmd.Process.Signal(sig) }

func (p *consumerProcess) kill() {
	p.once.Do(func() { p.signal(syscall.SIGKILL) })
	<-p.exited
}

// stop ends the process as an orchestrator would.
func (p *consumerProcess) stop(t testing.TB) {
	t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		t.Error("a consumer did not stop within 20 s of SIGTERM")
		p.kill()
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("a consumer exited with %d, want 0: %s", code, p.stderr.String())
	}
}

// died waits for the process to end, and says whether it was killed.
func (p *consumerProcess) died(ctx context.Context) (bool, error) {
	select {
	case <-p.exited:
	case <-ctx.Done():
		return false, errors.New("a consumer that was to die lives")
	}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return false, fmt.Errorf("a consumer ended by itself: %s: %s", p.cmd.ProcessState, p.stderr.String())
	}
	return true, nil
}
