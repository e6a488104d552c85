package testenv_test

import (
	"fmt"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestAStandbyFollowsItsPrimaryAndIsPromoted(t *testing.T) {
	t.Parallel()
	for _, version := range []int{15, 17} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Parallel()
			primary := envtest.Postgres(t, testenv.PGConfig{Version: version})
			exec(t, primary.URL("postgres"), "CREATE TABLE before ()")
			exec(t, primary.URL("postgres"), "SELECT pg_create_logical_replication_slot('logical', 'pgoutput')")
			proxy := envtest.Proxy(t, primary.Addr())
			standby := envtest.Standby(t, primary, testenv.StandbyConfig{Via: proxy.Addr()})
			there := func(table string) string {
				return value(t, standby.URL("postgres"), "SELECT (to_regclass('"+table+"') IS NOT NULL)::text")
			}
			exec(t, primary.URL("postgres"), "CREATE TABLE followed ()")
			if err := standby.Follows(t.Context(), primary); err != nil {
				t.Fatal(err)
			}
			if there("before") != "true" || there("followed") != "true" {
				t.Error("the standby lacks a table of its primary")
			}
			if got := value(t, standby.URL("postgres"), "SELECT count(*)::text FROM pg_replication_slots"); got != "0" {
				t.Errorf("the standby has %s slots, want 0", got)
			}
			if got := value(t, primary.URL("postgres"), "SELECT count(*)::text FROM pg_stat_replication WHERE application_name = 'standby' AND sync_state = 'async'"); got != "1" {
				t.Errorf("asynchronous standbys of the primary = %s, want 1", got)
			}
			// What is committed from here on the standby never gets.
			if err := proxy.Hold(testenv.Downstream); err != nil {
				t.Fatal(err)
			}
			exec(t, primary.URL("postgres"), "CREATE TABLE missed ()")
			if err := primary.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := proxy.Cut(); err != nil {
				t.Fatal(err)
			}
			if err := standby.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			exec(t, standby.URL("postgres"), "CREATE TABLE after ()")
			if there("missed") != "false" || there("after") != "true" {
				t.Error("the promoted standby has a table that it could not have, or lacks its own")
			}
			if got := value(t, standby.URL("postgres"), "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"); got == "00000001" {
				t.Errorf("timeline after the promotion = %s, want a higher one", got)
			}
		})
	}
}
