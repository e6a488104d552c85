package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A background is work that goes on until it is stopped.
type background struct {
	stop context.CancelFunc
	done sync.WaitGroup
}

// run repeats step until stop, and fails the test if it does.
func (b *background) run(t *testing.T, n int, step func(ctx context.Context, rnd *rand.Rand) error) *background {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b.stop = cancel
	for i := range n {
		b.done.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 7))
			for ctx.Err() == nil {
				if err := step(ctx, rnd); err != nil && ctx.Err() == nil {
					t.Errorf("work in the background: %v", err)
					return
				}
			}
		})
	}
	t.Cleanup(b.end)
	return b
}

func (b *background) end() {
	b.stop()
	b.done.Wait()
}

// orders writes transactions of one to three events each, some of which rest
// while they are open or are rolled back, with the statement of one row.
func orders(t *testing.T, w *fixture.World, insert string) *background {
	t.Helper()
	return new(background).run(t, 4, func(ctx context.Context, rnd *rand.Rand) error {
		undo := errors.New("undone")
		// A transaction is ended once it was begun.
		err := pgx.BeginFunc(context.WithoutCancel(ctx), w.Pool, func(tx pgx.Tx) error {
			for range 1 + rnd.IntN(3) {
				if _, err := tx.Exec(context.WithoutCancel(ctx), insert, uuid.NewString(), fmt.Sprintf("a%d", rnd.IntN(9))); err != nil {
					return err
				}
			}
			if _, err := tx.Exec(context.WithoutCancel(ctx), "SELECT pg_sleep($1)", rnd.Float64()/50); err != nil {
				return err
			}
			if rnd.IntN(8) == 0 {
				return undo
			}
			return nil
		})
		if errors.Is(err, undo) {
			return nil
		}
		return err
	})
}

// bill is a service that applies each event once, from whatever stream.
func bill(t *testing.T, w *fixture.World, stream string) *background {
	t.Helper()
	c, err := inbox.New(inbox.Config{
		Name: "billing", DB: w.Pool, JetStream: w.JetStream, Stream: stream,
		// The messages of the time before have an id and say the rest in their subject.
		Complete: func(m *inbox.Message) {
			if m.Type == "" {
				m.Type = m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	inbox.On(c, "placed", func(ctx context.Context, tx pgx.Tx, e inbox.Event[map[string]any]) error {
		_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", e.ID)
		return err
	})
	return new(background).run(t, 1, func(ctx context.Context, _ *rand.Rand) error { return c.Run(ctx) })
}

// count waits until a query gives n or more.
func count(t *testing.T, w *fixture.World, n int, query string) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		if got := fixture.Value[int](w, query); got < n {
			return fmt.Errorf("%s is %d, want %d", query, got, n)
		}
		return nil
	})
}

// billed demands that each event of the table has had its effect once.
func billed(t *testing.T, w *fixture.World, table string) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		if n := fixture.Value[int](w, "SELECT count(*) FROM "+table+" o WHERE NOT EXISTS (SELECT FROM effect e WHERE e.id = o.id)"); n > 0 {
			return fmt.Errorf("%d events have had no effect", n)
		}
		return nil
	})
	events, effects := fixture.Value[int](w, "SELECT count(*) FROM "+table), fixture.Value[int](w, "SELECT count(*) FROM effect")
	if events != effects || events < 100 {
		t.Errorf("%d events have had %d effects, want one each, and more than 100", events, effects)
	}
	t.Logf("%d events", events)
}

// must runs walrelay and gives what it says.
func must(t *testing.T, args ...string) string {
	t.Helper()
	code, out := fixture.Command(t, nil, args...)
	if code != 0 {
		t.Fatalf("walrelay %s = %d: %s", args[0], code, out)
	}
	return out
}

