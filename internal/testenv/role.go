package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
)

// roleVariable names the role of a process that was started by this package.
const roleVariable = "WALRELAY_TESTENV_ROLE"

// Roles that this program plays beside its own.
const (
	roleReaper = "reaper"
	roleNATS   = "nats-server"
)

// mainCalled guards against a program that forgot Main: its helper would be
// the whole program once more, which starts a helper, and so on.
var mainCalled atomic.Bool

// Main plays the role this process was started in, and then never returns:
// the helper that removes what a dead process left, or a nats-server. In any
// other process it returns at once. It has to be the first call of TestMain
// and of main; without it [New] refuses to work.
func Main() {
	mainCalled.Store(true)
	var err error
	switch role := os.Getenv(roleVariable); role {
	case "":
		return
	case roleReaper:
		err = reap(os.Stdin)
	case roleNATS:
		err = serveNATS(os.Stdin, os.Getenv(natsConfigVariable))
	default:
		err = fmt.Errorf("unknown role %q in %s", role, roleVariable)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "walrelay testenv:", err)
		os.Exit(1) //nolint:forbidigo // this process is a helper, its role is its main
	}
	os.Exit(0) //nolint:forbidigo // as above
}

// roleCommand is this program in another role.
func roleCommand(ctx context.Context, role string, env ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program's file: %w", err)
	}
	// The role ends by a signal or by the end of its input, never with ctx.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Env = append(cmd.Env, env...)
	return cmd, nil
}
