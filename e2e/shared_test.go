package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// twoTables makes a table with Debezium's columns and one with bigint ids, both
// published, and lets the workload write into the one or the other, by
// aggregate.
func twoTables(w *fixture.World) (flags []string) {
	w.Exec(`CREATE TABLE public.outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb);
		CREATE SCHEMA sales;
		CREATE TABLE sales."Events" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
			event_type text NOT NULL, payload jsonb NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
		CREATE TRIGGER e2e_note AFTER INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION e2e.note('public.outbox');
		CREATE TRIGGER e2e_note AFTER INSERT ON sales."Events" FOR EACH ROW EXECUTE FUNCTION e2e.note('sales.Events');
		CREATE OR REPLACE FUNCTION e2e.place(event uuid, name text, kind text, filler text, headers jsonb DEFAULT '{}') RETURNS bigint LANGUAGE plpgsql AS $$
		DECLARE
		    v bigint;
		BEGIN
		    UPDATE e2e.aggregate SET n = n + 1 WHERE id = name RETURNING n INTO v;
		    IF hashtext(name) % 2 = 0 THEN
		        INSERT INTO public.outbox VALUES (event, 'order', name, kind, jsonb_build_object('n', v, 'filler', filler));
		    ELSE
		        INSERT INTO sales."Events" (aggregate_type, aggregate_id, event_type, payload)
		        VALUES ('order', name, kind, jsonb_build_object('n', v, 'filler', filler));
		    END IF;
		    RETURN v;
		END
		$$`)
	w.Exec(fmt.Sprintf(`ALTER PUBLICATION %q SET TABLE public.outbox, sales."Events"`, w.Source))
	return []string{"--tables", `[{name: public.outbox, preset: debezium},
		{name: sales.Events, columns: {id: id, aggregate_type: aggregate_type, aggregate_id: aggregate_id, event_type: event_type, payload: payload, created_at: at, seq: id}}]`}
}

// foreign publishes messages of its own to the world's stream until stop.
func foreign(t *testing.T, w *fixture.World) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var done sync.WaitGroup
	var sent int
	done.Go(func() {
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if _, err := w.JetStream.Publish(ctx, "outbox."+w.Source+".foreign", []byte("x")); err == nil {
				sent++
			}
		}
	})
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			done.Wait()
			if sent == 0 {
				t.Error("the other writer wrote nothing: the drill drilled nothing")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// I1-I5, in lanes: a table with Debezium's columns and one with bigint ids, into
// one stream that a third program writes to as well, the relay killed 20 times.
func TestTwoTablesInOneSharedStreamWhileTheRelayIsKilledTwentyTimes(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	flags := append(twoTables(w), "--shared", "--ack-timeout", "1s")
	w.Share()
	stop := foreign(t, w)
	relay := w.Start(flags...)
	// What is proven under load has to be caught up with first.
	load := w.Load(fixture.LoadConfig{Behind: 1 << 20})
	random := w.Random("kills")
	for range 20 {
		before := ordersStored(t, w)
		more(t, load, 15)
		envtest.Eventually(t, fixture.Patience, func() error {
			if n := ordersStored(t, w); n < before+5 {
				return fmt.Errorf("%d messages of this source are stored, want %d", n, before+5)
			}
			return nil
		})
		instant(t.Context(), time.Duration(random.IntN(20))*time.Millisecond)
		relay.Kill()
		relay = w.Start(flags...)
	}
	// An audit under load: rows that are on their way are not missing, though
	// these tables have no xid that tells which snapshot sees them.
	newest := fixture.Value[int64](w, "SELECT coalesce(max(id), 0) FROM walrelay.proven")
	envtest.Eventually(t, fixture.Patience, func() error {
		if n := fixture.Value[int64](w, "SELECT coalesce(max(id), 0) FROM walrelay.proven"); n < newest+2 {
			return fmt.Errorf("the newest proof is %d, want %d", n, newest+2)
		}
		return nil
	})
	load.Stop()
	stop()
	w.Check()
	if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.gap"); n != 0 {
		t.Errorf("%d gaps were found, want none: nothing was lost", n)
	}
	relay.Stop(30 * time.Second)
}

// ordersStored counts the messages of the source in a stream that a foreign program
// writes to. To read them each time costs more than the relay's work, which then
// falls behind its writers.
func ordersStored(t *testing.T, w *fixture.World) (n uint64) {
	t.Helper()
	stream, err := w.JetStream.Stream(t.Context(), w.StreamName)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("outbox."+w.Source+".order.>"))
	if err != nil {
		t.Fatal(err)
	}
	for _, count := range info.State.Subjects {
		n += count
	}
	return n
}

