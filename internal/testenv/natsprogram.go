package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// natsVariable names a nats-server program that tests run in place of the one
// that is linked in, such as the oldest that walrelay supports.
const natsVariable = "WALRELAY_TEST_NATS"

// natsProgram is the program of $WALRELAY_TEST_NATS, empty when the linked-in
// server is to run.
func natsProgram() (path string, err error) {
	name := os.Getenv(natsVariable)
	if name == "" {
		return "", nil
	}
	if path, err = exec.LookPath(name); err != nil {
		return "", fmt.Errorf("%s=%q is not a nats-server that can be run: %w; `make test-matrix` builds one", natsVariable, name, err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", fmt.Errorf("find the nats-server %s=%q: %w", natsVariable, name, err)
	}
	return path, nil
}

// command is the server's process: this program in another role, or the one
// that $WALRELAY_TEST_NATS names.
func (n *NATS) command(ctx context.Context) (*exec.Cmd, error) {
	if n.program == "" {
		return roleCommand(ctx, roleNATS, natsConfigVariable+"="+n.configFile())
	}
	text, err := n.cfg.text()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(n.folder, "nats.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of nats-server: %w", err)
	}
	// It ends by a signal, never with ctx.
	return exec.CommandContext(context.WithoutCancel(ctx), n.program, "--config", path), nil
}

// text is the configuration in nats-server's own language, where what comes
// later wins. Dir and Port are set.
func (c NATSConfig) text() (string, error) {
	var b strings.Builder
	set := func(name string, value any) { fmt.Fprintf(&b, "%s: %v\n", name, value) }
	set("server_name", strconv.Quote(c.name()))
	if c.ConfigFile != "" {
		text, err := os.ReadFile(c.ConfigFile)
		if err != nil {
			return "", fmt.Errorf("read the nats-server configuration %s: %w", c.ConfigFile, err)
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	if c.ServerName != "" {
		set("server_name", strconv.Quote(c.ServerName))
	}
	set("host", strconv.Quote("127.0.0.1"))
	set("port", c.Port)
	sync := ""
	if c.SyncAlways {
		sync = ", sync_interval: always"
	}
	set("jetstream", fmt.Sprintf("{store_dir: %q%s}", c.Dir, sync))
	if c.MaxPayload != 0 {
		set("max_payload", c.MaxPayload)
	}
	switch {
	case c.Token != "":
		set("authorization", fmt.Sprintf("{token: %q}", c.Token))
	case c.User != "":
		set("authorization", fmt.Sprintf("{user: %q, password: %q}", c.User, c.Password))
	}
	if c.Cluster != "" {
		routes := make([]string, 0, len(c.Routes))
		for _, route := range c.Routes {
			routes = append(routes, strconv.Quote(route))
		}
		set("cluster", fmt.Sprintf("{name: %q, host: %q, port: %d, routes: [%s]}", c.Cluster, "127.0.0.1", c.ClusterPort, strings.Join(routes, ", ")))
	}
	return b.String(), nil
}

// startOther starts the program of $WALRELAY_TEST_NATS where a test asked for a
// server in its own process, which must be the linked-in one. Nil without the
// variable.
func (e *Env) startOther(cfg NATSConfig) (*EmbeddedNATS, error) {
	if program, err := natsProgram(); program == "" || err != nil {
		return nil, err
	}
	n, err := e.StartNATS(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	return &EmbeddedNATS{other: n, cfg: n.cfg}, nil
}

// closeOther ends it as Close ends an embedded one: in order.
func (n *EmbeddedNATS) closeOther() {
	ctx, cancel := context.WithTimeout(context.Background(), killPatience)
	defer cancel()
	// What is left is killed, and its failure nobody can act on.
	_ = errors.Join(n.other.Stop(ctx), n.other.Close())
}
