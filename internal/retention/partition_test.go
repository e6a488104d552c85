package retention_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/retention"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/internal/witness"
	"github.com/walrelay/walrelay/migrations"
)

// newest starts the newest server with a database of its own.
func newest(tb testing.TB) string {
	tb.Helper()
	return envtest.Postgres(tb, testenv.PGConfig{Version: 18}).URL("postgres")
}

// inParts are the settings of a database with a partitioned outbox, whose
// partition outbox_old has passed the retention.
func inParts(tb testing.TB, address string) *pgx.ConnConfig {
	tb.Helper()
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		tb.Fatal(err)
	}
	if err := migrations.Apply(tb.Context(), cfg, migrations.Config{SchemaOnly: true, Partitioned: true, PartitionsAhead: 2}, nil); err != nil {
		tb.Fatal(err)
	}
	maps.Copy(cfg.RuntimeParams, witness.PinSettings())
	past(tb, connect(tb, cfg), "outbox_old", 9, 7)
	return cfg
}

// withOld is a database whose old partition has five rows that are proven.
func withOld(tb testing.TB, address string) (cfg *pgx.ConnConfig, conn *pgx.Conn) {
	tb.Helper()
	cfg = inParts(tb, address)
	conn = connect(tb, cfg)
	write(tb, conn, "old", 5, old)
	prove(tb, conn, 1)
	return cfg, conn
}

// drops waits until a run of the cleaner has dropped those five.
func drops(tb testing.TB, c *retention.Cleaner) {
	tb.Helper()
	envtest.Eventually(tb, time.Minute, func() error {
		done, err := c.Run(tb.Context())
		if err == nil && done.Deleted != 5 {
			err = fmt.Errorf("Run() = %+v, want 5 rows", done)
		}
		return err
	})
}

// past makes a partition from days ago to days ago.
func past(tb testing.TB, conn *pgx.Conn, name string, from, to int) {
	tb.Helper()
	at := func(days int) string {
		return time.Now().AddDate(0, 0, -days).UTC().Format("2006-01-02 15:04:05Z07:00")
	}
	exec(tb, conn, fmt.Sprintf(`CREATE TABLE walrelay.%s PARTITION OF walrelay.outbox FOR VALUES FROM ('%s') TO ('%s');
		CREATE UNIQUE INDEX ON walrelay.%[1]s (id)`, name, at(from), at(to)))
}

func there(tb testing.TB, conn *pgx.Conn, name string) (yes bool) {
	tb.Helper()
	if err := conn.QueryRow(tb.Context(), "SELECT to_regclass('walrelay.' || $1) IS NOT NULL", name).Scan(&yes); err != nil {
		tb.Fatal(err)
	}
	return yes
}

