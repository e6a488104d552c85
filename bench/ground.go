package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/migrations"
)

// A ground is the servers with one backlog. Its slot is never read: each run
// gets a copy of it, so that all drain the same WAL.
type ground struct {
	s    settings
	env  *testenv.Env
	pg   *testenv.Postgres
	nats *testenv.NATS
	db   *pgx.Conn
	nc   *nats.Conn
	js   jetstream.JetStream
	end  string // LSN behind the backlog
}

const baseSlot = "bench"

func newGround(ctx context.Context, s settings) (*ground, error) {
	env, err := testenv.New()
	if err != nil {
		return nil, err
	}
	g := &ground{s: s, env: env}
	if err := g.start(ctx); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *ground) start(ctx context.Context) (err error) {
	if g.pg, err = g.env.StartPostgres(ctx, testenv.PGConfig{Settings: map[string]string{
		"shared_buffers": "256MB", "max_wal_size": "8GB", "autovacuum": "off", "checkpoint_timeout": "1h",
	}}); err != nil {
		return err
	}
	if g.nats, err = g.env.StartNATS(ctx, testenv.NATSConfig{}); err != nil {
		return err
	}
	cfg, err := pgx.ParseConfig(g.pg.URL("postgres"))
	if err != nil {
		return fmt.Errorf("read our own URL: %w", err)
	}
	if err := migrations.Apply(ctx, cfg, migrations.Config{Slot: baseSlot, Publication: baseSlot}, func(migrations.Step) {}); err != nil {
		return err
	}
	if g.db, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if g.nc, err = nats.Connect(g.nats.URL()); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if g.js, err = jetstream.New(g.nc); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	return g.fill(ctx)
}

// fill writes the backlog. The payload carries the row's number, by which the
// check knows it again.
func (g *ground) fill(ctx context.Context) error {
	for from := 0; from < g.s.rows; from += g.s.perTx {
		to := min(from+g.s.perTx, g.s.rows)
		_, err := g.db.Exec(ctx, `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'order', (n % 1000)::text, 'placed', jsonb_build_object('n', n, 'x', repeat('x', greatest(0, $3 - 20)))
			FROM generate_series($1::int, $2::int - 1) n`, from, to, g.s.size)
		if err != nil {
			return fmt.Errorf("write the backlog: %w", err)
		}
	}
	if err := g.db.QueryRow(ctx, `SELECT pg_current_wal_lsn()`).Scan(&g.end); err != nil {
		return fmt.Errorf("ask for the end of WAL: %w", err)
	}
	return nil
}

func (g *ground) close() {
	if g.nc != nil {
		g.nc.Close()
	}
	_ = g.env.Close() // the helper process removes what is left
}

// measure runs one candidate as a process of its own.
func (g *ground) measure(ctx context.Context, name string, round int) (measurement, error) {
	source := fmt.Sprintf("b%d_%s", round, name)
	if _, err := g.db.Exec(ctx, `SELECT pg_copy_logical_replication_slot($1, $2)`, baseSlot, source); err != nil {
		return measurement{}, fmt.Errorf("copy the slot: %w", err)
	}
	defer g.db.Exec(context.WithoutCancel(ctx), `SELECT pg_drop_replication_slot($1)`, source) //nolint:errcheck // the cluster goes with the run
	stream := strings.ToUpper(source)
	if _, err := g.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: stream, Subjects: []string{"outbox." + source + ".>"}, Duplicates: 2 * time.Minute, MaxMsgs: -1,
	}); err != nil {
		return measurement{}, fmt.Errorf("make stream %s: %w", stream, err)
	}
	defer g.js.DeleteStream(context.WithoutCancel(ctx), stream) //nolint:errcheck // the server goes with the run

	exe, err := os.Executable()
	if err != nil {
		return measurement{}, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), exe, "candidate", name, g.pg.URL("postgres"), g.nats.URL(), source,
		strconv.Itoa(g.s.rows), strconv.Itoa(g.s.size), g.end)
	cmd.Stderr = os.Stderr
	before, err := g.serversCPU()
	if err != nil {
		return measurement{}, err
	}
	started := time.Now()
	if err := g.env.Child(cmd); err != nil {
		return measurement{}, fmt.Errorf("start the candidate: %w", err)
	}
	took, err := g.finish(ctx, cmd, name, stream, started)
	if err != nil {
		return measurement{}, err
	}
	after, err := g.serversCPU()
	if err != nil {
		return measurement{}, err
	}
	n := float64(g.s.rows)
	usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	m := measurement{
		rate:   n / took.Seconds(),
		cpu:    float64((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Microseconds()) / n,
		server: float64((after - before).Microseconds()) / n,
	}
	if usage != nil {
		m.rss = float64(usage.Maxrss) / 1024
	}
	if name == "reader" {
		return m, nil
	}
	return m, g.check(ctx, stream)
}

// finish waits until the stream holds everything (the reader: until it ends),
// then ends the candidate.
func (g *ground) finish(ctx context.Context, cmd *exec.Cmd, name, stream string, started time.Time) (time.Duration, error) {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if name == "reader" {
		select {
		case err := <-ended:
			return time.Since(started), err
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return 0, errors.Join(ctx.Err(), <-ended)
		}
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var took time.Duration
	for took == 0 {
		select {
		case err := <-ended:
			return 0, fmt.Errorf("the candidate ended too early: %w", err)
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return 0, errors.Join(ctx.Err(), <-ended)
		case <-tick.C:
			s, err := g.js.Stream(ctx, stream)
			if err == nil && s.CachedInfo().State.Msgs >= uint64(g.s.rows) {
				took = s.CachedInfo().State.LastTime.Sub(started)
			}
		}
	}
	_ = cmd.Process.Signal(os.Interrupt)
	if err := <-ended; err != nil {
		return 0, fmt.Errorf("the candidate ended: %w", err)
	}
	return took, nil
}

// check reads the stream: every row once, in order, with an id.
func (g *ground) check(ctx context.Context, stream string) error {
	consumer, err := g.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(5000))
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	defer messages.Stop()
	for n := range g.s.rows {
		msg, err := messages.Next()
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		want := fmt.Sprintf(`{"n": %d,`, n)
		if !strings.HasPrefix(string(msg.Data()), want) || msg.Headers().Get(envelope.HeaderMsgID) == "" {
			return fmt.Errorf("message %d of stream %s is not row %d with an id", n+1, stream, n)
		}
	}
	return nil
}

// serversCPU is what PostgreSQL with its children and NATS have used so far.
func (g *ground) serversCPU() (time.Duration, error) {
	pg, err := treeCPU(g.pg.Pid())
	if err != nil {
		return 0, err
	}
	broker, err := treeCPU(g.nats.Pid())
	return pg + broker, err
}

// treeCPU adds what a process has used to what its children have, the ended
// ones included.
func treeCPU(pid int) (time.Duration, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	const ticksPerSecond = 100 // USER_HZ on every Linux that Go knows
	var total int64
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended meanwhile
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		if id != pid && parent != pid {
			continue
		}
		last := 13
		if id == pid {
			last = 15 // children that have ended count too
		}
		for _, f := range fields[11:last] {
			v, _ := strconv.ParseInt(f, 10, 64)
			total += v
		}
	}
	return time.Duration(total) * time.Second / ticksPerSecond, nil
}
