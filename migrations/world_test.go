package migrations_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

// A world is one empty database and its owner's connection.
type world struct {
	url  string
	conn *pgx.Conn
	// name is the database's, which names of slots and roles derive from:
	// those are the cluster's.
	name string
}

func newWorld(t *testing.T) world {
	t.Helper()
	return worldAt(t, envtest.SharedPostgres(t))
}

func worldAt(t *testing.T, address string) world {
	t.Helper()
	conn := connect(t, address)
	return world{url: address, conn: conn, name: conn.Config().Database}
}

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// as is the database's address for another role.
func (w world) as(t *testing.T, role string) string {
	t.Helper()
	u, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

func (w world) exec(t *testing.T, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := w.conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%.100s: %v", s, err)
		}
	}
}

func (w world) text(t *testing.T, query string, args ...any) string {
	t.Helper()
	var s string
	if err := w.conn.QueryRow(t.Context(), query, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

func (w world) config() migrations.Config { return migrations.Config{Slot: w.name} }

// apply runs Apply and gives what it reported, one line a step.
func (w world) apply(t *testing.T, address string, cfg migrations.Config) (lines []string, err error) {
	t.Helper()
	conn, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	err = migrations.Apply(t.Context(), conn, cfg, func(s migrations.Step) {
		lines = append(lines, string(s.Did)+" "+s.Object)
	})
	return lines, err
}

func (w world) mustApply(t *testing.T, cfg migrations.Config) []string {
	t.Helper()
	lines, err := w.apply(t, w.url, cfg)
	if err != nil {
		t.Fatalf("Apply() = %v, want nil", err)
	}
	return lines
}

// catalogue describes all that a schema holds, so that two can be compared.
func (w world) catalogue(t *testing.T) string {
	t.Helper()
	return w.text(t, `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
		SELECT format('%s.%s %s %s %s %s', c.relname, a.attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated)
			|| coalesce(' ' || pg_get_expr(adbin, adrelid), '') AS line
		FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid LEFT JOIN pg_attrdef d ON adrelid = c.oid AND adnum = attnum
		WHERE relnamespace = 'walrelay'::regnamespace AND attnum > 0 AND NOT attisdropped AND relkind <> 'S'
		UNION ALL SELECT pg_get_constraintdef(oid) || conname FROM pg_constraint WHERE connamespace = 'walrelay'::regnamespace
		UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE relnamespace = 'walrelay'::regnamespace
		UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'walrelay'::regnamespace
		UNION ALL SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
			WHERE relnamespace = 'walrelay'::regnamespace AND NOT tgisinternal
		UNION ALL SELECT format('%s %s %s', objoid::regclass, objsubid, description) FROM pg_description JOIN pg_class c ON c.oid = objoid
			WHERE relnamespace = 'walrelay'::regnamespace
		UNION ALL SELECT format('publication %s %s %s %s', pubname, pubinsert, pubupdate, pubviaroot) FROM pg_publication
		UNION ALL SELECT format('covers %s.%s', schemaname, tablename) FROM pg_publication_tables
		UNION ALL SELECT format('version %s', version) FROM walrelay.migration) l`)
}

// servers start what a test runs on: an old and a new server.
func servers() map[string]func(*testing.T) world {
	return map[string]func(*testing.T) world{
		"oldest": newWorld,
		"newest": func(t *testing.T) world {
			t.Helper()
			return worldAt(t, envtest.Postgres(t, testenv.PGConfig{Version: 18}).URL("postgres"))
		},
	}
}

func contains(t *testing.T, what, got string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(got, want) {
			t.Errorf("%s = %q, want it to contain %q", what, got, want)
		}
	}
}