// A69: a partition is dropped only when all of it is old and proven; each reason
// to stay keeps it, whole, and is said.
func TestA69APartitionIsDroppedOnlyWhenAllOfItIsOldAndProven(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) string{"oldest": envtest.SharedPostgres, "newest": newest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := inParts(t, server(t))
			conn := connect(t, cfg)
			past(t, conn, "outbox_between", 7, 6) // holds rows that are old by now, and is not yet
			write(t, conn, "old", 10, old)
			write(t, conn, "between", 10, "now() - interval '6 days 23 hours'")
			c := cleaner(conn)
			c.Retention = 7*24*time.Hour - 2*time.Hour
			stays := func(words string) {
				t.Helper()
				done := clean(t, c, 0)
				if said := strings.Join(done.Kept, "; "); len(done.Kept) != 1 || !strings.Contains(said, words) || len(done.Partitions) > 0 {
					t.Errorf("Run() = %+v, want one reason that says %q", done, words)
				}
				if !there(t, conn, "outbox_old") {
					t.Fatalf("the partition is gone, though %s", words)
				}
			}
			stays("nothing is proven")
			exec(t, conn, `INSERT INTO walrelay.epoch (source, number, system_id, timeline, first_lsn, reason) VALUES ('shop', 1, '1', 1, '0/1', 'test')`)
			exec(t, conn, `INSERT INTO walrelay.proven (source, epoch, snapshot, lsn) VALUES ('shop', 1, pg_current_snapshot(), '0/1')`) // declared: proves nothing
			stays("nothing is proven")

			// Began before the proof and committed after it: undelivered.
			writer := connect(t, cfg)
			exec(t, writer, "BEGIN")
			write(t, writer, "undelivered", 1, old)
			exec(t, conn, "SELECT pg_current_xact_id()")
			prove(t, conn, 1)
			exec(t, writer, "COMMIT")
			stays("no proof sees")
			prove(t, conn, 1)
			write(t, conn, "after", 1, old) // began after it
			stays("no proof sees")
			prove(t, conn, 1)

			exec(t, conn, `INSERT INTO walrelay.gap (source, kind) VALUES ('shop', 'slot')`)
			stays("gaps are open")
			exec(t, conn, `UPDATE walrelay.gap SET ended_at = now()`)
			exec(t, conn, `INSERT INTO walrelay.epoch (source, number, system_id, timeline, first_lsn, reason) VALUES ('shop', 2, '1', 2, '0/1', 'promotion')`)
			stays("nothing is proven")
			exec(t, conn, `DELETE FROM walrelay.epoch WHERE number = 2`)
			letter := `INSERT INTO walrelay.dead_letter (source, event_id, "table", payload_null, payload_size, reason, error)
				SELECT 'shop', id, $1, false, 2, 'too-large', 'x' FROM walrelay.outbox WHERE event_type = $2 AND aggregate_id = '1'`
			exec(t, conn, letter, "walrelay.outbox", "old")
			stays("1 dead letters")
			exec(t, conn, `UPDATE walrelay.dead_letter SET resolved_at = now(), resolution = 'discarded'`)
			// What is of another partition, of another table or no id of this one.
			exec(t, conn, letter, "walrelay.outbox", "between")
			exec(t, conn, letter, "public.events", "old")
			exec(t, conn, `INSERT INTO walrelay.dead_letter (source, event_id, "table", payload_null, payload_size, reason, error) VALUES ('shop', '------', 'walrelay.outbox', true, 0, 'x', 'x')`)

			if age, err := c.Backlog(t.Context()); err != nil || age < time.Hour || age > 4*time.Hour {
				t.Errorf("Backlog() = %v, %v, want the two hours since the end of outbox_old", age, err)
			}
			if done := clean(t, c, 12); !slices.Equal(done.Partitions, []string{`"walrelay"."outbox_old"`}) {
				t.Errorf("Run() dropped %q, want outbox_old", done.Partitions)
			}
			if there(t, conn, "outbox_old") || !there(t, conn, "outbox_between") || rows(t, conn, "event_type = 'between'") != 10 {
				t.Error("want outbox_old gone, and outbox_between there with all of its rows")
			}
			write(t, conn, "late", 1, old) // no partition takes it: the default one does
			prove(t, conn, 1)
			clean(t, c, 1)
			if age, err := c.Backlog(t.Context()); err != nil || age != 0 {
				t.Errorf("Backlog() = %v, %v, want 0", age, err)
			}
		})
	}
}

// Rows that came with a dump carry xids which this cluster has not reached: they
// are judged by their age, and never by it where they may be of this epoch.
func TestAPartitionOfADumpIsJudgedByItsAge(t *testing.T) {
	t.Parallel()
	conn := connect(t, inParts(t, envtest.SharedPostgres(t)))
	exec(t, conn, `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at, xid)
		VALUES ('order', '1', 'restored', '{}', now() - interval '8 days', '99999999999')`)
	prove(t, conn, 1)
	exec(t, conn, `UPDATE walrelay.epoch SET at = now() - interval '8 days'`) // within the partition
	clean(t, cleaner(conn), 0)
	exec(t, conn, `UPDATE walrelay.epoch SET at = now()`)
	clean(t, cleaner(conn), 1)
}

// A25: what the default partition holds goes row by row, and a time that is no
// age never. The order of an index does not make the cleaner pass over rows.
func TestTheDefaultPartitionIsCleanedRowByRow(t *testing.T) {
	t.Parallel()
	cfg := inParts(t, envtest.SharedPostgres(t))
	conn := connect(t, cfg)
	exec(t, conn, "DROP TABLE walrelay.outbox_old")
	for _, created := range []string{"'infinity'", "'-infinity'", "'1969-12-31 23:59:59+00'", "now() + interval '1 year'"} {
		write(t, conn, "odd", 1, created)
	}
	// The newest first, so that created_at falls where the place rises.
	write(t, conn, "old", 60_000, "now() - interval '8 days' - i * interval '1 second'")
	exec(t, conn, "ANALYZE walrelay.outbox")
	prove(t, conn, 1)
	clean(t, cleaner(conn), 60_000)
	if n := rows(t, conn, "event_type = 'odd'"); n != 4 {
		t.Errorf("%d rows are left whose time is no age, want 4", n)
	}
}

