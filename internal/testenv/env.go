package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// An Env owns a temporary folder and every process and server that was started
// through it. Its methods may be called by several goroutines at once.
type Env struct {
	base *base  // shared by an Env and all that were split from it
	root bool   // base is ours to close
	dir  string // absolute

	mu       sync.Mutex
	closed   bool
	children []processID
	servers  map[owned]struct{}
	number   int // of the last server folder
}

// A base is what one helper process serves.
type base struct {
	reaper *reaper
	dir    string // of the Env that New made

	mu        sync.Mutex
	ports     map[int]bool      // given away, never given again
	templates map[int]*template // by PostgreSQL version
}

// What is owned is stopped, and its files removed, by the Env that started it.
type owned interface {
	io.Closer
	interrupt() // asks it to stop at once, without waiting
}

// An Option changes how [New] makes an Env.
type Option func(*options)

type options struct {
	dir string
}

// WithDir puts the temporary folder of the Env into dir. The default is the
// system's folder for temporary files.
func WithDir(dir string) Option {
	return func(o *options) { o.dir = dir }
}

// New makes an Env with a fresh folder and starts the helper process that
// cleans up when this process dies. The caller closes it. [Main] must have
// been called before.
func New(opts ...Option) (*Env, error) {
	if !supported {
		return nil, errors.New("servers for tests and the demo need Linux")
	}
	if !mainCalled.Load() {
		return nil, errors.New("testenv.Main was not called: make it the first statement of TestMain (envtest.Main does it) or of main")
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	dir, err := os.MkdirTemp(o.dir, "walrelay-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for servers: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("find the folder for servers: %w", err)
	}
	// PostgreSQL runs as another user when we are root and has to pass.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("open the folder for servers: %w", err), os.RemoveAll(dir))
	}
	helper, err := startReaper(context.Background())
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	e := &Env{
		base:    &base{reaper: helper, dir: dir, ports: make(map[int]bool), templates: make(map[int]*template)},
		root:    true,
		dir:     dir,
		servers: make(map[owned]struct{}),
	}
	if err := helper.claim(claim{Folder: dir}); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Split makes an Env within this one: with a folder and servers of its own,
// the same helper process and the same prepared clusters. It is for a single
// test among many; closing it does not touch the rest.
func (e *Env) Split() (*Env, error) {
	dir, err := os.MkdirTemp(e.dir, "env-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for servers: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open the folder for servers: %w", err)
	}
	return &Env{base: e.base, dir: dir, servers: make(map[owned]struct{})}, nil
}

// Dir is the Env's folder. It and all in it is removed by Close.
func (e *Env) Dir() string { return e.dir }

// Child starts cmd so that it dies with this process, at the latest. The
// caller waits for it with cmd.Wait; Close kills it when it still runs. Unless
// cmd says otherwise it gets a process group of its own.
func (e *Env) Child(cmd *exec.Cmd) error {
	id, err := e.launch(cmd)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.children = append(e.children, id)
	return nil
}

// launch starts cmd and claims it.
func (e *Env) launch(cmd *exec.Cmd) (processID, error) {
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return processID{}, fmt.Errorf("start %s: the environment is closed", filepath.Base(cmd.Path))
	}
	separate(cmd)
	if err := cmd.Start(); err != nil {
		return processID{}, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	// It cannot be gone: nobody has waited for it yet.
	id, _ := identify(cmd.Process.Pid)
	if err := e.base.reaper.claim(claim{Process: id}); err != nil {
		return processID{}, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return id, nil
}

// adopt makes the Env responsible for a server.
func (e *Env) adopt(s owned) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.servers[s] = struct{}{}
}

// release ends that; the server has stopped.
func (e *Env) release(s owned) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.servers, s)
}

// folder makes a folder for one more server.
func (e *Env) folder(kind string) (string, error) {
	e.mu.Lock()
	e.number++
	dir := filepath.Join(e.dir, fmt.Sprintf("%s-%d", kind, e.number))
	e.mu.Unlock()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a server's folder: %w", err)
	}
	return dir, nil
}

// Close stops everything that was started, without mercy, waits for it and
// removes the folder. A second Close does nothing.
func (e *Env) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	servers := make([]owned, 0, len(e.servers))
	for s := range e.servers {
		servers = append(servers, s)
	}
	children := e.children
	e.mu.Unlock()

	// All are signalled before the first is waited for.
	for _, c := range children {
		c.signal(syscall.SIGKILL)
	}
	for _, s := range servers {
		s.interrupt()
	}
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Close())
	}
	if !waitGone(children, killPatience) {
		errs = append(errs, errors.New("a killed child process does not end"))
	}
	errs = append(errs, os.RemoveAll(e.dir))
	if e.root {
		errs = append(errs, e.base.reaper.close())
	}
	return errors.Join(errs...)
}

// pollInterval is the pause between two looks at something that is awaited.
const pollInterval = 5 * time.Millisecond

// poll calls done until it is true or ctx ends, and tells which.
func poll(ctx context.Context, done func() bool) bool {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if done() {
			return true
		}
		select {
		case <-ctx.Done():
			return done()
		case <-tick.C:
		}
	}
}