func messages(t *testing.T, w *fixture.World) []fixture.Message {
	t.Helper()
	list, err := w.Messages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// I1, I5: a work queue whose consumers drain it at once, so that neither the
// stream's end nor, after a pause, the duplicate window tells what was stored.
func TestAWorkQueueThatIsDrainedAtOnceWhileTheRelayIsKilledTwentyTimes(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	if err := w.JetStream.DeleteStream(t.Context(), w.StreamName); err != nil {
		t.Fatal(err)
	}
	makeStream(t, w, jetstream.StreamConfig{
		Name: w.StreamName, Subjects: []string{"outbox." + w.Source + ".>"}, Retention: jetstream.WorkQueuePolicy, Duplicates: 100 * time.Millisecond,
	})
	consumer, err := w.JetStream.CreateConsumer(t.Context(), w.StreamName, jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: -1})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[string]map[uint64]bool{} // sequences by id: a redelivery is no second message
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		meta, err := m.Metadata()
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		id := m.Headers().Get("Nats-Msg-Id")
		if seen[id] == nil {
			seen[id] = map[uint64]bool{}
		}
		seen[id][meta.Sequence.Stream] = true
		mu.Unlock()
		if err := m.Ack(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer consuming.Stop()
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
	relay := w.Start()
	// What is proven under load has to be caught up with first.
	load := w.Load(fixture.LoadConfig{Writers: 2, Keep: true, Behind: 1 << 20})
	random := w.Random("kills")
	for i := range 20 {
		before := count()
		more(t, load, 10)
		envtest.Eventually(t, fixture.Patience, func() error {
			if n := count(); n < before+3 {
				return fmt.Errorf("%d events were consumed, want %d", n, before+3)
			}
			return nil
		})
		instant(t.Context(), time.Duration(random.IntN(20))*time.Millisecond)
		relay.Kill()
		if i%5 == 4 { // a pause beyond the duplicate window
			instant(t.Context(), 300*time.Millisecond)
		}
		relay = w.Start()
	}
	// Lives that are long enough for an audit and for proofs: what was confirmed
	// and consumed must not look as if it had never been sent.
	for range 3 {
		newest := fixture.Value[int64](w, "SELECT coalesce(max(id), 0) FROM walrelay.proven")
		envtest.Eventually(t, fixture.Patience, func() error {
			if n := fixture.Value[int64](w, "SELECT coalesce(max(id), 0) FROM walrelay.proven"); n < newest+2 {
				return fmt.Errorf("the newest proof is %d, want %d", n, newest+2)
			}
			return nil
		})
		instant(t.Context(), time.Duration(500+random.IntN(400))*time.Millisecond)
		relay.Kill()
		relay = w.Start()
	}
	load.Stop()
	proven(t, w)
	rows, err := w.Rows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	envtest.Eventually(t, fixture.Patience, func() error {
		if n := count(); n < len(rows) {
			return fmt.Errorf("%d of %d events were consumed", n, len(rows))
		}
		return nil
	})
	relay.Stop(30 * time.Second)
	mu.Lock()
	defer mu.Unlock()
	committed := map[string]bool{}
	for _, r := range rows {
		committed[r.ID] = true
	}
	for id, at := range seen {
		if len(at) != 1 || !committed[id] {
			t.Errorf("event %s was stored at sequences %v (committed: %v), want once", id, at, committed[id])
		}
	}
}

// I1: routes that change between two runs. What waited for a stream that did
// not cover it goes where the new routes send it, and nothing is sent twice.
func TestAnEventThatWaitedGoesWhereChangedRoutesSendIt(t *testing.T) {
	t.Parallel()
	// The flags that the checker knows say that subjects are not the default's.
	w := fixture.New(t, fixture.Config{More: []string{"B", "C"}, Flags: []string{"--routes", "[{}]"}})
	makeStream(t, w, jetstream.StreamConfig{Name: "B", Subjects: []string{"b.kept"}})
	makeStream(t, w, jetstream.StreamConfig{Name: "C", Subjects: []string{"c.>"}})
	relay := w.Start("--routes", `[{event_types: [orphan, kept], stream: B, subject: "b.{event_type}"}, {event_types: [other], stream: C, subject: "c.{event_type}"}, {}]`)
	placeKind(w, "placed", 5)
	placeKind(w, "kept", 3)
	placeKind(w, "other", 2)
	holds(t, w, "B", 3)
	proven(t, w)
	placeKind(w, "orphan", 3)
	placeKind(w, "placed", 5)
	placeKind(w, "other", 2)
	holds(t, w, w.StreamName, 10)
	holds(t, w, "C", 4)
	relay.Kill()

	relay = w.Start("--routes", `[{event_types: [kept], stream: B, subject: "b.{event_type}"}, {stream: C, subject: "c.{event_type}"}]`)
	placeKind(w, "placed", 2)
	proven(t, w)
	if text := relay.Text(); !strings.Contains(text, "differ from those of the last run") || !strings.Contains(text, "route 1: orphan, kept of any table to stream B") {
		t.Error("the log does not say which routes are gone")
	}
	w.Check()
	holds(t, w, w.StreamName, 10)
	holds(t, w, "B", 3)
	holds(t, w, "C", 4+3+2)
	relay.Stop(30 * time.Second)
}

// I10: what lanes cannot promise on a stream that lets messages go is said.
func TestStatusTellsTheLimitOfLanesOnAWorkQueue(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: []string{"--admin", "127.0.0.1:0", "--shared"}})
	if err := w.JetStream.DeleteStream(t.Context(), w.StreamName); err != nil {
		t.Fatal(err)
	}
	makeStream(t, w, jetstream.StreamConfig{
		Name: w.StreamName, Subjects: []string{"outbox." + w.Source + ".>"}, Retention: jetstream.WorkQueuePolicy, Duplicates: time.Minute,
	})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	w.Place(1)
	holds(t, w, w.StreamName, 1)
	for _, args := range [][]string{{"status", "--source", w.Source, "--admin", addr}, {"status", "--json", "--source", w.Source, "--admin", addr}} {
		if code, out := verb(t, nil, args...); code != 0 || !strings.Contains(out, "retention: workqueue") || !strings.Contains(out, "duplicate window of 1m0s") {
			t.Errorf("walrelay %v = %d: %s; want the limit of the duplicate window", args, code, out)
		}
	}
	relay.Stop(30 * time.Second)
}

