package retention_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/retention"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/internal/witness"
	"github.com/walrelay/walrelay/migrations"
)

func TestMain(m *testing.M) { envtest.Main(m) }

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

func exec(tb testing.TB, conn *pgx.Conn, sql string, args ...any) {
	tb.Helper()
	if _, err := conn.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("run SQL %.80q: %v", sql, err)
	}
}

func rows(tb testing.TB, conn *pgx.Conn, where string) (n int64) {
	tb.Helper()
	if err := conn.QueryRow(tb.Context(), "SELECT count(*) FROM walrelay.outbox WHERE "+where).Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// write puts n events there that are of an age, in a type of their own.
func write(tb testing.TB, conn *pgx.Conn, kind string, n int, created string) {
	tb.Helper()
	exec(tb, conn, `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
		SELECT 'order', i::text, $1, '{}', `+created+` FROM generate_series(1, $2::int) i`, kind, n)
}

// prove does what a relay does that has delivered everything so far.
func prove(tb testing.TB, conn *pgx.Conn, epoch int) {
	tb.Helper()
	exec(tb, conn, `INSERT INTO walrelay.epoch (source, number, system_id, timeline, first_lsn, reason) VALUES ('shop', $1, '1', 1, '0/1', 'test') ON CONFLICT DO NOTHING`, epoch)
	exec(tb, conn, `INSERT INTO walrelay.proven (source, epoch, snapshot, lsn, streams) VALUES ('shop', $1, pg_current_snapshot(), '0/1', '{"SHOP": {}}')`, epoch)
}

func cleaner(conn *pgx.Conn) *retention.Cleaner {
	return &retention.Cleaner{
		Conn: conn, Schema: "walrelay", Source: "shop", Retention: 7 * 24 * time.Hour,
		Tables: []router.Table{{Schema: "walrelay", Name: "outbox"}},
	}
}

// clean counts, then runs, and demands that both found the same number.
func clean(tb testing.TB, c *retention.Cleaner, want int64) retention.Result {
	tb.Helper()
	found, err := c.Count(tb.Context())
	if err != nil || found.Deleted != want {
		tb.Errorf("Count() = %+v, %v, want %d rows", found, err, want)
	}
	done, err := c.Run(tb.Context())
	if err != nil || done.Deleted != want || done.Busy {
		tb.Errorf("Run() = %+v, %v, want %d rows deleted", done, err, want)
	}
	return done
}

const old = "now() - interval '8 days'"

// A69: a row goes only when it is old and proven; each reason to stay keeps it.
func TestA69ARowIsDeletedOnlyWhenItIsOldAndProven(t *testing.T) {
	t.Parallel()
	conn := connect(t, settings(t))
	write(t, conn, "old", 10, old)
	write(t, conn, "young", 10, "now() - interval '6 days'")
	c := cleaner(conn)
	if done := clean(t, c, 0); len(done.Kept) != 1 || !strings.Contains(done.Kept[0], "nothing is proven") {
		t.Errorf("Run() without a proof says %q, want that nothing is proven", done.Kept)
	}
	// What a slot was declared not to send proves nothing.
	exec(t, conn, `INSERT INTO walrelay.epoch (source, number, system_id, timeline, first_lsn, reason) VALUES ('shop', 1, '1', 1, '0/1', 'test')`)
	exec(t, conn, `INSERT INTO walrelay.proven (source, epoch, snapshot, lsn) VALUES ('shop', 1, pg_current_snapshot(), '0/1')`)
	clean(t, c, 0)
	prove(t, conn, 1)
	write(t, conn, "after", 10, old) // committed after the proof
	exec(t, conn, `INSERT INTO walrelay.gap (source, kind) VALUES ('shop', 'slot')`)
	if done := clean(t, c, 0); len(done.Kept) != 1 || !strings.Contains(done.Kept[0], "gaps are open") {
		t.Errorf("Run() with an open gap says %q, want that it is open", done.Kept)
	}
	exec(t, conn, `UPDATE walrelay.gap SET ended_at = now()`)
	exec(t, conn, `INSERT INTO walrelay.epoch (source, number, system_id, timeline, first_lsn, reason) VALUES ('shop', 2, '1', 2, '0/1', 'promotion')`)
	clean(t, c, 0)
	exec(t, conn, `DELETE FROM walrelay.epoch WHERE number = 2`)
	exec(t, conn, `INSERT INTO walrelay.dead_letter (source, event_id, "table", payload_null, payload_size, reason, error, resolved_at, resolution)
		SELECT 'shop', id, 'walrelay.outbox', false, 2, 'too-large', 'x', CASE WHEN aggregate_id = '2' THEN now() END, CASE WHEN aggregate_id = '2' THEN 'discarded' END
		FROM walrelay.outbox WHERE event_type = 'old' AND aggregate_id IN ('1', '2')`)
	clean(t, c, 9)
	if n := rows(t, conn, "event_type = 'old' AND aggregate_id = '1'"); n != 1 {
		t.Errorf("%d rows of the open dead letter are left, want 1", n)
	}
	if n := rows(t, conn, "event_type IN ('young', 'after')"); n != 20 {
		t.Errorf("%d rows are left that are young or not proven, want 20", n)
	}
	exec(t, conn, `UPDATE walrelay.dead_letter SET resolved_at = now(), resolution = 'discarded'`)
	prove(t, conn, 1)
	clean(t, c, 11)
}

// A25: a time that is no age deletes nothing.
func TestA25ATimeThatIsNoAgeDeletesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, settings(t))
	for _, created := range []string{"'infinity'", "'-infinity'", "'0044-03-15 00:00:00 BC'", "'294276-12-31'", "'1969-12-31 23:59:59+00'"} {
		write(t, conn, "odd", 1, created)
	}
	write(t, conn, "epoch", 1, "'1970-01-01 00:00:00+00'")
	prove(t, conn, 1)
	clean(t, cleaner(conn), 1)
	if n := rows(t, conn, "event_type = 'odd'"); n != 5 {
		t.Errorf("%d rows are left whose time is no age, want 5", n)
	}
}

