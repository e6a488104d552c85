package migrations_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

func TestApplyingTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	for name, start := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			w.mustApply(t, w.config())
			before := w.catalogue(t)
			// A writer's open transaction must not get in the way of nothing.
			writer := connect(t, w.url)
			tx, err := writer.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(t.Context()) }()
			if _, err := tx.Exec(t.Context(), "SELECT walrelay.append('order', '1', 'order.placed', '{}')"); err != nil {
				t.Fatal(err)
			}
			got := w.mustApply(t, w.config())
			want := []string{"found schema walrelay", `found publication "walrelay"`, `found slot "` + w.name + `"`}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("second Apply() reported (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, w.catalogue(t)); diff != "" {
				t.Errorf("second Apply() changed the schema:\n%s", diff)
			}
		})
	}
}

func TestASlotOnANewServerFollowsAFailover(t *testing.T) {
	t.Parallel()
	w := worldAt(t, envtest.Postgres(t, testenv.PGConfig{Version: 18}).URL("postgres"))
	w.mustApply(t, w.config())
	if got := w.text(t, "SELECT failover::text FROM pg_replication_slots WHERE slot_name = $1", w.name); got != "true" {
		t.Errorf("failover = %s, want true", got)
	}
}

func TestPrintedSQLGivesTheSameSchemaAndCanRunTwice(t *testing.T) {
	t.Parallel()
	for name, start := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			w.mustApply(t, w.config())
			want := w.catalogue(t)
			w.exec(t, "SELECT pg_drop_replication_slot('"+w.name+"')", "DROP PUBLICATION walrelay", "DROP SCHEMA walrelay CASCADE")

			var sql bytes.Buffer
			if err := migrations.Print(&sql, w.config()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				w.exec(t, sql.String())
			}
			if diff := cmp.Diff(want, w.catalogue(t)); diff != "" {
				t.Errorf("schema by Print differs from that by Apply (-apply +print):\n%s", diff)
			}
			if got := w.text(t, "SELECT plugin FROM pg_replication_slots WHERE slot_name = $1", w.name); got != "pgoutput" {
				t.Errorf("plugin = %s, want pgoutput", got)
			}
			if got := w.mustApply(t, w.config()); len(got) != 3 || !strings.HasPrefix(got[0], "found") {
				t.Errorf("Apply() after Print reported %q, want only found", got)
			}
		})
	}
}

func TestAHalfMadeStateIsCompleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustApply(t, w.config())
	want := w.catalogue(t)
	for _, drop := range []string{
		"DROP TABLE walrelay.outbox CASCADE", "DROP TABLE walrelay.dead_letter", "DROP TABLE walrelay.witness", "DROP TABLE walrelay.epoch",
		"DROP TABLE walrelay.proven", "DROP TABLE walrelay.job CASCADE", "DROP TABLE walrelay.gap", "DROP TABLE walrelay.migration",
		"DROP INDEX walrelay.outbox_created_at", "DROP INDEX walrelay.dead_letter_open", "DROP FUNCTION walrelay.append",
		"DROP TRIGGER outbox_refuse_update ON walrelay.outbox", "DROP FUNCTION walrelay.refuse_update CASCADE",
		"DROP PUBLICATION walrelay", "ALTER PUBLICATION walrelay DROP TABLE walrelay.outbox", "ALTER PUBLICATION walrelay SET (publish = 'update')",
		"DROP SCHEMA walrelay CASCADE", "SELECT pg_drop_replication_slot('" + w.name + "')",
	} {
		w.exec(t, drop)
		w.mustApply(t, w.config())
		got := w.catalogue(t)
		if drop == "DROP TABLE walrelay.job CASCADE" { // took the foreign key of another table with it
			w.exec(t, "DROP TABLE walrelay.gap")
			w.mustApply(t, w.config())
			got = w.catalogue(t)
		}
		if strings.Contains(drop, "'update'") { // what a publication sends besides is left
			w.exec(t, "ALTER PUBLICATION walrelay SET (publish = 'insert')")
			got = w.catalogue(t)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("after %s and Apply() (-want +got):\n%s", drop, diff)
		}
	}
}

