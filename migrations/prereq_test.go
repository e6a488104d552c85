package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

func prereq(t *testing.T, err error) *migrations.PrereqError {
	t.Helper()
	p, ok := errors.AsType[*migrations.PrereqError](err)
	if !ok {
		t.Fatalf("Apply() = %v, want a PrereqError", err)
	}
	return p
}

func TestA32AWrongWALLevelIsNamedBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	w := worldAt(t, envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"wal_level": "replica"}}).URL("postgres"))
	w.exec(t, "CREATE ROLE poor LOGIN")
	_, err := w.apply(t, w.as(t, "poor"), w.config())
	p := prereq(t, err)
	contains(t, "Problem", p.Problem, "replica", "restart")
	contains(t, "Fix", p.Fix, "ALTER SYSTEM SET wal_level = logical")
	if got := w.text(t, "SELECT count(*)::text FROM pg_namespace WHERE nspname = 'walrelay'"); got != "0" {
		t.Errorf("schemas = %s, want none made", got)
	}
	if _, err := w.apply(t, w.url, migrations.Config{SchemaOnly: true}); err != nil {
		t.Errorf("Apply(SchemaOnly) = %v, want nil", err)
	}
}

// Each refusal names the statement; whoever may runs it, and migrate goes on
// from there to the end.
func TestA33ARoleWithFewRightsIsToldTheStatementsOneByOne(t *testing.T) {
	t.Parallel()
	for name, start := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			role := "relay_" + w.name
			w.exec(t, "CREATE ROLE "+role+" LOGIN")
			t.Cleanup(func() {
				_, _ = w.conn.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role)
			})
			var objects []string
			for range 5 {
				_, err := w.apply(t, w.as(t, role), w.config())
				if err == nil {
					break
				}
				p := prereq(t, err)
				objects = append(objects, strings.Fields(p.Object)[0])
				w.exec(t, p.Fix)
			}
			if got, want := strings.Join(objects, " "), "schema publication slot"; got != want {
				t.Errorf("refused objects = %q, want %q", got, want)
			}
			// The fix of the slot made it already or let the role make it.
			if _, err := w.apply(t, w.as(t, role), w.config()); err != nil {
				t.Errorf("Apply() after all fixes = %v, want nil", err)
			}
		})
	}
}

func TestA33ARoleThatDoesNotOwnTheSchemaIsToldTheGrants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner, role := "owner_"+w.name, "stranger_"+w.name
	w.exec(t, "CREATE ROLE "+owner+" LOGIN REPLICATION", "CREATE ROLE "+role+" LOGIN", "GRANT CREATE ON DATABASE "+w.name+" TO "+owner)
	t.Cleanup(func() {
		_, _ = w.conn.Exec(context.Background(), "DROP OWNED BY "+role+", "+owner+" CASCADE; DROP ROLE "+role+", "+owner)
	})
	if _, err := w.apply(t, w.as(t, owner), w.config()); err != nil {
		t.Fatalf("Apply() as the owner = %v, want nil", err)
	}
	w.exec(t, "DROP INDEX walrelay.job_open")
	_, err := w.apply(t, w.as(t, role), w.config())
	p := prereq(t, err)
	contains(t, "Fix", p.Fix, `GRANT USAGE, CREATE ON SCHEMA "walrelay" TO "`+role+`"`, `GRANT "`+owner+`" TO "`+role+`"`)
	w.exec(t, p.Fix)
	if _, err := w.apply(t, w.as(t, role), w.config()); err != nil {
		t.Errorf("Apply() after the fix = %v, want nil", err)
	}
}

func TestNobodyIsToldToGrantASuperuser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustApply(t, w.config())
	role := "nobody_" + w.name
	w.exec(t, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() { _, _ = w.conn.Exec(context.Background(), "DROP ROLE "+role) })
	_, err := w.apply(t, w.as(t, role), w.config())
	p := prereq(t, err)
	if strings.Contains(p.Fix, `GRANT "postgres"`) {
		t.Errorf("Fix = %q, want none that grants a superuser", p.Fix)
	}
	contains(t, "Fix", p.Fix, `as role "postgres"`)
}

