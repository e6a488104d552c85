package reconcile_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/internal/witness"
	"github.com/walrelay/walrelay/migrations"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// A world is an outbox with rows and a stream, without a relay.
type world struct {
	conn *pgx.Conn
	nc   *nats.Conn
	js   jetstream.JetStream
	cfg  reconcile.Config
}

// settings are those of a database with our tables, as the relay connects.
func settings(tb testing.TB) *pgx.ConnConfig {
	tb.Helper()
	cfg, err := pgx.ParseConfig(envtest.SharedPostgres(tb))
	if err != nil {
		tb.Fatal(err)
	}
	if err := migrations.Apply(tb.Context(), cfg, migrations.Config{SchemaOnly: true}, nil); err != nil {
		tb.Fatal(err)
	}
	maps.Copy(cfg.RuntimeParams, witness.PinSettings())
	return cfg
}

func connect(tb testing.TB, cfg *pgx.ConnConfig) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.ConnectConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func newDatabase(tb testing.TB) *pgx.Conn {
	tb.Helper()
	return connect(tb, settings(tb))
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	cfg := settings(tb)
	w := &world{conn: connect(tb, cfg)}
	var err error
	if w.nc, err = nats.Connect(envtest.NATS(tb, testenv.NATSConfig{}).URL()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(w.nc.Close)
	if w.js, err = jetstream.New(w.nc, jetstream.WithPublishAsyncMaxPending(2000)); err != nil {
		tb.Fatal(err)
	}
	if _, err := w.js.CreateStream(tb.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"outbox.>"}}); err != nil {
		tb.Fatal(err)
	}
	w.cfg = reconcile.Config{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, cfg) }, NATS: w.nc, Source: "shop", Slot: "shop", Schema: "walrelay",
		Router: router.Config{
			Source: "shop", Tables: []router.Table{{Schema: "walrelay", Name: "outbox"}}, Routes: []router.Route{{Stream: "SHOP"}},
		},
	}
	return w
}

func (w *world) exec(tb testing.TB, sql string, args ...any) {
	tb.Helper()
	if _, err := w.conn.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("run SQL %.60q: %v", sql, err)
	}
}

// fill writes n rows and stores their messages as a relay would, with positions
// and one header more or less, then says that all of it is proven.
func (w *world) fill(tb testing.TB, n int) {
	tb.Helper()
	w.exec(tb, `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', (i % 1000)::text, 'placed', jsonb_build_object('n', i, 'x', repeat('x', 200)) FROM generate_series(1, $1::int) i`, n)
	r, err := router.New(w.cfg.Router)
	if err != nil {
		tb.Fatal(err)
	}
	tx, err := w.conn.Begin(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	index := uint64(0)
	for row, err := range reconcile.Rows(tb.Context(), tx, w.cfg.Router.Tables[0], reconcile.RowFilter{}) {
		if err != nil {
			tb.Fatal(err)
		}
		var out router.Routed
		row.Position.Epoch, row.Position.Commit, row.Position.Index = 1, 1, index
		index++
		if err := r.Route(&row.Row, &out); err != nil || out.Verdict != router.Publish {
			tb.Fatalf("Route() = %v, %v", out.Verdict, err)
		}
		m := nats.NewMsg(out.Message.Subject)
		for _, h := range out.Message.Headers {
			m.Header[h.Name] = []string{h.Value}
		}
		m.Data = append(m.Data, out.Message.Body...)
		if _, err := w.js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)); err != nil {
			tb.Fatal(err)
		}
	}
	<-w.js.PublishAsyncComplete()
	if err := tx.Commit(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	w.exec(tb, `INSERT INTO walrelay.epoch (source, number, system_id, timeline, first_lsn, reason) VALUES ('shop', 1, '1', 1, '0/0', 'test') ON CONFLICT DO NOTHING`)
	w.exec(tb, `INSERT INTO walrelay.proven (source, epoch, snapshot, lsn) SELECT 'shop', 1, pg_current_snapshot(), pg_current_wal_insert_lsn()`)
}