// A69: who reads or has written to a partition keeps it for as long; nobody who
// writes waits for that, and the drop comes when the way is free.
func TestA69ALockDelaysTheDropAndNoWriter(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) string{"oldest": envtest.SharedPostgres, "newest": newest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, conn := withOld(t, server(t))
			var written atomic.Int64
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			writer := connect(t, cfg)
			// A writer that waits for longer than one try of the cleaner may
			// make it wait has waited for the lock of somebody else.
			exec(t, writer, "SET lock_timeout = '1500ms'")
			var beside sync.WaitGroup
			defer beside.Wait()
			defer stop()
			beside.Go(func() {
				for ctx.Err() == nil {
					if _, err := writer.Exec(context.WithoutCancel(ctx), `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'w', 'new', '{}')`); err != nil {
						t.Errorf("a writer beside the cleaner got %v", err)
						return
					}
					written.Add(1)
				}
			})
			c := cleaner(connect(t, cfg))
			holder := connect(t, cfg)
			for _, hold := range []string{
				"SELECT count(*) FROM walrelay.outbox",                 // a backup
				"LOCK TABLE walrelay.outbox_old IN ROW EXCLUSIVE MODE", // a writer of old rows
				"LOCK TABLE ONLY walrelay.outbox IN ACCESS SHARE MODE", // of the outbox itself
			} {
				exec(t, holder, "BEGIN")
				exec(t, holder, hold)
				before := written.Load()
				done, err := c.Run(t.Context())
				if err != nil || done.Deleted != 0 || len(done.Kept) != 1 || !strings.Contains(done.Kept[0], "locked") {
					t.Errorf("Run() beside %q = %+v, %v, want the partition kept for now", hold, done, err)
				}
				if written.Load() == before {
					t.Errorf("nothing was written beside %q", hold)
				}
				exec(t, holder, "COMMIT")
			}
			drops(t, c)
			stop()
			beside.Wait()
			if n := rows(t, conn, "event_type = 'new'"); n != written.Load() {
				t.Errorf("%d rows of the writer are left, want %d", n, written.Load())
			}
		})
	}
}

// A69: where writers' transactions always overlap, a short wait never finds the
// way free; a longer one does.
func TestAPartitionIsDroppedAlthoughTransactionsOverlap(t *testing.T) {
	t.Parallel()
	cfg, _ := withOld(t, envtest.SharedPostgres(t))
	ctx, stop := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	for _, later := range []string{"0", "0.15"} {
		writer := connect(t, cfg)
		exec(t, writer, "SELECT pg_sleep("+later+")")
		exec(t, writer, "BEGIN; LOCK TABLE ONLY walrelay.outbox IN ROW EXCLUSIVE MODE")
		beside.Go(func() {
			for ctx.Err() == nil {
				if _, err := writer.Exec(context.WithoutCancel(ctx), "SELECT pg_sleep(0.3)"); err != nil {
					t.Errorf("a writer beside the cleaner got %v", err)
					return
				}
				if _, err := writer.Exec(context.WithoutCancel(ctx), "COMMIT; BEGIN; LOCK TABLE ONLY walrelay.outbox IN ROW EXCLUSIVE MODE"); err != nil {
					t.Errorf("a writer beside the cleaner got %v", err)
					return
				}
			}
		})
	}
	c := cleaner(connect(t, cfg))
	drops(t, c)
	if c.DropWait != 100*time.Millisecond {
		t.Errorf("DropWait = %v after a drop, want the shortest again", c.DropWait)
	}
}

// A69: one who reads the whole outbox has locked it, so a drop that waits for the
// outbox must not have what that reader is going to lock. Otherwise neither goes
// on, and where readers come all the time no partition ever goes.
func TestAReaderOfTheWholeOutboxDoesNotMeetADropHalfway(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) string{"oldest": envtest.SharedPostgres, "newest": newest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, conn := withOld(t, server(t))
			reader := connect(t, cfg)
			exec(t, reader, "SET lock_timeout = '5s'")
			c := cleaner(connect(t, cfg))
			read := 0
			c.Fence = func(ctx context.Context, _ pgx.Tx) error { // the partition is held here
				var n int
				err := reader.QueryRow(ctx, "SELECT count(*) FROM walrelay.outbox").Scan(&n)
				read += n
				return err
			}
			clean(t, c, 5)
			if read != 5 {
				t.Errorf("a reader saw %d rows while the partition was held, want 5", read)
			}
			if there(t, conn, "outbox_old") {
				t.Error("the partition is still there")
			}
		})
	}
}

// A row may be written to an old partition between the first look and the lock:
// what is judged under the lock counts.
func TestARowThatComesWhileTheCleanerWaitsKeepsThePartition(t *testing.T) {
	t.Parallel()
	cfg, conn := withOld(t, envtest.SharedPostgres(t))
	writer := connect(t, cfg)
	exec(t, writer, "BEGIN")
	write(t, writer, "late", 1, old) // nobody sees it yet
	done := make(chan retention.Result)
	c := cleaner(connect(t, cfg))
	go func() {
		found, err := c.Run(t.Context())
		if err != nil {
			t.Error(err)
		}
		done <- found
	}()
	envtest.Eventually(t, time.Minute, func() error {
		var n int
		err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'walrelay.outbox_old'::regclass").Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("the cleaner does not wait for the partition")
		}
		return err
	})
	exec(t, writer, "COMMIT")
	if found := <-done; found.Deleted != 0 || len(found.Kept) != 1 || !strings.Contains(found.Kept[0], "no proof sees") {
		t.Errorf("Run() = %+v, want the partition kept for the row that came", found)
	}
	if n := rows(t, conn, "true"); n != 6 {
		t.Errorf("%d rows are left, want 6", n)
	}
}

