package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/migrations"
)

// A world is the demo's servers and the processes that it starts and kills.
type world struct {
	env  *testenv.Env
	pg   *testenv.Postgres
	nats *testenv.NATS
	exe  string
	nc   *nats.Conn
	js   jetstream.JetStream
	n    int
}

func newWorld(ctx context.Context) (*world, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	env, err := testenv.New()
	if err != nil {
		return nil, err
	}
	w := &world{env: env, exe: exe}
	if err := w.start(ctx); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) start(ctx context.Context) (err error) {
	if w.pg, err = w.env.StartPostgres(ctx, testenv.PGConfig{}); err != nil {
		return err
	}
	if w.nats, err = w.env.StartNATS(ctx, testenv.NATSConfig{}); err != nil {
		return err
	}
	w.nc, err = nats.Connect(w.nats.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return fmt.Errorf("connect to the demo's NATS: %w", err)
	}
	w.js, err = jetstream.New(w.nc)
	if err != nil {
		return fmt.Errorf("use the demo's JetStream: %w", err)
	}
	return nil
}

func (w *world) close() {
	if w.nc != nil {
		w.nc.Close()
	}
	_ = w.env.Close() // the helper process removes what is left
}

// A shop is one database with an outbox and one stream: the ground of one
// scenario.
type shop struct {
	w      *world
	name   string // database, source, slot; the stream in capitals
	stream string
	url    string
	db     *pgx.Conn
}

const shopSQL = `
CREATE TABLE orders (id uuid PRIMARY KEY, customer int NOT NULL, number int NOT NULL, amount int NOT NULL);
CREATE TABLE charge (seq bigint GENERATED ALWAYS AS IDENTITY, order_id uuid NOT NULL, customer int NOT NULL, number int NOT NULL);
CREATE TABLE customer (id int PRIMARY KEY, orders int NOT NULL DEFAULT 0);
INSERT INTO customer SELECT generate_series(1, 20)`

func (w *world) shop(ctx context.Context, name string) (*shop, error) {
	s := &shop{w: w, name: name, stream: strings.ToUpper(name), url: w.pg.URL(name)}
	if err := w.pg.CreateDatabase(ctx, name); err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(s.url)
	if err != nil {
		return nil, fmt.Errorf("read the demo's own URL: %w", err)
	}
	quiet := func(migrations.Step) {}
	if err := migrations.Apply(ctx, cfg, migrations.Config{Slot: name, Publication: name}, quiet); err != nil {
		return nil, err
	}
	if err := migrations.Consumer(ctx, cfg, migrations.Config{}, quiet); err != nil {
		return nil, err
	}
	if s.db, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return nil, fmt.Errorf("connect to database %s: %w", name, err)
	}
	if _, err := s.db.Exec(ctx, shopSQL); err != nil {
		return nil, fmt.Errorf("make the shop's tables: %w", err)
	}
	_, err = w.js.CreateStream(ctx, jetstream.StreamConfig{Name: s.stream, Subjects: []string{"outbox." + name + ".>"}})
	if err != nil {
		return nil, fmt.Errorf("make stream %s: %w", s.stream, err)
	}
	return s, nil
}

func (s *shop) close(ctx context.Context) { _ = s.db.Close(ctx) }

// A process is a child that may be killed.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
	log  string
}

func (w *world) spawn(ctx context.Context, name string, args ...string) (*process, error) {
	w.n++
	p := &process{name: name, done: make(chan struct{}), log: filepath.Join(w.env.Dir(), name+"-"+strconv.Itoa(w.n)+".log")}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("make a log file: %w", err)
	}
	defer log.Close()                                                       //nolint:errcheck // the child has its own handle
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), w.exe, args...) //nolint:gosec // this program itself
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := w.env.Child(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// kill is SIGKILL: the process gets no chance to tidy up.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop asks the process to end in good order.
func (p *process) stop(ctx context.Context) error {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.done:
		return p.failed()
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("%s did not stop: %w", p.name, ctx.Err())
	}
}

// failed says why a process that should have ended well did not; what it wrote
// last is part of it.
func (p *process) failed() error {
	if p.err == nil {
		return nil
	}
	text, _ := os.ReadFile(p.log) // only more detail for the error
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("%s ended with %w: %s", p.name, p.err, lines[len(lines)-1])
}

func (s *shop) relay(ctx context.Context, databaseURL string) (*process, error) {
	return s.w.spawn(ctx, "relay", "run", "--database-url", databaseURL, "--nats", s.w.nats.URL(), "--source", s.name, "--admin", "off")
}

func (s *shop) consumer(ctx context.Context, flags ...string) (*process, error) {
	args := append([]string{"demo-part", "consumer", "--database-url", s.url, "--nats", s.w.nats.URL(), "--source", s.name}, flags...)
	return s.w.spawn(ctx, "consumer", args...)
}

// until waits for a condition of the servers; the context bounds it.
func until(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		ok, err := done(ctx)
		if ok {
			return nil
		}
		if err != nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, errors.Join(ctx.Err(), last))
		case <-tick.C:
		}
	}
}

func (s *shop) count(ctx context.Context, sql string) (int, error) {
	var n int
	if err := s.db.QueryRow(ctx, sql).Scan(&n); err != nil {
		return 0, fmt.Errorf("count in database %s: %w", s.name, err)
	}
	return n, nil
}

func (s *shop) stored(ctx context.Context) (int, error) {
	st, err := s.w.js.Stream(ctx, s.stream)
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", s.stream, err)
	}
	return int(st.CachedInfo().State.Msgs), nil //nolint:gosec // a demo's stream is small
}
