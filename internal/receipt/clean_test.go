package receipt_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/walrelay/walrelay/internal/receipt"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

const month = 30 * 24 * time.Hour

type world struct {
	t    *testing.T
	url  string
	pool *pgxpool.Pool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	url := envtest.SharedPostgres(t)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Consumer(t.Context(), cfg, migrations.Config{}, nil); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &world{t: t, url: url, pool: pool}
}

func (w *world) exec(statement string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), statement, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) count(query string, args ...any) (n int64) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), query, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// fill writes receipts of a consumer that are so many days old.
func (w *world) fill(consumer string, n, days int) {
	w.t.Helper()
	w.exec(`INSERT INTO walrelay.receipt (consumer, event_id, stream, sequence, at)
		SELECT $1, $1 || '-' || $3::int || '-' || n, 'S', n, now() - $3::int * interval '1 day' FROM generate_series(1, $2::int) AS n`, consumer, n, days)
}

type pgxTx struct{ pgx.Tx }

func (t pgxTx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := t.Tx.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) Query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) error {
	rows, err := t.Tx.Query(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

type sqlTx struct{ *sql.Tx }

func (t sqlTx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	r, err := t.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (t sqlTx) Query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) error {
	rows, err := t.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (w *world) cleaner(consumer string) receipt.Cleaner {
	return receipt.Cleaner{
		Schema: "walrelay", Consumer: consumer, Retention: month,
		Within: func(ctx context.Context, do func(receipt.Tx) error) error {
			return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return do(pgxTx{tx}) })
		},
	}
}

// A68: what is younger stays, and so does what is another consumer's.
func TestA68OnlyWhatIsOldIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := stdlib.OpenDBFromPool(w.pool)
	t.Cleanup(func() { _ = db.Close() })
	viaSQL := w.cleaner("sql")
	viaSQL.Within = func(ctx context.Context, do func(receipt.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := do(sqlTx{tx}); err != nil {
			_ = tx.Rollback()
			return err
		}
		return tx.Commit()
	}
	for consumer, c := range map[string]receipt.Cleaner{"pgx": w.cleaner("pgx"), "sql": viaSQL} {
		w.fill(consumer, 5000, 31)
		w.fill(consumer, 100, 29)
		w.fill("not "+consumer, 10, 90)
		w.exec(`INSERT INTO walrelay.attempt (consumer, event_id, last_at) VALUES ($1, 'old', now() - interval '31 days'), ($1, 'young', now())`, consumer)
		found, err := c.Count(t.Context())
		if err != nil || found.Receipts != 5000 || found.Attempts != 1 {
			t.Errorf("%s: Count() = %+v, %v, want 5000 receipts and 1 attempt", consumer, found, err)
		}
		done, err := c.Run(t.Context())
		if err != nil || done != (receipt.Result{Receipts: 5000, Attempts: 1}) {
			t.Errorf("%s: Run() = %+v, %v, want 5000 receipts and 1 attempt", consumer, done, err)
		}
		if got := w.count(`SELECT count(*) FROM walrelay.receipt WHERE consumer = $1`, consumer); got != 100 {
			t.Errorf("%s: receipts left = %d, want 100", consumer, got)
		}
		if got := w.count(`SELECT count(*) FROM walrelay.receipt WHERE consumer = $1`, "not "+consumer); got != 10 {
			t.Errorf("%s: receipts of another consumer = %d, want 10", consumer, got)
		}
	}
}

// A69: a million old receipts, three cleaners at once, one of them cut off in
// the middle, a backup's transaction open, rows locked, and a consumer that
// goes on writing.
func TestA69CleaningIsGentle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const old = 1_000_000
	w.fill("billing", old, 40)
	w.exec(`ANALYZE walrelay.receipt`)

	backup, err := pgx.Connect(t.Context(), w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer backup.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // a test's connection
	if _, err := backup.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM walrelay.attempt`); err != nil {
		t.Fatal(err)
	}
	holder, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // a test's transaction
	if _, err := holder.Exec(t.Context(), `SELECT FROM walrelay.receipt WHERE event_id = 'billing-40-7' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}

	// A writer that never waits for a lock longer than 100 ms, or fails.
	writing, stopWriting := context.WithCancel(t.Context())
	var written atomic.Int64
	var writer sync.WaitGroup
	writer.Go(func() {
		conn, err := pgx.Connect(t.Context(), w.url)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // a test's connection
		if _, err := conn.Exec(t.Context(), `SET lock_timeout = '100ms'`); err != nil {
			t.Error(err)
			return
		}
		for n := 0; writing.Err() == nil; n++ {
			if _, err := conn.Exec(t.Context(), `INSERT INTO walrelay.receipt (consumer, event_id) VALUES ('billing', $1)`, fmt.Sprint("new-", n)); err != nil {
				t.Errorf("a receipt beside the cleaners: %v", err)
				return
			}
			written.Add(1)
		}
	})

	var together, busy atomic.Int64
	var inside, most int64
	var mu sync.Mutex
	run := func(ctx context.Context) (receipt.Result, error) {
		c := w.cleaner("billing")
		within := c.Within
		c.Within = func(ctx context.Context, do func(receipt.Tx) error) error {
			return within(ctx, func(tx receipt.Tx) error {
				return do(watched{tx, func() {
					mu.Lock()
					inside++
					most = max(most, inside)
					mu.Unlock()
				}, func() {
					mu.Lock()
					inside--
					mu.Unlock()
				}})
			})
		}
		return c.Run(ctx)
	}
	cut, stop := context.WithCancel(t.Context())
	var cleaners sync.WaitGroup
	for i := range 3 {
		cleaners.Go(func() {
			ctx := cut
			if i > 0 {
				ctx = t.Context()
			}
			again := time.NewTicker(200 * time.Millisecond) // a service waits for a minute
			defer again.Stop()
			for ; ctx.Err() == nil; <-again.C {
				done, err := run(ctx)
				together.Add(done.Receipts)
				if err != nil && ctx.Err() == nil {
					t.Errorf("Run() = %v, want no error", err)
					return
				}
				if !done.Busy {
					return
				}
				busy.Add(1)
			}
		})
	}
	envtest.Eventually(t, time.Minute, func() error {
		if n := w.count(`SELECT count(*) FROM walrelay.receipt WHERE event_id NOT LIKE 'new-%'`); n > old-old/10 {
			return fmt.Errorf("old receipts = %d, want a tenth of them deleted", n)
		}
		return nil
	})
	stop()
	cleaners.Wait()
	stopWriting()
	writer.Wait()

	if got := w.count(`SELECT count(*) FROM walrelay.receipt WHERE event_id NOT LIKE 'new-%'`); got != 1 {
		t.Errorf("old receipts left = %d, want the locked one", got)
	}
	if got := w.count(`SELECT count(*) FROM walrelay.receipt WHERE event_id LIKE 'new-%'`); got != written.Load() || got == 0 {
		t.Errorf("new receipts = %d, want the %d that were written", got, written.Load())
	}
	if most != 1 {
		t.Errorf("cleaners that delete at one time = %d, want 1", most)
	}
	if busy.Load() == 0 {
		t.Error("no cleaner found another one at work")
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := run(t.Context()); err != nil || done.Receipts != 1 {
		t.Errorf("Run() once it is free = %+v, %v, want 1 receipt", done, err)
	}
}

// watched tells of the time in which a cleaner deletes.
type watched struct {
	receipt.Tx
	enter, leave func()
}

func (w watched) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	w.enter()
	defer w.leave()
	return w.Tx.Exec(ctx, statement, args...)
}

