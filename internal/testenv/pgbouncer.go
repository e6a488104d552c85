package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// A PgBouncerConfig says how a pooler before a cluster is run.
type PgBouncerConfig struct {
	// Postgres is the cluster behind it.
	Postgres *Postgres
	// Mode is session, transaction or statement. Empty means transaction.
	Mode string
	// Ignore are startup parameters that it takes and does not pass on.
	Ignore []string
}

// pgBouncer finds the program, which Debian puts where only root looks.
func pgBouncer() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("pgbouncer is not installed; run `make deps`, or install the package pgbouncer")
}

// StartPgBouncer starts a pooler that lets everybody in, and gives its host and
// port when it listens. The Env stops it.
func (e *Env) StartPgBouncer(ctx context.Context, cfg PgBouncerConfig) (addr string, err error) {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	program, err := pgBouncer()
	if err != nil {
		return "", err
	}
	who, err := serverAccount()
	if err != nil {
		return "", err
	}
	folder, err := e.folder("pgbouncer")
	if err != nil {
		return "", err
	}
	port, err := e.base.port(ctx)
	if err != nil {
		return "", err
	}
	mode := cfg.Mode
	if mode == "" {
		mode = "transaction"
	}
	file, log := filepath.Join(folder, "pgbouncer.ini"), filepath.Join(folder, "pgbouncer.log")
	text := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\n"+
		"unix_socket_dir =\nauth_type = any\npool_mode = %s\nignore_startup_parameters = %s\n", cfg.Postgres.Port(), port, mode, strings.Join(cfg.Ignore, ","))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return "", fmt.Errorf("write the configuration of pgbouncer: %w", err)
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return "", fmt.Errorf("open pgbouncer's log: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, file)
	cmd.Dir = folder
	cmd.Stdout, cmd.Stderr = out, out
	who.runAs(cmd) // it refuses to be root
	r, err := e.watch(cmd)
	if err = errors.Join(err, out.Close()); err != nil {
		return "", err
	}
	e.mu.Lock()
	e.children = append(e.children, r.id)
	e.mu.Unlock()
	addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	listens := poll(ctx, func() bool {
		if r.live() == nil {
			return true
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		return err == nil && conn.Close() == nil
	})
	if !listens || r.live() == nil {
		return "", fmt.Errorf("start pgbouncer on port %d: it does not listen%s", port, logTail(log))
	}
	return addr, nil
}
