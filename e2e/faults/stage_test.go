package faults_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

//go:embed schema.sql
var schema string

// patience is how long the system may take to go on after a fault. To be sure
// that a stream has lost something takes ten seconds, one stream after the other.
const patience = 150 * time.Second

// Further streams: one that others write to as well, and one of the second
// outbox.
const (
	lanes = "LANES"
	bills = "BILLS"
)

const tables = "[{name: walrelay.outbox}, {name: public.bills}]"

const streams = "[{name: LANES, shared: true}]"

const routes = `[{event_types: [sent], stream: LANES, subject: "lanes.{aggregate_type}.{event_type}"},
	{table: public.bills, stream: BILLS, subject: "bills.{event_type}"}, {}]`

// A stage is a world with everything that a drill does to it.
type stage struct {
	t    *testing.T
	kind kind
	plan *plan
	rnd  *rand.Rand // guarded by mu

	world            *fixture.World
	primary, standby *testenv.Postgres // the server that faults act on, and its standby
	broker           *testenv.NATS     // nil in a cluster
	nodes            []*testenv.NATS   // of a cluster
	sql, replication *testenv.Proxy    // to PostgreSQL; nil where there are none
	between          *testenv.Proxy    // of primary and standby
	flags            []string
	besides          []func() // what ends what runs beside the faults

	mu     sync.Mutex // guards what follows and the world's own number of relays
	relays []*fixture.Relay
	relay  *fixture.Relay // that faults act on
	load   *fixture.Load

	// What faults remember from inject to mend.
	victim *testenv.NATS
	full   string
	config *jetstream.StreamConfig
	copied string
	ofCopy []string // events that a copy of the database had
}

// newStage makes a world of the plan's kind.
func newStage(t *testing.T, p *plan) *stage {
	t.Helper()
	s := &stage{t: t, kind: p.kind, plan: p, rnd: fixture.Random(p.seed, "stage")}
	cfg := fixture.Config{Superuser: true, AnyUser: true, More: []string{lanes, bills}, Shared: []string{lanes}, Seed: p.seed, Stream: func(c *jetstream.StreamConfig) {
		c.Duplicates = 100 * time.Millisecond // it is not to help
	}}
	s.primary = envtest.Postgres(t, testenv.PGConfig{Version: 17, Settings: map[string]string{
		"synchronized_standby_slots": map[bool]string{true: "standby"}[p.kind == synced],
	}})
	cfg.Postgres = s.primary
	if p.kind == cluster {
		s.nodes = envtest.NATSCluster(t, 3, testenv.NATSConfig{})
		urls := make([]string, len(s.nodes))
		for i, n := range s.nodes {
			urls[i] = n.URL()
		}
		cfg.NATSURLs = strings.Join(urls, ",")
	} else {
		s.broker = envtest.NATS(t, testenv.NATSConfig{})
		cfg.NATS, cfg.ProxyNATS = s.broker, p.kind == single
	}
	s.flags = append([]string{
		"--admin", "127.0.0.1:0", "--tables", tables, "--routes", routes,
		"--streams", streams, "--ack-timeout", "1s", "--silence", "5s", "--drain-timeout", "5s",
		"--dead-letter-limit", "100000",
	}, p.flags...)
	cfg.Flags = s.flags
	s.world = fixture.New(t, cfg)
	s.world.Exec(schema)
	s.world.Exec(fmt.Sprintf("ALTER PUBLICATION %q ADD TABLE public.bills", s.world.Source))
	s.makeStream(jetstream.StreamConfig{Name: lanes, Subjects: []string{"lanes.>"}, Duplicates: 6 * time.Second})
	s.makeStream(jetstream.StreamConfig{Name: bills, Subjects: []string{"bills.>"}, Duplicates: 100 * time.Millisecond})
	switch p.kind {
	case single:
		s.sql, s.replication = envtest.Proxy(t, s.primary.Addr()), envtest.Proxy(t, s.primary.Addr())
		s.flags = []string{
			"--database-url", strings.Replace(s.world.DatabaseURL, s.primary.Addr(), s.sql.Addr(), 1),
			"--replication-url", strings.Replace(s.world.DatabaseURL, s.primary.Addr(), s.replication.Addr(), 1),
		}
	case synced, plain:
		s.makeStandby()
		both := s.primary.Addr() + "," + s.standby.Addr()
		s.flags = []string{"--database-url", strings.Replace(s.world.DatabaseURL, s.primary.Addr(), both, 1)}
		if p.kind == plain {
			s.flags[1] += "&target_session_attrs=read-write"
		}
	case cluster:
		s.flags = nil
	}
	return s
}