// The first part of docs/moving.md. I1, I9: writers and consumers work all the
// time; none of the events is lost, and none has its effect twice.
func TestAPollingOutboxIsMovedWhileItsWritersRun(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{AnyUser: true})
	w.Exec(`CREATE SCHEMA shop; CREATE TABLE effect (id uuid);
		CREATE TABLE shop.outbox (id uuid PRIMARY KEY, order_id text NOT NULL, kind text NOT NULL, body jsonb NOT NULL, written_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz);
		CREATE INDEX ON shop.outbox (written_at) WHERE published_at IS NULL`)
	source := w.Source + "_moved"
	stream := strings.ToUpper(source)
	if _, err := w.JetStream.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LEGACY", Subjects: []string{"legacy.>"}}); err != nil {
		t.Fatal(err)
	}
	must(t, "migrate", "--consumer", "--database-url", w.DatabaseURL)

	// As it was: writers, a poller that sometimes dies between publishing and
	// noting it, and a consumer.
	writers := orders(t, w, `INSERT INTO shop.outbox (id, order_id, kind, body) VALUES ($1, $2, 'placed', '{}')`)
	poller := new(background).run(t, 1, func(ctx context.Context, rnd *rand.Rand) error {
		ctx = context.WithoutCancel(ctx)
		dies := errors.New("dies")
		err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `SELECT id::text FROM shop.outbox WHERE published_at IS NULL ORDER BY written_at LIMIT 10 FOR UPDATE SKIP LOCKED`)
			ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			for _, id := range ids {
				m := nats.NewMsg("legacy.order.placed")
				m.Header.Set("Nats-Msg-Id", id)
				m.Data = []byte("{}")
				if _, err := w.JetStream.PublishMsg(ctx, m); err != nil {
					return err
				}
			}
			if rnd.IntN(10) == 0 {
				return dies
			}
			_, err = tx.Exec(ctx, `UPDATE shop.outbox SET published_at = now() WHERE id = ANY ($1::uuid[])`, ids)
			return err
		})
		if errors.Is(err, dies) {
			return nil
		}
		return err
	})
	before := bill(t, w, "LEGACY")
	count(t, w, 50, "SELECT count(*) FROM effect")

	// 1. What tells rows apart.
	w.Exec("ALTER TABLE shop.outbox ADD COLUMN xid xid8 DEFAULT pg_current_xact_id()")
	// 2. Publication, slot and a stream of its own.
	tables := `[{name: shop.outbox, columns: {id: id, aggregate_type: kind, aggregate_id: order_id, event_type: kind, payload: body, created_at: written_at, xid: xid}}]`
	must(t, "migrate", "--database-url", w.DatabaseURL, "--source", source, "--tables", tables, "--nats", w.NATSURL, "--stream", stream)
	w.Exec("GRANT USAGE ON SCHEMA shop TO walrelay_relay; GRANT SELECT, DELETE, UPDATE (published_at) ON shop.outbox TO walrelay_relay")
	// 3. The relay runs beside the poller.
	relay := w.Start("--source", source, "--tables", tables)
	relay.Await("relaying", fixture.Patience)
	// 4. What the poller still owes is that which was there before.
	w.Exec("CREATE TABLE owed AS SELECT id FROM shop.outbox WHERE published_at IS NULL")
	count(t, w, 0, "SELECT -count(*) FROM owed JOIN shop.outbox USING (id) WHERE published_at IS NULL")
	poller.end()
	// 5. The consumer empties the old stream, then goes on with the new one.
	old, err := w.JetStream.Consumer(t.Context(), "LEGACY", "billing")
	if err != nil {
		t.Fatal(err)
	}
	envtest.Eventually(t, fixture.Patience, func() error {
		info, err := old.Info(t.Context())
		if err == nil && (info.NumPending > 0 || info.NumAckPending > 0) {
			err = fmt.Errorf("the old stream has %d messages left and %d without an ack", info.NumPending, info.NumAckPending)
		}
		return err
	})
	before.end()
	twice := fixture.Value[int](w, "SELECT count(*) FROM effect")
	bill(t, w, stream)
	count(t, w, twice+100, "SELECT count(*) FROM effect")
	writers.end()
	billed(t, w, "shop.outbox")
	if n := fixture.Value[int](w, "SELECT count(*) FROM shop.outbox WHERE published_at IS NULL"); n == 0 {
		t.Error("the poller has published everything: nothing was moved")
	}
	relay.Stop(fixture.Patience)
}

