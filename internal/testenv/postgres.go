package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A PGConfig says how a PostgreSQL cluster is made.
type PGConfig struct {
	// Version is the major version. Zero means $WALRELAY_TEST_PG, or 15.
	Version int
	// Settings are added to and beat the defaults, which are made for tests:
	// wal_level=logical, fsync=off, 20 slots and senders, 100 connections, UTC.
	// They go to the configuration file, so ALTER SYSTEM beats both.
	Settings map[string]string
	// Port to listen on. Zero means a free one.
	Port int
	// DataFrom is the data folder of a stopped server of the same version. It
	// is copied, slots and system identifier included, in place of an initdb.
	DataFrom string
	// Standby makes the copy of DataFrom come up as a standby, without slots.
	// Settings have to hold primary_conninfo.
	Standby bool
	// Recover makes the copy of DataFrom recover to a point in time and become
	// a primary on a timeline of its own, with the slots that the copy has.
	// Settings have to hold restore_command and a recovery target.
	Recover bool
	// HBA are lines of pg_hba.conf. Empty means that everybody gets in without
	// a password, which user postgres does in any case.
	HBA []string
	// TLS makes the server take TLS connections too. Nil means none.
	TLS *PGTLS
}

// startPatience bounds a start whose context has no deadline.
const startPatience = time.Minute

// A Postgres is one cluster and the server on it, which may be stopped, killed
// and started again.
type Postgres struct {
	env     *Env
	who     account
	binDir  string
	version int
	port    int
	folder  string

	mu     sync.Mutex
	run    *run // the last server process
	closed bool
}

// StartPostgres makes a cluster and starts its server. It returns when the
// server answers; ctx bounds only that. The Env stops it and removes its files.
func (e *Env) StartPostgres(ctx context.Context, cfg PGConfig) (*Postgres, error) {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	if cfg.Version == 0 {
		version, err := DefaultVersion()
		if err != nil {
			return nil, err
		}
		cfg.Version = version
	}
	binDir, ok := PostgresInstalled(cfg.Version)
	if !ok {
		return nil, fmt.Errorf("PostgreSQL %d is not installed; run `make deps`, or `go run ./internal/testenv/install %d` in the repository",
			cfg.Version, cfg.Version)
	}
	who, err := serverAccount()
	if err != nil {
		return nil, err
	}
	folder, err := e.folder(fmt.Sprintf("pg%d", cfg.Version))
	if err != nil {
		return nil, err
	}
	p := &Postgres{env: e, who: who, binDir: binDir, version: cfg.Version, port: cfg.Port, folder: folder}
	if err := p.makeCluster(ctx, cfg); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	if cfg.TLS != nil {
		settings := cfg.TLS.settings()
		maps.Copy(settings, cfg.Settings)
		cfg.Settings = settings
		if err := cfg.TLS.install(p.DataDir(), who); err != nil {
			return nil, errors.Join(err, os.RemoveAll(folder))
		}
	}
	e.adopt(p)
	const tries = 3
	for try := 1; ; try++ {
		if cfg.Port == 0 {
			if p.port, err = e.base.port(ctx); err != nil {
				return nil, errors.Join(err, p.Close())
			}
		}
		if err = configure(p.DataDir(), p.port, cfg.Settings, cfg.HBA, who); err == nil {
			err = p.Start(ctx)
		}
		if err == nil {
			return p, nil
		}
		// Another process may have been faster to the port.
		if cfg.Port != 0 || try == tries || ctx.Err() != nil || !p.portTaken() {
			return nil, errors.Join(err, p.Close())
		}
	}
}

func (p *Postgres) makeCluster(ctx context.Context, cfg PGConfig) error {
	switch {
	case cfg.DataFrom == "" && (cfg.Standby || cfg.Recover):
		return errors.New("start a standby or a restored server: DataFrom has to name the data folder of a stopped one")
	case cfg.DataFrom == "":
		return p.env.freshFolder(ctx, p.binDir, p.version, p.DataDir(), p.who)
	}
	if len(clusterProcesses(cfg.DataFrom)) > 0 {
		return fmt.Errorf("copy the data folder %s: its server runs; stop it first", cfg.DataFrom)
	}
	if err := copyFolder(cfg.DataFrom, p.DataDir(), p.who); err != nil {
		return err
	}
	if cfg.Standby {
		return makeStandby(p.DataDir(), p.who)
	}
	if cfg.Recover {
		return writeOwned(filepath.Join(p.DataDir(), "recovery.signal"), "", p.who)
	}
	return nil
}

// Start starts the stopped server again, on the same folder and port, and
// returns when it answers. After [Postgres.Kill] it recovers first.
func (p *Postgres) Start(ctx context.Context) error {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return p.explain("start", errors.New("it was closed"))
	case p.run != nil && p.run.id.alive():
		return p.explain("start", errors.New("it is running"))
	}
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(p.binDir, "postgres"), "-D", p.DataDir())
	cmd.Dir = p.DataDir()
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.Stdout, cmd.Stderr = log, log
	p.who.runAs(cmd)
	if err := p.env.base.reaper.claim(claim{Cluster: p.DataDir()}); err != nil {
		return errors.Join(err, log.Close())
	}
	p.run, err = p.env.watch(cmd)
	if err = errors.Join(err, log.Close()); err != nil {
		return err
	}
	if err := p.ready(ctx); err != nil {
		return p.explain("start", err)
	}
	return nil
}