func TestA33APublicationOfSomebodyElse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ create, want string }{
		"covers by table":      {"FOR TABLE walrelay.outbox", ""},
		"covers by schema":     {"FOR TABLES IN SCHEMA walrelay", ""},
		"covers all":           {"FOR ALL TABLES", ""},
		"covers nothing":       {"", `ALTER PUBLICATION "walrelay" ADD TABLE "walrelay"."outbox";`},
		"without inserts":      {"FOR TABLE walrelay.outbox WITH (publish = 'delete')", `ALTER PUBLICATION "walrelay" SET (publish = 'insert, delete');`},
		"with a row filter":    {"FOR TABLE walrelay.outbox WHERE (event_type <> 'x')", `ALTER PUBLICATION "walrelay" ADD TABLE "walrelay"."outbox";`},
		"with too few columns": {"FOR TABLE walrelay.outbox (id)", `ALTER PUBLICATION "walrelay" ADD TABLE "walrelay"."outbox";`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mustApply(t, migrations.Config{SchemaOnly: true})
			w.exec(t, "CREATE PUBLICATION walrelay "+c.create)
			_, err := w.apply(t, w.url, w.config())
			if c.want == "" {
				if err != nil {
					t.Errorf("Apply() = %v, want nil", err)
				}
				return
			}
			p := prereq(t, err)
			contains(t, "Fix", p.Fix, c.want)
			w.exec(t, p.Fix)
			if _, err := w.apply(t, w.url, w.config()); err != nil {
				t.Errorf("Apply() after the fix = %v, want nil", err)
			}
		})
	}
}

func TestA31ASlotOfAnotherKindIsNamedAndLeft(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"max_replication_slots": "5"}})
	w := worldAt(t, server.URL("postgres"))
	w.exec(t, "CREATE DATABASE other")
	other := worldAt(t, server.URL("other"))
	w.exec(t, "SELECT pg_create_logical_replication_slot('plugin', 'test_decoding')", "SELECT pg_create_physical_replication_slot('physical')",
		"SELECT pg_create_logical_replication_slot('two_phase', 'pgoutput', false, true)",
		"SELECT pg_create_logical_replication_slot('temporary', 'pgoutput', true)")
	other.exec(t, "SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')")
	for slot, want := range map[string]string{
		"plugin": "test_decoding", "physical": "physical", "two_phase": "two-phase", "temporary": "temporary", "elsewhere": `"other"`,
	} {
		_, err := w.apply(t, w.url, migrations.Config{Slot: slot})
		p := prereq(t, err)
		contains(t, "Object", p.Object, slot)
		contains(t, "Problem", p.Problem, want, "needed", "untouched")
	}
	if got := w.text(t, "SELECT count(*)::text FROM pg_replication_slots"); got != "5" {
		t.Errorf("slots = %s, want all 5 untouched", got)
	}
	_, err := w.apply(t, w.url, migrations.Config{Slot: "one_too_many"})
	contains(t, "Fix", prereq(t, err).Fix, "max_replication_slots")
}

func TestA29ASlotOlderThanThePublicationIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustApply(t, migrations.Config{SchemaOnly: true})
	w.exec(t, "SELECT pg_create_logical_replication_slot('"+w.name+"', 'pgoutput')", "SELECT walrelay.append('order', '1', 'order.placed', '{}')")
	conn, err := pgx.ParseConfig(w.url)
	if err != nil {
		t.Fatal(err)
	}
	var last migrations.Step
	if err := migrations.Apply(t.Context(), conn, w.config(), func(s migrations.Step) { last = s }); err != nil {
		t.Fatalf("Apply() = %v, want nil", err)
	}
	contains(t, "Detail", last.Detail, "older than the publication")
}

func TestA34WhoHoldsUpTheSlotIsNamedAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	for name, start := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			w.mustApply(t, migrations.Config{SchemaOnly: true})
			blocker := connect(t, w.url)
			tx, err := blocker.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "SELECT walrelay.append('order', '1', 'order.placed', '{}')"); err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.ParseConfig(w.url)
			if err != nil {
				t.Fatal(err)
			}

			// Interrupted as soon as the wait is reported.
			ctx, cancel := context.WithCancel(t.Context())
			var waiting string
			err = migrations.Apply(ctx, conn, w.config(), func(s migrations.Step) {
				if s.Did == migrations.Waiting {
					waiting = s.Detail
					cancel()
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("interrupted Apply() = %v, want context.Canceled", err)
			}
			contains(t, "Detail", waiting, "idle in transaction", "pid "+w.text(t, "SELECT $1::int::text", blocker.PgConn().PID()))
			noSlot(t, w)

			// Bounded by the server.
			cfg := w.config()
			cfg.SlotTimeout = 300 * time.Millisecond
			if err = migrations.Apply(t.Context(), conn, cfg, nil); err == nil || !strings.Contains(err.Error(), "300ms") {
				t.Errorf("Apply() with a bound = %v, want an error that names it", err)
			}
			noSlot(t, w)

			// Goes on when the transaction ends.
			err = migrations.Apply(t.Context(), conn, w.config(), func(s migrations.Step) {
				if s.Did == migrations.Waiting {
					if err := tx.Rollback(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
			if err != nil {
				t.Errorf("Apply() = %v, want nil once the transaction has ended", err)
			}
		})
	}
}

func noSlot(t *testing.T, w world) {
	t.Helper()
	if got := w.text(t, "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = $1", w.name); got != "0" {
		t.Errorf("slots of that name = %s, want none", got)
	}
}