// Without an xid the clock stands for it, with a margin; without either nothing
// goes, and that is said.
func TestTablesWithoutAnXidAreJudgedByTheClock(t *testing.T) {
	t.Parallel()
	conn := connect(t, settings(t))
	exec(t, conn, `CREATE TABLE public.plain (id bigint, aggregatetype text, created timestamptz); CREATE TABLE public.ageless (id bigint)`)
	exec(t, conn, `INSERT INTO public.plain VALUES (1, 'a', now() - interval '2 hours'), (2, 'a', now() - interval '30 minutes')`)
	exec(t, conn, `INSERT INTO public.ageless VALUES (1)`)
	exec(t, conn, `INSERT INTO walrelay.epoch (source, number, system_id, timeline, first_lsn, reason) VALUES ('shop', 1, '1', 1, '0/1', 'test')`)
	exec(t, conn, `INSERT INTO walrelay.proven (source, epoch, snapshot, lsn, streams) VALUES ('shop', 1, pg_current_snapshot(), '0/1', '{"SHOP": {}}')`)
	c := cleaner(conn)
	c.Retention = time.Minute
	c.Tables = []router.Table{
		{Schema: "public", Name: "plain", Columns: router.Columns{ID: "id", CreatedAt: "created"}},
		{Schema: "public", Name: "ageless", Columns: router.Columns{ID: "id"}},
	}
	done := clean(t, c, 1)
	if len(done.Kept) != 1 || !strings.Contains(done.Kept[0], `"ageless"`) {
		t.Errorf("Run() says %q, want that table ageless keeps its rows", done.Kept)
	}
}

// A dump that was restored here carries xids that this cluster has not reached.
func TestRowsOfADumpAreJudgedByTheClock(t *testing.T) {
	t.Parallel()
	conn := connect(t, settings(t))
	exec(t, conn, `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at, xid)
		VALUES ('order', '1', 'restored', '{}', now() - interval '8 days', '99999999999')`)
	prove(t, conn, 1)
	clean(t, cleaner(conn), 1)
}

// A69: many rows, writers beside, three cleaners, a locked row, an old
// transaction that stays open, and one cleaner killed in the middle.
// expired is how many rows there are to delete: a million with $DRILL_LONG.
func expired() int {
	if os.Getenv("DRILL_LONG") == "1" {
		return 1_000_000
	}
	return 40_000
}

