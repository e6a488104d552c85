package migrations_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

// inParts is a world's config for partitions of a length that no test outlives.
func (w world) inParts() migrations.Config {
	cfg := w.config()
	cfg.Partitioned, cfg.PartitionInterval, cfg.PartitionsAhead = true, 10_000*24*time.Hour, 3
	return cfg
}

// bounds lists the partitions that can be dropped, oldest first.
func (w world) bounds(t *testing.T) []string {
	t.Helper()
	all := w.text(t, `SELECT coalesce(string_agg(format('%s %s %s', part, extract(epoch FROM lower)::bigint, extract(epoch FROM upper)::bigint), ',' ORDER BY lower), '') FROM walrelay.partitions()`)
	return strings.Split(all, ",")
}

func TestAPartitionedOutboxIsMadeTwiceAndByPrintAlike(t *testing.T) {
	t.Parallel()
	for name, start := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			if got := w.mustApply(t, w.inParts()); !slices.Contains(got, `created partitions of table "walrelay"."outbox"`) {
				t.Errorf("Apply() reported %q, want partitions created", got)
			}
			want := w.catalogue(t)
			if got := len(w.bounds(t)); got != 4 { // the present one and three ahead
				t.Errorf("%d partitions were made, want 4: %q", got, w.bounds(t))
			}
			for _, cfg := range []migrations.Config{w.inParts(), w.config()} { // one that has partitions needs no flag
				got := w.mustApply(t, cfg)
				for _, line := range got {
					if !strings.HasPrefix(line, "found") && !strings.HasPrefix(line, "waiting") { // the first one's lock goes with its connection
						t.Errorf("second Apply() reported %q, want only found", got)
					}
				}
			}
			if diff := cmp.Diff(want, w.catalogue(t)); diff != "" {
				t.Errorf("second Apply() changed the schema:\n%s", diff)
			}
			if got := w.text(t, "SELECT string_agg(tablename, ' ') FROM pg_publication_tables"); got != "outbox" {
				t.Errorf("the publication names %q, want the outbox alone", got)
			}
			w.exec(t, "SELECT pg_drop_replication_slot('"+w.name+"')", "DROP PUBLICATION walrelay", "DROP SCHEMA walrelay CASCADE")
			var sql bytes.Buffer
			if err := migrations.Print(&sql, w.inParts()); err != nil {
				t.Fatal(err)
			}
			w.exec(t, sql.String(), sql.String())
			if diff := cmp.Diff(want, w.catalogue(t)); diff != "" {
				t.Errorf("schema by Print differs from that by Apply (-apply +print):\n%s", diff)
			}
		})
	}
}

// A21, A25: on each partition an event cannot change, an id is there once, and
// no time that a row may have makes an insert fail.
func TestPartitionsHoldWhatThePlainOutboxHolds(t *testing.T) {
	t.Parallel()
	for name, start := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			w.mustApply(t, w.inParts())
			for _, created := range []string{"now()", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'294276-12-31'"} {
				insert := `INSERT INTO walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at)
					VALUES (gen_random_uuid(), 'order', '1', 'placed', '{}', ` + created + `) RETURNING tableoid::regclass || ' ' || id`
				part, id, _ := strings.Cut(w.text(t, insert), " ")
				if isDefault := part == "walrelay.outbox_default"; isDefault != (created != "now()") {
					t.Errorf("a row of %s went to %s", created, part)
				}
				for _, table := range []string{part, "walrelay.outbox"} {
					_, err := w.conn.Exec(t.Context(), "UPDATE "+table+" SET payload = '1', created_at = now() WHERE id = '"+id+"'")
					if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "55000" {
						t.Errorf("UPDATE of %s = %v, want SQLSTATE 55000", part, err)
					}
				}
				again := strings.Replace(insert, "gen_random_uuid()", "'"+id+"'", 1)
				again = strings.Replace(again, "'{}', now()", "'{}', now() + interval '1 second'", 1)
				_, err := w.conn.Exec(t.Context(), again)
				if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "23505" {
					t.Errorf("a second event of the id within %s = %v, want SQLSTATE 23505", part, err)
				}
				w.exec(t, strings.Replace(again, "RETURNING", "ON CONFLICT DO NOTHING RETURNING", 1))
			}
			w.exec(t, "SELECT walrelay.append('order', '1', 'placed', '{}')")
			if got := w.text(t, "SELECT count(*) || ' ' || count(DISTINCT seq) FROM walrelay.outbox"); got != "6 6" {
				t.Errorf("rows and different values of seq are %s, want 6 6", got)
			}
		})
	}
}

