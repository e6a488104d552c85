package walrelay_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

const (
	ok      = walrelay.VerdictOK
	warn    = walrelay.VerdictWarn
	fail    = walrelay.VerdictFail
	unknown = walrelay.VerdictUnknown
)

func TestAHealthySetUpFailsNoCheck(t *testing.T) {
	t.Parallel()
	for name, slot := range map[string]bool{"with a slot": true, "before the first start": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newPatient(t, envtest.SharedPostgres(t), slot).examine()
			d.only()
			for _, c := range d.Checks {
				if c.Area == "" || c.Name == "" || c.Value == "" || c.Why == "" {
					t.Errorf("check %+v lacks its area, name, value or why", c)
				}
				if c.Verdict != ok && c.Fix == "" {
					t.Errorf("check %+v has no fix", c)
				}
			}
		})
	}
}

// A32: what follows from wal_level is not reported as a lack of rights.
func TestA32AWrongWALLevelIsNamedAsSuch(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"wal_level": "replica"}})
	p := newPatient(t, server.URL("postgres"), false)
	role := p.role("_relay", "REPLICATION")
	p.grant(role)
	p.cfg.DatabaseURL = p.as(role)
	d := p.examine()
	d.only("wal_level")
	p.sameWords(d.want("wal_level", fail, "replica", "ALTER SYSTEM SET wal_level = logical;", "restart"))
}

func TestA32ARoleWithoutReplication(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	group := p.role("_group", "REPLICATION")
	poor, member := p.role("_poor", ""), p.role("_member", "")
	p.exec("GRANT " + group + " TO " + member)
	for role, words := range map[string][]string{
		poor:   {"lacks the attribute REPLICATION"},
		member: {group, "does not count"},
	} {
		p.grant(role)
		p.cfg.DatabaseURL = p.as(role)
		d := p.examine()
		d.only("replication connection")
		found := d.want("replication connection", fail, append(words, `ALTER ROLE "`+role+`" REPLICATION;`)...)
		p.sameWords(found)
		p.exec(found.Fix)
		p.examine().only()
	}
}

// On a service whose roles cannot have REPLICATION a role stands for it; what
// counts is that the connection can be made.
func TestA32AServiceRoleIsAskedForWhereThereIsOne(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{})
	p := newPatient(t, server.URL("postgres"), true)
	p.exec("CREATE ROLE rds_replication")
	role := p.role("_poor", "")
	p.grant(role)
	p.cfg.DatabaseURL = p.as(role)
	d := p.examine()
	d.want("replication connection", fail, "rds_replication", `GRANT "rds_replication" TO "`+role+`";`)
	// A role that has the right in another way is not told to want that one.
	p.exec("ALTER ROLE " + role + " REPLICATION")
	p.examine().only()
}

func TestA32PgHBAWithoutAnEntryIsNamed(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{HBA: []string{"host all postgres 127.0.0.1/32 trust"}})
	p := newPatient(t, server.URL("postgres"), true)
	p.cfg.DatabaseURL = p.as(p.role("_relay", "REPLICATION"))
	d := p.examine()
	d.only("SQL connection", "replication connection")
	p.sameWords(d.want("SQL connection", fail, "pg_hba.conf", "postgres_relay", "hostssl postgres postgres_relay"))
	d.want("replication connection", fail, "pg_hba.conf", "replication connection")
}

func TestA32SlotsAndSendersUsedUp(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"max_replication_slots": "1", "max_wal_senders": "1"}})
	p := newPatient(t, server.URL("postgres"), false)
	p.exec("SELECT pg_create_physical_replication_slot('taken')")
	d := p.examine()
	d.only("max_replication_slots")
	p.sameWords(d.want("max_replication_slots", fail, "1 of 1", "max_replication_slots"))
	p.exec("SELECT pg_drop_replication_slot('taken')")
	p.examine().only()

	holder := replication(t, server.URL("postgres"))
	d = p.examine()
	d.only("replication connection")
	d.want("max_wal_senders", warn, "1 of 1")
	p.sameWords(d.want("replication connection", fail, "max_wal_senders"))
	if err := holder.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestAnUnreachableServerIsAFailedCheckAndTheRestIsLookedAt(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	broker := p.cfg.NATS
	p.cfg.NATS = "nats://secret:word@127.0.0.1:1"
	d := p.examine()
	d.only("connection", "stream")
	d.want("stream", fail, "nobody knows", "migrate --stream")
	d.want("wal_level", ok)
	if strings.Contains(d.String(), "word@") {
		t.Errorf("the report shows a password:\n%s", d)
	}
	p.cfg.NATS = broker

	// Nobody answers there, and nobody refuses.
	proxy := envtest.Proxy(t, fmt.Sprintf("%s:%d", p.conn.Config().Host, p.conn.Config().Port))
	if err := proxy.Hold(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	p.cfg.DatabaseURL = "postgres://postgres@" + proxy.Addr() + "/" + p.name + "?sslmode=disable"
	d = p.examine()
	d.only("SQL connection", "replication connection")
	d.want("SQL connection", fail, "within 10s")
	d.want("stream", ok)
}

func TestAServerWithSettingsThatCostSomethingIsWarnedAbout(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{Version: 18, Settings: map[string]string{
		"wal_sender_timeout": "0", "max_slot_wal_keep_size": "64MB", "idle_replication_slot_timeout": "1h",
		"synchronous_standby_names": "other", "synchronous_commit": "local", // or nobody could write here
		"statement_timeout": "1h", "idle_session_timeout": "1h",
	}})
	p := newPatient(t, server.URL("postgres"), true)
	d := p.examine()
	d.only()
	d.want("wal_sender_timeout", warn, "off", "ALTER SYSTEM")
	d.want("max_slot_wal_keep_size", warn, "64MB")
	d.want("idle_replication_slot_timeout", warn, "ALTER SYSTEM")
	d.want("synchronous_standby_names", warn, "before its transaction is visible") // A28
}