func TestA69ManyRowsBesideWritersAndOtherCleaners(t *testing.T) {
	t.Parallel()
	cfg := settings(t)
	conn := connect(t, cfg)
	many := expired()
	write(t, conn, "old", many, old)
	exec(t, conn, "ANALYZE walrelay.outbox")
	backup := connect(t, cfg)
	exec(t, backup, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	exec(t, backup, "SELECT count(*) FROM walrelay.outbox")
	undelivered := connect(t, cfg)
	exec(t, undelivered, "BEGIN")
	write(t, undelivered, "undelivered", 3, old) // began before the proof, commits after it
	prove(t, conn, 1)
	exec(t, undelivered, "COMMIT")
	locker := connect(t, cfg)
	exec(t, locker, "BEGIN")
	exec(t, locker, "SELECT FROM walrelay.outbox WHERE aggregate_id = '30000' FOR UPDATE")

	ctx, stop := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	writer := connect(t, cfg)
	written := 0
	beside.Go(func() {
		for ctx.Err() == nil {
			if _, err := writer.Exec(context.WithoutCancel(ctx), `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'w', 'new', '{}')`); err != nil {
				t.Errorf("a writer beside the cleaners got %v", err)
				return
			}
			written++
		}
	})
	// One is killed when it has begun: what it has not deleted others do.
	victim := connect(t, cfg)
	killed := cleaner(victim)
	killed.Progress = func(deleted int64) {
		if deleted > 5_000 {
			exec(t, conn, "SELECT pg_terminate_backend($1)", int32(victim.PgConn().PID()))
		}
	}
	if _, err := killed.Run(t.Context()); err == nil {
		t.Error("Run() of the killed cleaner gives no error")
	}
	var all int64
	var mu sync.Mutex
	var cleaners sync.WaitGroup
	for range 3 {
		c := cleaner(connect(t, cfg))
		cleaners.Go(func() {
			envtest.Eventually(t, 4*time.Minute, func() error {
				done, err := c.Run(t.Context())
				mu.Lock()
				all += done.Deleted
				mu.Unlock()
				if err == nil && done.Busy {
					err = errors.New("another cleaner is at it")
				}
				return err
			})
		})
	}
	cleaners.Wait()
	stop()
	beside.Wait()
	if all > int64(many-1) || all < int64(many/2) {
		t.Errorf("the three cleaners say that they deleted %d rows, want at most %d and most of them", all, many-1)
	}
	if n := rows(t, conn, "event_type = 'old'"); n != 1 {
		t.Errorf("%d old rows are left, want the locked one", n)
	}
	if n := rows(t, conn, "event_type = 'undelivered'"); n != 3 {
		t.Errorf("%d rows of the transaction that no proof sees are left, want 3", n)
	}
	if n := rows(t, conn, "event_type = 'new'"); n != int64(written) || n == 0 {
		t.Errorf("%d rows of the writer are left, want %d", n, written)
	}
	exec(t, locker, "COMMIT")
	if done, err := cleaner(conn).Run(t.Context()); err != nil || done.Deleted != 1 {
		t.Errorf("Run() after the lock is gone = %+v, %v, want 1 row", done, err)
	}
}

// One that wakes from a pause after another took over deletes nothing.
func TestARelayThatLostItsSessionDeletesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, settings(t))
	write(t, conn, "old", 5, old)
	prove(t, conn, 1)
	c := cleaner(conn)
	c.Fence = func(context.Context, pgx.Tx) error { return witness.ErrSessionLost }
	if done, err := c.Run(t.Context()); !errors.Is(err, witness.ErrSessionLost) || done.Deleted != 0 {
		t.Errorf("Run() = %+v, %v, want ErrSessionLost and no row", done, err)
	}
}

// Our own records do not grow for ever, and what is needed stays.
func TestOldRecordsGoAndTheLastOnesStay(t *testing.T) {
	t.Parallel()
	conn := connect(t, settings(t))
	exec(t, conn, `INSERT INTO walrelay.proven (source, epoch, snapshot, lsn, streams, at) SELECT 'shop', 1, pg_current_snapshot(), '0/1', s, now() - a * interval '1 day'
		FROM unnest(ARRAY['{}', '{"A": {}}', '{"A": {}}', '{"A": {}}']::jsonb[], ARRAY[400, 400, 10, 9]) AS x(s, a)`)
	exec(t, conn, `INSERT INTO walrelay.job (source, kind, ended_at) SELECT 'shop', k, now() - d * interval '1 day' FROM unnest(ARRAY['heal', 'heal', 'backfill'], ARRAY[100, 80, 100]) AS x(k, d)`)
	exec(t, conn, `INSERT INTO walrelay.gap (source, kind, ended_at) VALUES ('shop', 'slot', now() - interval '91 days'), ('shop', 'slot', now()), ('shop', 'slot', NULL)`)
	clean(t, cleaner(conn), 0)
	var got string
	if err := conn.QueryRow(t.Context(), `SELECT concat_ws(' ', (SELECT string_agg(id::text, ',' ORDER BY id) FROM walrelay.proven),
		(SELECT string_agg(id::text, ',' ORDER BY id) FROM walrelay.job), (SELECT string_agg(id::text, ',' ORDER BY id) FROM walrelay.gap))`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if got != "1,4 2,3 2,3" {
		t.Errorf("left are %s, want proofs 1,4, jobs 2,3 and gaps 2,3", got)
	}
}
