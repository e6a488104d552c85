package witness_test

import (
	"context"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/internal/witness"
)

// odd are settings that change text output or what a statement may do.
var odd = map[string]string{
	"bytea_output": "'escape'", "DateStyle": "'SQL, DMY'", "IntervalStyle": "'iso_8601'", "TimeZone": "'Asia/Kolkata'",
	"extra_float_digits": "-5", "xmlbinary": "'hex'", "search_path": "public", "client_encoding": "'LATIN1'",
	"default_transaction_isolation": "'serializable'", "default_transaction_read_only": "on", "row_security": "on",
	"statement_timeout": "'9s'", "lock_timeout": "'9s'", "idle_session_timeout": "'9s'", "idle_in_transaction_session_timeout": "'9s'",
}

const valuesSQL = `SELECT '\x00ff5c'::bytea::text || '|' || timestamptz '2026-01-02 03:04:05+00' || '|' || date '2026-02-01' || '|'
	|| 0.1::float8 || '|' || 1e-7::float4 || '|' || interval '1 day 02:03' || '|' || 12.5::float8::numeric::money || '|'
	|| 'public.odd'::regclass || '|' || current_setting('client_encoding') || '|' || current_setting('xmlbinary') || '|'
	|| current_setting('transaction_isolation') || current_setting('transaction_read_only') || current_setting('row_security')
	|| current_setting('statement_timeout') || current_setting('lock_timeout')
	|| current_setting('idle_session_timeout') || current_setting('idle_in_transaction_session_timeout')`

func TestA24PinnedSettingsBeatThoseOfRoleDatabaseAndServer(t *testing.T) {
	t.Parallel()
	const want = `\x00ff5c|2026-01-02 03:04:05+00|2026-02-01|0.1|1e-07|1 day 02:03:00|$12.50|public.odd|UTF8|base64|read committedoffoff0000`
	for _, version := range []int{15, 18} {
		server := envtest.Postgres(t, testenv.PGConfig{Version: version})
		admin := connect(t, server.URL("postgres"))
		exec(t, admin, "CREATE ROLE plain LOGIN", "CREATE DATABASE d", "CREATE DATABASE e")
		exec(t, connect(t, server.URL("d")), "CREATE TABLE public.odd ()", "SET default_transaction_read_only = off")
		exec(t, connect(t, server.URL("e")), "CREATE TABLE public.odd ()")
		for name, value := range odd {
			exec(t, admin, "ALTER DATABASE d SET "+name+" = "+value, "ALTER ROLE plain SET "+name+" = "+value)
		}
		for _, database := range []string{"d", "e"} {
			for _, mode := range []string{"", "database"} {
				cfg, err := pgx.ParseConfig(server.URL(database))
				if err != nil {
					t.Fatal(err)
				}
				cfg.User = "plain"
				if mode != "" { // text output on the replication connection
					exec(t, admin, "ALTER ROLE plain REPLICATION")
					cfg.RuntimeParams["replication"] = mode
					cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
				}
				maps.Copy(cfg.RuntimeParams, witness.PinSettings())
				conn, err := pgx.ConnectConfig(t.Context(), cfg)
				if err != nil {
					t.Fatalf("connect to %s, replication %q: %v", database, mode, err)
				}
				var got string
				err = conn.QueryRow(t.Context(), valuesSQL).Scan(&got)
				if err != nil || got != want {
					t.Errorf("PostgreSQL %d, database %s, replication %q: values = %s, %v, want %s", version, database, mode, got, err, want)
				}
				_ = conn.Close(context.WithoutCancel(t.Context()))
			}
		}
	}
}