func TestATableOfTheSameNameThatIsNotOursIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(t, "CREATE SCHEMA walrelay", "CREATE TABLE walrelay.epoch (year int)")
	_, err := w.apply(t, w.url, w.config())
	if err == nil {
		t.Fatal("Apply() = nil, want an error that names the table")
	}
	contains(t, "Apply()", err.Error(), `"walrelay"."epoch"`, "source")
}

func TestTwoMigratesAtOnceTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conn, err := pgx.ParseConfig(w.url)
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 4)
	for range cap(results) {
		go func() { results <- migrations.Apply(t.Context(), conn, w.config(), nil) }()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Errorf("Apply() = %v, want nil", err)
		}
	}
}

func TestA21AnUpdateOfAnEventIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustApply(t, w.config())
	id := w.text(t, "SELECT walrelay.append('order', '1', 'order.placed', '{\"n\": 1}')::text")
	insert := `INSERT INTO walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload)
		VALUES ('` + id + `', 'order', '1', 'order.placed', '{"n": 2}') ON CONFLICT `
	for _, s := range []string{
		"UPDATE walrelay.outbox SET payload = '{}'",
		insert + "(id) DO UPDATE SET payload = excluded.payload",
	} {
		_, err := w.conn.Exec(t.Context(), s)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "55000" {
			t.Errorf("%s: error %v, want SQLSTATE 55000", s, err)
		}
	}
	w.exec(t, insert+"DO NOTHING")
	w.exec(t, strings.Replace(insert, id, "00000000-0000-7000-8000-000000000001", 1)+"(id) DO UPDATE SET payload = excluded.payload")
	if got := w.text(t, "SELECT payload::text FROM walrelay.outbox WHERE id::text = $1", id); got != `{"n": 1}` {
		t.Errorf("payload = %s, want what was first inserted", got)
	}
}

func TestLengthsAreCheckedAndTheChecksCanBeDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustApply(t, w.config())
	long := strings.Repeat("x", 256)
	if _, err := w.conn.Exec(t.Context(), "SELECT walrelay.append('order', $1, 'order.placed', '{}')", long); err == nil {
		t.Error("append() of an aggregate id of 256 bytes = nil, want an error")
	}
	w.exec(t, "ALTER TABLE walrelay.outbox DROP CONSTRAINT outbox_aggregate_id_length")
	w.mustApply(t, w.config())
	if _, err := w.conn.Exec(t.Context(), "SELECT walrelay.append('order', $1, 'order.placed', '{}')", long); err != nil {
		t.Errorf("append() after the check was dropped = %v, want nil", err)
	}
}

func TestReceiveTellsNewFromApplied(t *testing.T) { // I9
	t.Parallel()
	w := newWorld(t)
	conn, err := pgx.ParseConfig(w.url)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := migrations.Consumer(t.Context(), conn, migrations.Config{}, nil); err != nil {
			t.Fatalf("Consumer() = %v, want nil", err)
		}
	}
	w.exec(t, "SET synchronous_commit = off", "BEGIN")
	if got := w.text(t, "SELECT walrelay.receive('billing', 'e1')::text || current_setting('synchronous_commit')"); got != "trueoff" && got != "trueon" {
		t.Errorf("first receive() = %s, want true", got)
	}
	if got := w.text(t, "SELECT current_setting('synchronous_commit')"); got != "on" {
		t.Errorf("synchronous_commit after receive() = %s, want on until the transaction ends", got)
	}
	w.exec(t, "COMMIT")
	if got := w.text(t, "SELECT walrelay.receive('billing', 'e1', 'SHOP', 7)::text"); got != "false" {
		t.Errorf("second receive() = %s, want false", got)
	}
	if got := w.text(t, "SELECT walrelay.receive('mail', 'e1')::text"); got != "true" {
		t.Errorf("receive() of another consumer = %s, want true", got)
	}
	w.exec(t, "DROP SCHEMA walrelay CASCADE")
	var sql bytes.Buffer
	if err := migrations.PrintConsumer(&sql, migrations.Config{}); err != nil {
		t.Fatal(err)
	}
	w.exec(t, sql.String(), sql.String())
	var steps []migrations.Step
	err = migrations.Consumer(t.Context(), conn, migrations.Config{}, func(s migrations.Step) { steps = append(steps, s) })
	if err != nil || len(steps) != 1 || steps[0].Did != migrations.Found {
		t.Errorf("Consumer() after Print = %v, %v, want found only", steps, err)
	}
}