// What the default partition has stays there, and partitions are made around it;
// a relay that was away for long finds its way back.
func TestPartitionsAreMadeAroundWhatTheDefaultOneHolds(t *testing.T) {
	t.Parallel()
	for name, start := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			cfg := w.inParts()
			w.mustApply(t, cfg)
			first := w.bounds(t)
			// All partitions are in the past by now, so to say.
			for _, b := range first {
				part, _, _ := strings.Cut(b, " ")
				w.exec(t, "DROP TABLE "+part)
			}
			w.exec(t, "SELECT walrelay.append('order', '1', 'placed', '{}')")
			w.mustApply(t, cfg)
			if diff := cmp.Diff(first[1:], w.bounds(t)); diff != "" {
				t.Errorf("partitions around the present one, whose rows are in the default one (-want +got):\n%s", diff)
			}
			// One in the middle is missing, and one was detached and left there.
			w.exec(t, "DELETE FROM walrelay.outbox", "DROP TABLE "+strings.Fields(first[2])[0],
				"ALTER TABLE walrelay.outbox DETACH PARTITION "+strings.Fields(first[3])[0])
			w.mustApply(t, cfg)
			want := slices.Clone(first)
			part, rest, _ := strings.Cut(first[3], " ")
			want[3] = part + "_ " + rest
			if diff := cmp.Diff(want, w.bounds(t)); diff != "" {
				t.Errorf("partitions after holes were filled (-want +got):\n%s", diff)
			}
			// Too much is not looked through while writers wait, unless asked for.
			w.exec(t, "DROP TABLE "+strings.Fields(first[1])[0], "INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'placed', '{}', 'infinity')")
			_, err := w.conn.Exec(t.Context(), "SELECT walrelay.make_partition(0)")
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "54000" || !strings.Contains(pg.Hint, "migrate --partitioned") {
				t.Errorf("make_partition(0) = %v, want SQLSTATE 54000 and the way out", err)
			}
			w.mustApply(t, cfg)
			if got := len(w.bounds(t)); got != 4 {
				t.Errorf("%d partitions after migrate, want 4", got)
			}
			// The default one is made again, in place of an insert that fails.
			w.exec(t, "DROP TABLE walrelay.outbox_default")
			w.mustApply(t, w.config())
			w.text(t, "INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'placed', '{}', 'infinity') RETURNING id::text")
		})
	}
}

// A row may be written to the default partition between the look and the lock.
func TestARowThatIsWrittenMeanwhileKeepsItsRange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustApply(t, w.inParts())
	want := w.bounds(t)[1:]
	w.exec(t, "DROP TABLE "+strings.Fields(w.bounds(t)[0])[0], "ALTER FUNCTION walrelay.make_partition SET lock_timeout = '1min'", "BEGIN",
		"SELECT walrelay.append('order', '1', 'placed', '{}')")
	maker := connect(t, w.url)
	made := make(chan error)
	go func() {
		var name *string
		err := maker.QueryRow(t.Context(), "SELECT walrelay.make_partition()").Scan(&name)
		if err == nil && name != nil {
			err = fmt.Errorf("it made %s, want none", *name)
		}
		made <- err
	}()
	envtest.Eventually(t, time.Minute, func() error {
		if w.text(t, "SELECT count(*)::text FROM pg_locks WHERE NOT granted AND relation = 'walrelay.outbox_default'::regclass") == "0" {
			return errors.New("nobody waits for the default partition")
		}
		return nil
	})
	w.exec(t, "COMMIT")
	if err := <-made; err != nil {
		t.Errorf("make_partition() = %v", err)
	}
	if diff := cmp.Diff(want, w.bounds(t)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
}

// A new length counts from the end of what is there.
func TestTheLengthOfPartitionsCanBeChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.Partitioned = true
	w.mustApply(t, cfg)
	days := w.bounds(t)
	if len(days) != 31 || !strings.HasPrefix(days[0], "walrelay.outbox_p20") || len(strings.Fields(days[0])[0]) != len("walrelay.outbox_p20260101") {
		t.Errorf("%d partitions, the first %q, want 31 of a day each", len(days), days[0])
	}
	cfg.PartitionInterval, cfg.PartitionsAhead = 7*24*time.Hour, 10
	w.mustApply(t, cfg)
	weeks := w.bounds(t)
	var from, to int64
	if _, err := fmt.Sscanf(strings.SplitN(weeks[len(weeks)-1], " ", 2)[1], "%d %d", &from, &to); err != nil {
		t.Fatal(err)
	}
	if monday := time.Unix(to, 0).UTC().Weekday(); to-from != 7*24*3600 || monday != time.Monday {
		t.Errorf("the last partition is %q, want a week that ends with a Sunday", weeks[len(weeks)-1])
	}
	for i := range weeks[1:] {
		if before, after := strings.Fields(weeks[i])[2], strings.Fields(weeks[i+1])[1]; before != after {
			t.Errorf("between %q and %q there is a hole", weeks[i], weeks[i+1])
		}
	}
	if got := w.text(t, "SELECT format('%s %s', every, ahead) FROM walrelay.partitioning"); got != "168:00:00 10" {
		t.Errorf("settings are %s, want 168:00:00 10", got)
	}
	w.mustApply(t, migrations.Config{Slot: w.name, Partitioned: true}) // keeps them
	if got := w.text(t, "SELECT format('%s %s', every, ahead) FROM walrelay.partitioning"); got != "168:00:00 10" {
		t.Errorf("settings after another migrate are %s, want 168:00:00 10", got)
	}
}

