package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A claim is one thing that must not outlive this process. Each of its fields
// may be empty.
type claim struct {
	Process processID `json:"process,omitzero"`  // killed
	Cluster string    `json:"cluster,omitempty"` // data folder whose postmaster is stopped
	Folder  string    `json:"folder,omitempty"`  // removed when all processes are gone
}

// A reaper is this process's end of the helper that cleans up after it. The
// helper reads claims from a pipe; the end of the pipe is the end of this
// process, however it came.
type reaper struct {
	cmd *exec.Cmd

	mu   sync.Mutex // guards pipe: one claim is one line
	pipe io.WriteCloser
}

func startReaper(ctx context.Context) (*reaper, error) {
	cmd, err := roleCommand(ctx, roleReaper)
	if err != nil {
		return nil, err
	}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to the helper process: %w", err)
	}
	// No output: `go test` waits for all who hold its output.
	detach(cmd)
	cmd.Dir = os.TempDir()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the helper process: %w", err)
	}
	return &reaper{cmd: cmd, pipe: pipe}, nil
}

// claim hands c to the helper. It needs no answer: what is in the pipe is read
// before its end is.
func (r *reaper) claim(c claim) error {
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode a claim: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.pipe.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("tell the helper process: %w", err)
	}
	return nil
}

// close lets the helper go. What it was told of and still lives dies by it.
func (r *reaper) close() error {
	err := r.pipe.Close()
	return errors.Join(err, r.cmd.Wait())
}

// patience of the helper: how long a postmaster has for an immediate stop, and
// how long all have after they were killed.
const (
	stopPatience = 5 * time.Second
	killPatience = 10 * time.Second
)

// reap is the helper's main: it collects claims until the pipe ends, then
// signals all, waits, and removes the folders.
func reap(claims io.Reader) error {
	// Whoever stops the tests stops them, not their cleaner.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	var all []claim
	for decoder := json.NewDecoder(claims); ; {
		var c claim
		// A broken last line is the death of its writer as well.
		if decoder.Decode(&c) != nil {
			break
		}
		all = append(all, c)
	}

	var gentle, victims []processID
	for _, c := range all {
		if c.Cluster != "" {
			gentle = append(gentle, clusterProcesses(c.Cluster)...)
		}
		if c.Process.alive() {
			victims = append(victims, c.Process)
		}
	}
	// The servers of a cluster are asked, since a killed postmaster leaves
	// shared memory behind; the rest is not. All are signalled first.
	for _, p := range victims {
		if !slices.Contains(gentle, p) {
			p.signal(syscall.SIGKILL)
		}
	}
	quit(gentle)
	waitGone(gentle, stopPatience)
	for _, p := range append(gentle, victims...) {
		p.signal(syscall.SIGKILL)
	}
	waitGone(append(gentle, victims...), killPatience)

	var errs []error
	for _, c := range all {
		if c.Cluster != "" {
			removeSharedMemory(c.Cluster)
		}
	}
	for _, c := range all {
		if c.Folder != "" {
			errs = append(errs, os.RemoveAll(c.Folder))
		}
	}
	return errors.Join(errs...)
}