// One that wakes from a pause after another took over drops and makes nothing.
func TestARelayThatLostItsSessionLeavesPartitionsAlone(t *testing.T) {
	t.Parallel()
	_, conn := withOld(t, envtest.SharedPostgres(t))
	exec(t, conn, "UPDATE walrelay.partitioning SET ahead = 5")
	c := cleaner(conn)
	c.Fence = func(context.Context, pgx.Tx) error { return witness.ErrSessionLost }
	if done, err := c.Run(t.Context()); !errors.Is(err, witness.ErrSessionLost) || done.Deleted != 0 || !there(t, conn, "outbox_old") {
		t.Errorf("Run() = %+v, %v, want ErrSessionLost and the partition there", done, err)
	}
	if made, err := c.Ahead(t.Context()); !errors.Is(err, witness.ErrSessionLost) || len(made) > 0 {
		t.Errorf("Ahead() = %q, %v, want ErrSessionLost and none made", made, err)
	}
	c.Fence = nil
	if made, err := c.Ahead(t.Context()); err != nil || len(made) != 3 {
		t.Errorf("Ahead() = %q, %v, want 3 made", made, err)
	}
	// A lock is in the way: no error, and another time will do.
	exec(t, conn, "UPDATE walrelay.partitioning SET ahead = 6")
	holder := connect(t, conn.Config())
	exec(t, holder, "BEGIN")
	exec(t, holder, "SELECT FROM walrelay.outbox")
	if made, err := c.Ahead(t.Context()); err != nil || len(made) != 0 {
		t.Errorf("Ahead() beside a reader of all = %q, %v, want none made", made, err)
	}
	exec(t, holder, "COMMIT")
	if made, err := c.Ahead(t.Context()); err != nil || len(made) != 1 {
		t.Errorf("Ahead() = %q, %v, want 1 made", made, err)
	}
}

// A role with the rights that doctor asks for cleans; one without is told them.
func TestRightsOnPartitionsAreNamed(t *testing.T) {
	t.Parallel()
	cfg := inParts(t, envtest.SharedPostgres(t))
	conn := connect(t, cfg)
	role := conn.Config().Database + "_cleaner"
	exec(t, conn, "CREATE ROLE "+role+" LOGIN")
	defer exec(t, conn, "DROP OWNED BY "+role+"; DROP ROLE "+role)
	exec(t, conn, "GRANT USAGE ON SCHEMA walrelay TO "+role)
	exec(t, conn, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walrelay TO "+role)
	write(t, conn, "old", 5, old)
	write(t, conn, "rest", 1, "now() - interval '20 days'")
	prove(t, conn, 1)
	exec(t, conn, "UPDATE walrelay.partitioning SET ahead = 3")
	as := cfg.Copy()
	as.User = role
	c := cleaner(connect(t, as))
	const grant = `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "walrelay" TO `
	if _, err := c.Ahead(t.Context()); err == nil || !strings.Contains(err.Error(), grant) {
		t.Errorf("Ahead() without a right = %v, want the GRANT", err)
	}
	_, err := c.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), grant) {
		t.Fatalf("Run() without a right = %v, want the GRANT", err)
	}
	look := func() retention.Parts {
		t.Helper()
		parts, err := retention.Look(t.Context(), c.Conn, c.Tables)
		if err != nil || len(parts) != 1 {
			t.Fatalf("Look() = %+v, %v, want one outbox", parts, err)
		}
		return parts[0]
	}
	if p := look(); p.May || p.Until.Before(time.Now().AddDate(0, 0, 2)) || p.Default != "walrelay.outbox_default" || len(p.Foreign) > 0 {
		t.Errorf("Look() = %+v, want no right, the partitions ahead and the default one", p)
	}
	from := strings.Index(err.Error(), grant)
	exec(t, conn, err.Error()[from:from+strings.Index(err.Error()[from:], ";")])
	if made, err := c.Ahead(t.Context()); err != nil || len(made) != 1 {
		t.Errorf("Ahead() = %q, %v, want 1 made", made, err)
	}
	clean(t, c, 6)
	exec(t, conn, "ALTER TABLE walrelay.outbox_default OWNER TO "+role)
	if p := look(); !p.May || len(p.Foreign) != 0 { // a superuser owns the functions
		t.Errorf("Look() = %+v, want the right", p)
	}
	exec(t, conn, "ALTER TABLE walrelay.outbox_default OWNER TO "+conn.Config().User)
}
