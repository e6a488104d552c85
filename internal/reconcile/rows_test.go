package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/router"
)

var outbox = router.Table{Schema: "walrelay", Name: "outbox"}

// within runs f in a transaction of REPEATABLE READ.
func within(t *testing.T, conn *pgx.Conn, f func(tx pgx.Tx)) {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // nothing is kept
	f(tx)
}

// numbers gives the payloads of the rows that a filter chooses, in their order.
func numbers(t *testing.T, tx pgx.Tx, table router.Table, f reconcile.RowFilter) (out []string) {
	t.Helper()
	for row, err := range reconcile.Rows(t.Context(), tx, table, f) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(row.Tuple[row.Relation.Column("payload")].Data))
	}
	return out
}

func TestAFilterChoosesRows(t *testing.T) {
	t.Parallel()
	conn := newDatabase(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const insert = `INSERT INTO walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at)
		SELECT ('00000000-0000-4000-8000-00000000000' || i)::uuid, CASE WHEN i < 4 THEN 'order' ELSE E'o\'\\' END, (i %% 2)::text, 'placed', to_jsonb(i),
		timestamptz '2026-01-01 00:00:00+00' + i * interval '1 hour' FROM generate_series(%d, %d) i`
	exec(fmt.Sprintf(insert, 1, 4))
	var snapshot string
	if err := conn.QueryRow(t.Context(), "SELECT pg_current_snapshot()::text").Scan(&snapshot); err != nil {
		t.Fatal(err)
	}
	exec(fmt.Sprintf(insert, 5, 6))
	at := func(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }
	id := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-00000000000%d", n) }
	within(t, conn, func(tx pgx.Tx) {
		var place reconcile.TID
		var oid uint32
		for row, err := range reconcile.Rows(t.Context(), tx, outbox, reconcile.RowFilter{IDs: []string{id(5)}, Proven: snapshot}) {
			if err != nil {
				t.Fatal(err)
			}
			place, oid = row.TID, row.Table
			if created, ok := row.CreatedAt(); row.Xid == 0 || row.Seq != "5" || !ok || !created.Equal(at(5)) || row.Proven {
				t.Errorf("row = %+v, want its xid, seq 5, five o'clock, not proven", row)
			}
		}
		for name, c := range map[string]struct {
			filter reconcile.RowFilter
			want   string
		}{
			"all":               {reconcile.RowFilter{}, "1 2 3 4 5 6"},
			"small batches":     {reconcile.RowFilter{Batch: 2}, "1 2 3 4 5 6"},
			"exact batches":     {reconcile.RowFilter{Batch: 6}, "1 2 3 4 5 6"},
			"since":             {reconcile.RowFilter{Since: at(3)}, "3 4 5 6"},
			"until":             {reconcile.RowFilter{Until: at(3)}, "1 2"},
			"ids":               {reconcile.RowFilter{IDs: []string{id(6), id(2)}}, "2 6"},
			"no ids":            {reconcile.RowFilter{IDs: []string{}}, ""},
			"aggregate":         {reconcile.RowFilter{AggregateType: "order", AggregateID: "1"}, "1 3"},
			"quotes":            {reconcile.RowFilter{AggregateType: `o'\`}, "4 5 6"},
			"seen":              {reconcile.RowFilter{SeenBy: snapshot}, "1 2 3 4"},
			"not seen":          {reconcile.RowFilter{NotSeenBy: snapshot}, "5 6"},
			"behind a row":      {reconcile.RowFilter{AfterSeq: "4"}, "5 6"},
			"several":           {reconcile.RowFilter{AfterSeq: "1", Until: at(5), AggregateID: "0"}, "2 4"},
			"a place":           {reconcile.RowFilter{Table: oid, TIDs: []reconcile.TID{place}}, "5"},
			"of another table":  {reconcile.RowFilter{Table: oid + 1, TIDs: []reconcile.TID{place}}, ""},
			"in whatever order": {reconcile.RowFilter{Unordered: true, Since: at(6)}, "6"},
		} {
			if got := strings.Join(numbers(t, tx, outbox, c.filter), " "); got != c.want {
				t.Errorf("%s: rows %q, want %q", name, got, c.want)
			}
		}
		// The transaction serves on after a loop that was left.
		for _, err := range reconcile.Rows(t.Context(), tx, outbox, reconcile.RowFilter{Batch: 2}) {
			if err != nil {
				t.Error(err)
			}
			break
		}
		if got := numbers(t, tx, outbox, reconcile.RowFilter{Since: at(6)}); len(got) != 1 {
			t.Errorf("after a loop that was left: rows %q, want one", got)
		}
	})
}

// The order is that of seq, whatever the order in the table and of its times.
func TestRowsComeInTheOrderOfTheirColumn(t *testing.T) {
	t.Parallel()
	conn := newDatabase(t)
	if _, err := conn.Exec(t.Context(), `CREATE TABLE public."odd ""table" (id text, aggregate_type text, aggregate_id text, event_type text, payload text,
			"At" timestamp, "No ""1" int, dropped int) PARTITION BY LIST (aggregate_id);
		ALTER TABLE public."odd ""table" DROP dropped;
		CREATE TABLE public.a PARTITION OF public."odd ""table" FOR VALUES IN ('a');
		CREATE TABLE public.b PARTITION OF public."odd ""table" FOR VALUES IN ('b');
		INSERT INTO public."odd ""table" VALUES ('1', 't', 'b', 'e', 'one', '2026-01-01 00:00:03', 1), ('2', 't', 'a', 'e', 'two', '2026-01-01 00:00:01', 2),
			('3', 't', 'a', 'e', 'three', '2026-01-01 00:00:00.5', 3)`); err != nil {
		t.Fatal(err)
	}
	table := router.Table{Schema: "public", Name: `odd "table`, Columns: router.Columns{CreatedAt: "At", Seq: `No "1`}}
	within(t, conn, func(tx pgx.Tx) {
		if diff := cmp.Diff([]string{"one", "two", "three"}, numbers(t, tx, table, reconcile.RowFilter{})); diff != "" {
			t.Errorf("by seq (-want +got):\n%s", diff)
		}
		table.Columns.Seq = ""
		if diff := cmp.Diff([]string{"three", "two", "one"}, numbers(t, tx, table, reconcile.RowFilter{})); diff != "" {
			t.Errorf("by created_at (-want +got):\n%s", diff)
		}
		if got := numbers(t, tx, table, reconcile.RowFilter{Since: time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)}); len(got) != 1 {
			t.Errorf("since: rows %q, want one", got)
		}
		places := map[uint32]bool{}
		for row, err := range reconcile.Rows(t.Context(), tx, table, reconcile.RowFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			places[row.Table] = true
		}
		if len(places) != 2 {
			t.Errorf("rows are in %d tables, want the two partitions", len(places))
		}
	})
}

// Children that are no partitions are tables of their own, as for a slot.
func TestRowsOfChildrenAreNotTheParents(t *testing.T) {
	t.Parallel()
	conn := newDatabase(t)
	if _, err := conn.Exec(t.Context(), `CREATE TABLE public.child () INHERITS (walrelay.outbox);
		INSERT INTO public.child (id, aggregate_type, aggregate_id, event_type, payload, seq) VALUES (gen_random_uuid(), 't', 'a', 'e', '1', 1)`); err != nil {
		t.Fatal(err)
	}
	within(t, conn, func(tx pgx.Tx) {
		if got := numbers(t, tx, outbox, reconcile.RowFilter{}); len(got) != 0 {
			t.Errorf("rows %q, want none", got)
		}
	})
}

func TestRowsSayWhatATableLacks(t *testing.T) {
	t.Parallel()
	conn := newDatabase(t)
	if _, err := conn.Exec(t.Context(), `CREATE TABLE public.bare (id int, aggregatetype text, aggregateid text, type text, payload text)`); err != nil {
		t.Fatal(err)
	}
	bare := router.Table{Schema: "public", Name: "bare", Columns: router.Debezium()}
	wrong := bare
	wrong.Columns.EventType = "kind"
	var err error
	fails := func(table router.Table, f reconcile.RowFilter, want string) {
		t.Helper()
		within(t, conn, func(tx pgx.Tx) {
			for _, err = range reconcile.Rows(t.Context(), tx, table, f) {
				if err != nil {
					break
				}
			}
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Rows() = %v, want %q", err, want)
		}
	}
	fails(router.Table{Schema: "public", Name: "none"}, reconcile.RowFilter{}, "there is no such table")
	fails(bare, reconcile.RowFilter{Since: time.Now()}, "no column for columns.created_at")
	fails(bare, reconcile.RowFilter{SeenBy: "1:1:"}, "no column for columns.xid")
	fails(bare, reconcile.RowFilter{AfterSeq: "1"}, "no column for columns.seq")
	fails(outbox, reconcile.RowFilter{IDs: []string{"17"}}, "invalid input syntax for type uuid")
	fails(wrong, reconcile.RowFilter{}, `no column "kind"`)
	if _, ok := errors.AsType[*router.ColumnError](err); !ok {
		t.Error("a mapped column that is missing is no ColumnError")
	}
}