// I5: the witness has noted what is stored and PostgreSQL has not heard of it,
// since nothing that the relay sends on the replication connection arrives. What
// the slot sends again is all of what is settled, and nothing of it is new.
func TestLanesPassOverWhatTheWitnessAloneKnowsToBeStored(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: func(c *jetstream.StreamConfig) { c.Duplicates = 4 * time.Second }})
	w.Share()
	server, err := url.Parse(w.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	wire := envtest.Proxy(t, server.Host)
	flags := []string{"--shared", "--ack-timeout", "1s", "--replication-url", strings.Replace(w.DatabaseURL, server.Host, wire.Addr(), 1)}
	relay := w.Start(flags...)
	w.Place(5)
	w.AwaitRecorded(5)
	if err := wire.Swallow(testenv.Upstream); err != nil {
		t.Fatal(err)
	}
	w.Place(20)
	w.AwaitRecorded(25)
	written := fixture.Value[string](w, "SELECT pg_current_wal_insert_lsn()::text")
	w.Exec("SELECT pg_logical_emit_message(true, 'beyond', '')")
	const ahead = `SELECT w.confirmed_lsn >= $2::text::pg_lsn AND s.confirmed_flush_lsn < $2::text::pg_lsn
		FROM walrelay.witness w JOIN pg_replication_slots s ON s.slot_name = w.source WHERE w.source = $1`
	becomes(t, w, "the witness is ahead of the slot", ahead, w.Source, written)
	relay.Kill()
	// The duplicate window is not to help: it is over when it is for a message
	// that came behind the others.
	envtest.Eventually(t, fixture.Patience, func() error {
		ack, err := w.JetStream.Publish(t.Context(), "outbox."+w.Source+".foreign", nil, jetstream.WithMsgID("probe"))
		if err == nil && (ack.Duplicate || ack.Sequence <= 26) {
			err = fmt.Errorf("the duplicate window is not over")
		}
		return err
	})
	if err := errors.Join(wire.Cut(), wire.Release(testenv.Upstream), wire.Restore()); err != nil {
		t.Fatal(err)
	}
	relay = w.Start(flags...)
	w.Place(5)
	w.Check()
	relay.Stop(fixture.Patience)
}