// ready waits until the server takes connections.
func (p *Postgres) ready(ctx context.Context) error {
	var last error
	exited := false
	poll(ctx, func() bool {
		select {
		case <-p.run.exited:
			exited = true
			return true
		default:
		}
		conn, err := pgconn.Connect(ctx, p.URL("postgres"))
		if err == nil {
			last = conn.Close(ctx)
			return true
		}
		last = err
		var refusal *pgconn.PgError
		return errors.As(err, &refusal) && refusal.Code != "57P03" // cannot connect now: it is starting up
	})
	if exited {
		return errors.New("the server ended")
	}
	if ctx.Err() != nil {
		return fmt.Errorf("it does not answer: %w", errors.Join(ctx.Err(), last))
	}
	return nil
}

// A StopMode is one of the ways in which PostgreSQL shuts down.
type StopMode int

const (
	// Fast ends sessions, writes a checkpoint and waits for every replication
	// connection to take all WAL.
	Fast StopMode = iota
	// Smart takes no new sessions and waits until all have left by themselves.
	Smart
	// Immediate ends at once; the next start recovers.
	Immediate
)

// String is PostgreSQL's name of the mode.
func (m StopMode) String() string {
	switch m {
	case Fast:
		return "fast"
	case Smart:
		return "smart"
	case Immediate:
		return "immediate"
	}
	return fmt.Sprintf("StopMode(%d)", int(m))
}

func (m StopMode) signal() syscall.Signal {
	switch m {
	case Smart:
		return syscall.SIGTERM
	case Immediate:
		return syscall.SIGQUIT
	case Fast:
	}
	return syscall.SIGINT
}

// Stop shuts the server down and waits for its end. When ctx ends first the
// server is still shutting down, which is what a fast stop does as long as a
// replication connection does not take what it is sent; a stronger Stop or
// [Postgres.Kill] may follow. Stopping a stopped server does nothing.
func (p *Postgres) Stop(ctx context.Context, mode StopMode) error {
	r := p.current()
	if r == nil {
		return nil
	}
	r.id.signal(mode.signal())
	select {
	case <-r.exited:
		return nil
	case <-ctx.Done():
		return p.explain(mode.String()+" stop of", ctx.Err())
	}
}

// Kill ends all processes of the server by SIGKILL: a crash, after which Start
// recovers. It returns when they are gone.
func (p *Postgres) Kill(ctx context.Context) error {
	r := p.current()
	if r == nil {
		return nil
	}
	// A stopped postmaster starts no further process while we look.
	r.id.freeze()
	victims := append(r.id.children(), r.id)
	for _, v := range victims {
		v.signal(syscall.SIGKILL)
	}
	gone := poll(ctx, func() bool {
		for _, v := range victims {
			if v.alive() {
				return false
			}
		}
		return true
	})
	if !gone {
		return p.explain("kill", ctx.Err())
	}
	<-r.exited
	return nil
}

// Pause stops all processes of the server (SIGSTOP): connections stay open and
// nobody answers.
func (p *Postgres) Pause() error {
	r := p.current()
	if r == nil {
		return p.explain("pause", errors.New("it is not running"))
	}
	r.id.freeze()
	return nil
}

// Resume lets a paused server go on.
func (p *Postgres) Resume() error {
	r := p.current()
	if r == nil {
		return p.explain("resume", errors.New("it is not running"))
	}
	r.id.thaw()
	return nil
}

// CreateDatabase creates an empty database.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("create database %q: %w", name, err)
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("create database %q: %w", name, err)
	}
	return nil
}

// Close stops the server at once and removes its files.
func (p *Postgres) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	p.interrupt()
	err := p.Stop(ctx, Immediate)
	if err != nil {
		killCtx, cancel := context.WithTimeout(context.Background(), killPatience)
		defer cancel()
		err = p.Kill(killCtx)
	}
	removeSharedMemory(p.DataDir())
	p.env.release(p)
	return errors.Join(err, os.RemoveAll(p.folder))
}

func (p *Postgres) interrupt() {
	if r := p.current(); r != nil {
		quit(append([]processID{r.id}, r.id.children()...))
	}
}

// current is the server process, nil when there is none.
func (p *Postgres) current() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run.live()
}

// URL is the connection string of a database, as superuser postgres.
func (p *Postgres) URL(db string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: p.Addr(), Path: "/" + db, RawQuery: "sslmode=disable"}
	return u.String()
}

// Addr is the server's host and port.
func (p *Postgres) Addr() string { return loopback(p.port) }

// Port is the server's port, the same after every start.
func (p *Postgres) Port() int { return p.port }

// Version is the major version.
func (p *Postgres) Version() int { return p.version }

// DataDir is the data folder.
func (p *Postgres) DataDir() string { return filepath.Join(p.folder, "data") }

// LogFile is the file that the server logs to, over all its starts.
func (p *Postgres) LogFile() string { return filepath.Join(p.folder, "postgres.log") }

// Pid is the postmaster's process id, zero while the server is down.
func (p *Postgres) Pid() int {
	if r := p.current(); r != nil {
		return r.id.Pid
	}
	return 0
}

// explain adds the server and the end of its log to an error.
func (p *Postgres) explain(what string, err error) error {
	return fmt.Errorf("%s PostgreSQL %d on port %d: %w%s", what, p.version, p.port, err, logTail(p.LogFile()))
}

func withPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, startPatience)
}