func TestAnOutboxWithoutPartitionsIsNotMadeSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustApply(t, w.config())
	want := w.catalogue(t)
	_, err := w.apply(t, w.url, w.inParts())
	if _, ok := errors.AsType[*migrations.PrereqError](err); !ok {
		t.Fatalf("Apply() = %v, want a *PrereqError", err)
	}
	contains(t, "Apply()", err.Error(), "not partitioned", "--schema walrelay_parts", "DROP TABLE")
	var sql bytes.Buffer
	if err := migrations.Print(&sql, w.inParts()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.conn.Exec(t.Context(), sql.String()); err == nil || !strings.Contains(err.Error(), "not partitioned") {
		t.Errorf("what Print gives = %v, want that the table is not partitioned", err)
	}
	w.exec(t, "ROLLBACK")
	if diff := cmp.Diff(want, w.catalogue(t)); diff != "" {
		t.Errorf("the refusal changed something:\n%s", diff)
	}
	w.exec(t, "DROP TABLE walrelay.outbox") // nothing was ever written
	w.mustApply(t, w.inParts())
	if got := len(w.bounds(t)); got != 4 {
		t.Errorf("%d partitions, want 4", got)
	}
	other := w.config()
	other.Schema, other.Partitioned = "other", true
	w.exec(t, "CREATE SCHEMA other", "CREATE TABLE other.outbox (id int) PARTITION BY HASH (id)")
	if _, err := w.apply(t, w.url, other); err == nil || !strings.Contains(err.Error(), "HASH (id)") {
		t.Errorf("Apply() on another kind of partitions = %v, want it named", err)
	}
	for _, cfg := range []migrations.Config{{PartitionsAhead: 3}, {Partitioned: true, PartitionInterval: time.Millisecond}, {Partitioned: true, PartitionsAhead: 501}} {
		if err := migrations.Print(&sql, cfg); err == nil {
			t.Errorf("Print(%+v) = nil, want an error", cfg)
		}
	}
}

// A role with no more than EXECUTE makes and drops partitions, which stay the
// owner's; one without it cannot. Nothing but a partition can be dropped.
func TestPartitionsAreMadeWithTheRightsOfTheOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner, relay := w.name+"_owner", w.name+"_relay"
	w.exec(t, "CREATE ROLE "+owner+" LOGIN REPLICATION", "CREATE ROLE "+relay+" LOGIN", "GRANT CREATE ON DATABASE "+w.name+" TO "+owner)
	defer w.exec(t, "DROP PUBLICATION IF EXISTS walrelay", "DROP OWNED BY "+owner+", "+relay, "DROP ROLE "+owner+", "+relay) // roles are the cluster's
	if _, err := w.apply(t, w.as(t, owner), w.inParts()); err != nil {
		t.Fatalf("Apply() = %v, want nil", err)
	}
	w.exec(t, "GRANT USAGE ON SCHEMA walrelay TO "+relay)
	part := strings.Fields(w.bounds(t)[1])[0]
	as := connect(t, w.as(t, relay))
	calls := []string{"hold_partition('" + part + "')", "drop_partition('" + part + "')", "make_partition()"}
	for _, call := range calls {
		_, err := as.Exec(t.Context(), "SELECT walrelay."+call)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
			t.Errorf("%s without a right = %v, want SQLSTATE 42501", call, err)
		}
	}
	w.exec(t, "GRANT EXECUTE ON FUNCTION walrelay.make_partition, walrelay.hold_partition, walrelay.drop_partition TO "+relay)
	for _, call := range calls {
		if _, err := as.Exec(t.Context(), "SELECT walrelay."+call); err != nil {
			t.Errorf("%s = %v, want nil", call, err)
		}
	}
	if got := w.text(t, "SELECT string_agg(DISTINCT relowner::regrole::text, ' ') FROM pg_class JOIN walrelay.partitions() ON part = oid"); got != owner {
		t.Errorf("partitions belong to %s, want %s", got, owner)
	}
	if got := len(w.bounds(t)); got != 4 {
		t.Errorf("%d partitions, want 4: one was dropped and made again", got)
	}
	for _, not := range []string{"walrelay.outbox_default", "walrelay.outbox", "walrelay.witness"} {
		for _, call := range []string{"hold_partition", "drop_partition"} {
			if _, err := as.Exec(t.Context(), "SELECT walrelay."+call+"('"+not+"')"); err == nil {
				t.Errorf("%s of %s = nil, want an error", call, not)
			}
		}
	}
}
