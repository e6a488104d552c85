package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
)

// A nodeConsumer is consumer.ts in a folder with its clients, and the process
// that runs it.
type nodeConsumer struct {
	box *sandbox.Sandbox
	dir string
	out io.Writer
	cmd *exec.Cmd
	// said is what the process wrote; it is read after the process has ended.
	said *bytes.Buffer
}

// install copies the program, lets npm fetch its clients, and compiles it.
func (n *nodeConsumer) install(ctx context.Context) error {
	if err := os.CopyFS(n.dir, program); err != nil {
		return fmt.Errorf("copy the program: %w", err)
	}
	// The versions of the lock file, and none of their scripts.
	err := n.npm(ctx, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
	if err != nil {
		return err
	}
	return n.npm(ctx, "run", "build")
}

func (n *nodeConsumer) npm(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "npm", append(args, "--no-update-notifier", "--loglevel=error")...) //nolint:gosec // the arguments are this program's own
	cmd.Dir = n.dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm %s: %w: %s", args[0], err, bytes.TrimSpace(text))
	}
	return nil
}

// start begins to consume.
func (n *nodeConsumer) start() error {
	n.said = &bytes.Buffer{}
	cmd := exec.Command("node", "dist/consumer.js") //nolint:noctx // it is stopped by signals, as a service is
	cmd.Dir = n.dir
	cmd.Env = append(os.Environ(), "DATABASE_URL="+n.box.DatabaseURL, "NATS_URL="+n.box.NATS(),
		"STREAM="+sandbox.Stream, "SUBJECT=outbox."+sandbox.Source+".order.>", "CONSUMER="+consumer)
	cmd.Stdout, cmd.Stderr = n.said, n.said
	if err := n.box.Start(cmd); err != nil {
		return err
	}
	n.cmd = cmd
	return nil
}

// kill gives the process, if there is one, no chance to tidy up.
func (n *nodeConsumer) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill() // it may have ended: Wait tells
	_ = n.cmd.Wait()         // killed, as was meant
	n.cmd = nil
}

// stop asks the process to end and waits for it.
func (n *nodeConsumer) stop() error {
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the consumer: %w", err)
	}
	err := n.cmd.Wait()
	n.cmd = nil
	if err != nil {
		return fmt.Errorf("the consumer ended with %w: %s", err, bytes.TrimSpace(n.said.Bytes()))
	}
	lines := bytes.Split(bytes.TrimSpace(n.said.Bytes()), []byte("\n"))
	fmt.Fprintf(n.out, "   the consumer wrote %d lines, the last: %s\n", len(lines), lines[len(lines)-1])
	return nil
}