// A69: a lock on the whole table is not waited for, and nothing is lost by it.
func TestA69ATableThatIsLockedIsLeftForLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill("billing", 10, 40)
	holder, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // a test's transaction
	if _, err := holder.Exec(t.Context(), `LOCK TABLE walrelay.receipt IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.cleaner("billing").Run(t.Context()); err == nil {
		t.Error("Run() = nil, want the lock timeout")
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := w.cleaner("billing").Run(t.Context()); err != nil || done.Receipts != 10 {
		t.Errorf("Run() = %+v, %v, want 10 receipts", done, err)
	}
}

// Who asks by hand waits for the service's cleaner, which may keep receipts for
// longer and would leave what was asked for.
func TestAPatientCleanerWaitsForAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill("billing", 10, 31)
	other, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), `SELECT pg_advisory_xact_lock(hashtextextended('walrelay receipts of billing', 0))`); err != nil {
		t.Fatal(err)
	}
	if done, err := w.cleaner("billing").Run(t.Context()); err != nil || !done.Busy || done.Receipts != 0 {
		t.Errorf("Run() beside another = %+v, %v, want busy", done, err)
	}
	c := w.cleaner("billing")
	c.Patience = time.Minute
	within, tries := c.Within, 0
	c.Within = func(ctx context.Context, do func(receipt.Tx) error) error {
		if tries++; tries == 3 {
			if err := other.Commit(ctx); err != nil {
				return err
			}
		}
		return within(ctx, do)
	}
	if done, err := c.Run(t.Context()); err != nil || done.Busy || done.Receipts != 10 {
		t.Errorf("Run() of a patient one = %+v, %v, want 10 receipts deleted", done, err)
	}
}
