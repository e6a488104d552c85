package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/migrations"
)

const (
	// schema holds what the bench makes in a database, beside pollTable.
	schema = "walrelay_bench"
	// baseSlot is slot and publication. The slot is never read: each run gets
	// a copy of it, so that all drain the same WAL.
	baseSlot = "walrelay_bench"
	// prefix begins the names of the slots and streams of the runs.
	prefix = "walrelay_bench_"
)

// A ground is the servers with one backlog.
type ground struct {
	w    workload
	env  *testenv.Env // nil where the servers are given
	pids []int        // of our servers
	url  string       // of PostgreSQL
	nats string       // of NATS as the candidates have it
	db   *pgx.Conn
	nc   *nats.Conn
	js   jetstream.JetStream
	end  string // LSN behind the backlog
	made bool   // there is something of ours to be removed
}

// Given are servers that are there already.
type given struct{ database, nats string }

func newGround(ctx context.Context, w workload, at given) (*ground, error) {
	g := &ground{w: w, url: at.database, nats: at.nats}
	if err := g.start(ctx, at); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *ground) start(ctx context.Context, at given) (err error) {
	if at == (given{}) {
		if err := g.startServers(ctx); err != nil {
			return err
		}
	} else if g.w.SyncAlways || g.w.Replicas > 1 || g.w.RoundTrip > 0 {
		return fmt.Errorf("case %s needs servers of its own; leave -database and -nats out", g.w.Name)
	}
	cfg, err := pgx.ParseConfig(g.url)
	if err != nil {
		return errors.New("the database's URL cannot be read")
	}
	if g.db, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	broker := g.nats
	if g.nc, err = nats.Connect(broker); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if g.js, err = jetstream.New(g.nc); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	if err := g.refuseWhatIsThere(ctx); err != nil {
		return err
	}
	g.made = true
	if err := migrations.Apply(ctx, cfg, migrations.Config{Schema: schema, Slot: baseSlot, Publication: baseSlot}, func(migrations.Step) {}); err != nil {
		return err
	}
	return g.fill(ctx)
}

func (g *ground) startServers(ctx context.Context) (err error) {
	if g.env, err = testenv.New(); err != nil {
		return err
	}
	settings := map[string]string{
		"shared_buffers": "256MB", "track_commit_timestamp": "on", "max_wal_size": "8GB", "autovacuum": "off", "checkpoint_timeout": "1h",
	}
	if g.w.Flushed {
		settings["fsync"] = "on"
	}
	if g.w.Vacuum {
		settings["autovacuum"], settings["autovacuum_naptime"] = "on", "15s"
	}
	pg, err := g.env.StartPostgres(ctx, testenv.PGConfig{Settings: settings})
	if err != nil {
		return err
	}
	g.url, g.pids = pg.URL("postgres"), append(g.pids, pg.Pid())
	cfg := testenv.NATSConfig{SyncAlways: g.w.SyncAlways}
	var servers []*testenv.NATS
	if g.w.Replicas > 1 {
		servers, err = g.env.StartNATSCluster(ctx, g.w.Replicas, cfg)
	} else {
		var one *testenv.NATS
		one, err = g.env.StartNATS(ctx, cfg)
		servers = []*testenv.NATS{one}
	}
	if err != nil {
		return err
	}
	for _, s := range servers {
		g.pids = append(g.pids, s.Pid())
	}
	g.nats = servers[0].URL()
	if g.w.RoundTrip == 0 {
		return nil
	}
	proxy, err := g.env.Proxy(servers[0].Addr())
	if err != nil {
		return err
	}
	g.nats = "nats://" + proxy.Addr()
	return errors.Join(proxy.Slow(testenv.Upstream, g.w.RoundTrip/2), proxy.Slow(testenv.Downstream, g.w.RoundTrip/2))
}

// refuseWhatIsThere keeps the bench away from what is not its own.
func (g *ground) refuseWhatIsThere(ctx context.Context) error {
	var found []string
	rows, err := g.db.Query(ctx, `SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname IN ($1, $5)
		UNION ALL SELECT 'table ' || oid::regclass FROM pg_class WHERE relname = $2
		UNION ALL SELECT 'publication ' || pubname FROM pg_publication WHERE pubname = $3
		UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE slot_name = $3 OR starts_with(slot_name, $4)`,
		schema, pollTable, baseSlot, prefix, partsSchema)
	if err == nil {
		found, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return fmt.Errorf("look what is in the database: %w", err)
	}
	names := g.js.StreamNames(ctx)
	for name := range names.Name() {
		if strings.HasPrefix(name, strings.ToUpper(prefix)) {
			found = append(found, "stream "+name)
		}
	}
	if err := names.Err(); err != nil {
		return fmt.Errorf("look which streams there are: %w", err)
	}
	if len(found) > 0 {
		return fmt.Errorf("there is something already that the bench would make and remove: %s. Remove it, or give other servers", strings.Join(found, ", "))
	}
	return nil
}

// fill writes the backlog. The payload carries the row's number, by which the
// check knows it again.
func (g *ground) fill(ctx context.Context) error {
	_, types := g.w.streams("")
	for from := 0; from < g.w.Rows; from += g.w.PerTx {
		to := min(from+g.w.PerTx, g.w.Rows)
		_, err := g.db.Exec(ctx, `INSERT INTO `+schema+`.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'order', (n % $4)::text, ($5::text[])[1 + n % cardinality($5::text[])], jsonb_build_object('n', n, 'x', repeat('x', greatest(0, $3 - 20)))
			FROM generate_series($1::int, $2::int - 1) n`, from, to, g.w.Size, g.w.Aggregates, types)
		if err != nil {
			return fmt.Errorf("write the backlog: %w", err)
		}
	}
	if err := g.db.QueryRow(ctx, `SELECT pg_current_wal_lsn()`).Scan(&g.end); err != nil {
		return fmt.Errorf("ask for the end of WAL: %w", err)
	}
	return nil
}

// close removes what was made, also after a Ctrl-C, and ends our servers.
func (g *ground) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if g.made && g.env == nil {
		for _, sql := range []string{
			`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active AND (slot_name = '` + baseSlot + `' OR starts_with(slot_name, '` + prefix + `'))`,
			`DROP PUBLICATION IF EXISTS ` + baseSlot, `DROP SCHEMA IF EXISTS ` + schema + ` CASCADE`, `DROP SCHEMA IF EXISTS ` + partsSchema + ` CASCADE`, `DROP TABLE IF EXISTS ` + pollTable,
		} {
			if _, err := g.db.Exec(ctx, sql); err != nil {
				say("could not remove something: %v", err)
			}
		}
	}
	if g.db != nil {
		_ = g.db.Close(ctx)
	}
	if g.nc != nil {
		g.nc.Close()
	}
	if g.env != nil {
		_ = g.env.Close() // the helper process removes what is left
	}
}