// The second part of docs/moving.md. I1, I9: the slot that Debezium read is read
// on from where it stands, which is before the last events that Debezium sent.
func TestDebeziumsSlotIsTakenOverAtItsPosition(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{AnyUser: true})
	name := w.Source + "_dbz" // slots are the cluster's, and tests share one
	stream := strings.ToUpper(name)
	w.Exec(`CREATE TABLE effect (id uuid); CREATE TABLE seen (id uuid PRIMARY KEY);
		CREATE TABLE public.outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb);
		CREATE PUBLICATION dbz_publication FOR TABLE public.outbox`)
	w.Exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", name)
	writers := orders(t, w, `INSERT INTO public.outbox VALUES ($1, 'order', $2, 'placed', '{}')`)
	// Debezium: it sends what the slot has, the service notes what it has seen,
	// and what is confirmed is a little behind.
	const options = `NULL, NULL, 'proto_version', '1', 'publication_names', 'dbz_publication'`
	debezium := new(background).run(t, 1, func(ctx context.Context, _ *rand.Rand) error {
		ctx = context.WithoutCancel(ctx)
		rows, _ := w.Pool.Query(ctx, "SELECT data FROM pg_logical_slot_peek_binary_changes($1, "+options+")", name)
		messages, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return err
		}
		var ends []string
		var d decode.Decoder
		for _, data := range messages {
			var m decode.Message
			if err := d.Decode(data, &m); err != nil {
				return err
			}
			if m.Kind == decode.KindCommit {
				ends = append(ends, m.EndLSN.String())
			}
			if m.Kind == decode.KindInsert {
				err = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
					id := string(m.Tuple[0].Data)
					tag, err := tx.Exec(ctx, "INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING", id)
					if err == nil && tag.RowsAffected() > 0 {
						_, err = tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", id)
					}
					return err
				})
				if err != nil {
					return err
				}
			}
		}
		const behind = 5
		if len(ends) > behind {
			_, err = w.Pool.Exec(ctx, "SELECT pg_replication_slot_advance($1, $2::pg_lsn)", name, ends[len(ends)-1-behind])
		}
		return err
	})
	count(t, w, 100, "SELECT count(*) FROM effect")

	// 1. Debezium is stopped for good.
	debezium.end()
	position := fixture.Value[string](w, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", name)
	// 2. The rest of what walrelay needs; slot and publication are found.
	flags := []string{"--source", name, "--slot", name, "--publication", "dbz_publication", "--table", "public.outbox", "--columns", "debezium"}
	out := must(t, append([]string{"migrate", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--stream", stream}, flags...)...)
	if !strings.Contains(out, fmt.Sprintf("found      slot %q", name)) {
		t.Errorf("walrelay migrate says:\n%s\nwant the slot found", out)
	}
	must(t, "migrate", "--consumer", "--database-url", w.DatabaseURL)
	if now := fixture.Value[string](w, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", name); now != position {
		t.Errorf("the slot stands at %s after migrate, want %s", now, position)
	}
	w.Exec("GRANT SELECT, DELETE, UPDATE (type) ON public.outbox TO walrelay_relay")
	// 3. What the service has seen becomes its receipts.
	w.Exec("INSERT INTO walrelay.receipt (consumer, event_id) SELECT 'billing', id::text FROM seen ON CONFLICT DO NOTHING")
	// 4. Relay and consumer.
	relay := w.Start(append(flags, "--stream", stream)...)
	bill(t, w, stream)
	count(t, w, fixture.Value[int](w, "SELECT count(*) FROM seen")+100, "SELECT count(*) FROM effect")
	writers.end()
	billed(t, w, "public.outbox")
	if n := fixture.Value[int](w, "SELECT count(*) FROM walrelay.receipt r JOIN seen s ON s.id::text = r.event_id WHERE r.sequence IS NULL"); n < 100 {
		t.Errorf("%d receipts come from Debezium's time, want 100 or more", n)
	}
	relay.Stop(fixture.Patience)
}
