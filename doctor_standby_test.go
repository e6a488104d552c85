package walrelay_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A38: what would be left of the slot after a promotion.
func TestA38DoctorLooksAtWhatStandbysKeepOfTheSlot(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{Version: 17})
	p := newPatient(t, server.URL("postgres"), true)
	if text := p.examine().String(); strings.Contains(text, "standbys") {
		t.Errorf("there is no standby, and it is spoken of:\n%s", text)
	}
	standby := envtest.Standby(t, server, testenv.StandbyConfig{Settings: map[string]string{
		"wal_retrieve_retry_interval": "200ms", "wal_receiver_status_interval": "1s",
	}})
	p.reconnect()
	envtest.Eventually(t, patience, func() error {
		var n int
		if err := p.conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'standby' AND active").Scan(&n); err != nil || n != 1 {
			return fmt.Errorf("%d standbys stream (%v)", n, err) //nolint:errorlint // may be nil
		}
		return nil
	})
	p.exec("SELECT pg_drop_replication_slot('"+p.name+"')", "SELECT pg_create_logical_replication_slot('"+p.name+"', 'pgoutput')")
	d := p.examine()
	d.want("standbys", ok, "1 connected")
	d.want("failover of slot "+p.name, warn, "FAILOVER true")
	d.want("primary_slot_name", ok, "standby")
	d.want("sync_replication_slots", unknown, "dbname", p.name)
	d.want("hot_standby_feedback", warn, "off behind slot standby", "on the standby")
	d.want("synchronized_standby_slots", warn, "none", "phantom", "= 'standby'")

	p.exec("SELECT pg_drop_replication_slot('"+p.name+"')", "SELECT pg_create_logical_replication_slot('"+p.name+"', 'pgoutput', failover => true)",
		"ALTER SYSTEM SET synchronized_standby_slots = 'standby'", "SELECT pg_reload_conf()")
	alter(t, standby.URL("postgres"), "ALTER SYSTEM SET hot_standby_feedback = on")
	envtest.Eventually(t, patience, func() error {
		d = p.examine()
		if d.find("hot_standby_feedback").Verdict != ok || d.find("synchronized_standby_slots").Verdict != ok {
			return fmt.Errorf("not seen yet:\n%s", d)
		}
		return nil
	})
	d.want("failover of slot "+p.name, ok, "on")

	// A standby that the URL names is asked itself.
	p.cfg.DatabaseURL = strings.Replace(p.cfg.DatabaseURL, server.Addr(), standby.Addr()+","+server.Addr(), 1)
	name := "sync_replication_slots at " + standby.Addr()
	both := p.cfg.DatabaseURL
	for _, attrs := range []string{"primary", "read-write", ""} {
		p.cfg.DatabaseURL = both
		if attrs != "" {
			p.cfg.DatabaseURL += "&target_session_attrs=" + attrs
		}
		d = p.examine()
		d.want("SQL connection", ok, server.Addr())
		d.want(name, warn, "off", "ALTER SYSTEM")
	}
	alter(t, standby.URL("postgres"), "ALTER SYSTEM SET sync_replication_slots = on")
	envtest.Eventually(t, patience, func() error {
		p.exec("SELECT pg_log_standby_snapshot()", "SELECT pg_replication_slot_advance('"+p.name+"', pg_current_wal_lsn())")
		if c := p.examine().find(name); c.Verdict != ok {
			return fmt.Errorf("the check is %+v, want ok: the standby has a copy", c)
		}
		return nil
	})

	if err := standby.Stop(t.Context(), testenv.Fast); err != nil {
		t.Fatal(err)
	}
	envtest.Eventually(t, patience, func() error {
		if c := p.examine().find("synchronized_standby_slots"); c.Verdict != warn || !strings.Contains(c.Why, "stream nothing") {
			return fmt.Errorf("the check is %+v, want a warning of a standby that is waited for", c)
		}
		return nil
	})
}

// alter changes a setting of a server, on a connection of its own.
func alter(t *testing.T, address, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, s := range []string{statement, "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
}

// reconnect is for a server that was stopped and started.
func (p *patient) reconnect() {
	p.t.Helper()
	conn, err := pgx.Connect(p.t.Context(), p.cfg.DatabaseURL)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	p.conn = conn
}