func (s *stage) makeStream(cfg jetstream.StreamConfig) {
	s.t.Helper()
	if s.kind == cluster {
		cfg.Replicas = len(s.nodes)
	}
	if _, err := s.world.JetStream.CreateStream(s.t.Context(), cfg); err != nil {
		s.t.Fatalf("make stream %s: %v", cfg.Name, err)
	}
}

func (s *stage) makeStandby() {
	s.t.Helper()
	s.between = envtest.Proxy(s.t, s.primary.Addr())
	s.standby = envtest.Standby(s.t, s.primary, testenv.StandbyConfig{Via: s.between.Addr(), Settings: map[string]string{
		"hot_standby_feedback": "on", "wal_retrieve_retry_interval": "200ms",
	}})
	if s.kind == synced {
		// Only now: the worker that finds no primary tries again after a minute.
		on := s.world.On(s.standby)
		on.Exec("ALTER SYSTEM SET sync_replication_slots = on")
		on.Exec("SELECT pg_reload_conf()")
	}
}

// now is the world, which moves to the standby once that is promoted.
func (s *stage) now() *fixture.World {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world
}

// promoted says whether that has come.
func (s *stage) promoted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.standby != nil && s.primary == s.standby
}

// moveOn makes the promoted standby the world's database.
func (s *stage) moveOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load.Stop()
	s.world = s.world.On(s.standby)
	s.primary = s.standby
	s.load = s.world.Load(s.loading())
}

func (s *stage) loading() fixture.LoadConfig {
	// What is gone from the table cannot be healed.
	return fixture.LoadConfig{Writers: 3, Pause: 60 * time.Millisecond, Keep: true}
}

// begin starts relay and workload, and what goes on all the time.
func (s *stage) begin() {
	s.t.Helper()
	s.startRelay()
	s.load = s.world.Load(s.loading())
	s.beside(s.write)
	s.beside(s.operate)
}

// write is another writer of the shared stream.
func (s *stage) write(ctx context.Context) {
	for ; ctx.Err() == nil; rest(ctx, 50*time.Millisecond) {
		_ = s.now().Conn.Publish("lanes.of.others", []byte("x")) // it is nobody's business
	}
}

// startRelay starts the relay that faults act on.
func (s *stage) startRelay() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relay = s.world.Start(s.flags...)
	s.relays = append(s.relays, s.relay)
}

// startBeside starts another one, which becomes the one that faults act on.
func (s *stage) startBeside() *fixture.Relay {
	s.startRelay()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.relay
}

func (s *stage) withRelay(do func(*fixture.Relay)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s.relay)
}

// awaitExit waits for the end of the relay, which was told to stop.
func (s *stage) awaitExit(ctx context.Context) {
	s.mu.Lock()
	r := s.relay
	s.mu.Unlock()
	for r.Running() && ctx.Err() == nil {
		rest(ctx, 10*time.Millisecond)
	}
}

// restarts is how often a relay is restarted.
func (s *stage) restarts() int {
	if s.plan.long {
		return 60
	}
	return 4
}

// persist tries until it works: another fault may be in the way.
func (s *stage) persist(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error
	for {
		try, end := context.WithTimeout(ctx, 20*time.Second)
		err := do(try)
		end()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if rest(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("not within %s: %w", patience, last)
		}
	}
}

// anyStream is one of the streams.
func (s *stage) anyStream() string {
	return []string{s.now().StreamName, lanes, bills}[s.random(3)]
}

// random gives a number below n. Two faults may ask at the same time.
func (s *stage) random(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

// awaitCopy waits until the standby has a copy of the slot that it keeps. For that
// the slot's catalog_xmin has to move on, which it does at a moment without an open
// transaction, and else when a change of the catalogue commits: autovacuum's ANALYZE
// elsewhere, which is rare in the tests' clusters.
func (s *stage) awaitCopy(ctx context.Context) error {
	return s.persist(ctx, func(ctx context.Context) error {
		w := s.now()
		for _, move := range []string{"ANALYZE e2e.aggregate", "SELECT pg_log_standby_snapshot()"} {
			if _, err := w.Pool.Exec(ctx, move); err != nil {
				return err
			}
		}
		conn, err := pgx.Connect(ctx, s.standby.URL("shop"))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		var there bool
		err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND synced AND NOT temporary)", w.Source).Scan(&there)
		if err == nil && !there {
			err = errors.New("the standby has no copy of the slot that it would keep")
		}
		return err
	})
}
