package walrelay_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// Every kind of slot that cannot serve is named and left as it is, and a relay
// says the same of it.
func TestA31ASlotOfAnotherKindIsNamedAndLeft(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{})
	p := newPatient(t, server.URL("postgres"), true)
	if err := server.CreateDatabase(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	other, err := pgx.Connect(t.Context(), server.URL("other"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close(context.Background()) })
	if _, err := other.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')"); err != nil {
		t.Fatal(err)
	}
	p.exec("SELECT pg_create_logical_replication_slot('plugin', 'test_decoding')", "SELECT pg_create_physical_replication_slot('physical')",
		"SELECT pg_create_logical_replication_slot('two_phase', 'pgoutput', false, true)",
		"SELECT pg_create_logical_replication_slot('temporary', 'pgoutput', true)")
	before := p.catalogue()
	for slot, word := range map[string]string{
		"plugin": "test_decoding", "physical": "physical", "two_phase": "two-phase", "temporary": "temporary", "elsewhere": `"other"`,
	} {
		p.cfg.Slot, p.cfg.Publication = slot, p.name
		d := p.examine()
		d.only("slot " + slot)
		d.want("slot "+slot, fail, word, "permanent logical slot of plugin pgoutput")
		if got := p.catalogue(); got != before {
			t.Errorf("the catalogue changed from\n%s\nto\n%s", before, got)
		}
		p.sameWords(d.find("slot " + slot))
		if text := d.String(); slot != "elsewhere" && strings.Contains(text, "slot elsewhere") {
			t.Errorf("slot elsewhere of another database is reported as one of this:\n%s", text)
		}
	}
}

func TestALostSlotAndOneThatIsGoneFailWhereGapsAreNotHealed(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"max_slot_wal_keep_size": "1MB"}})
	p := newPatient(t, server.URL("postgres"), true)
	p.exec("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 40)", "SELECT pg_switch_wal()", "CHECKPOINT")
	p.cfg.OnGap = walrelay.GapHalt
	p.exec("UPDATE walrelay.witness SET confirmed_lsn = '0/10'")
	d := p.examine()
	d.only("slot postgres")
	p.sameWords(d.want("slot postgres", fail, "lost", "max_slot_wal_keep_size"))

	p.exec("SELECT pg_drop_replication_slot('postgres')")
	p.witness("postgres", "postgres")
	d = p.examine()
	d.only("slot postgres")
	p.sameWords(d.want("slot postgres", fail, "is missing", "0/10"))

	p.cfg.OnGap = walrelay.GapHeal
	d = p.examine()
	d.only()
	d.want("slot postgres", warn, "is missing", "heal_limit")
}

// witness writes the row of a source that has run.
func (p *patient) witness(source, slot string) {
	p.t.Helper()
	p.exec(fmt.Sprintf("INSERT INTO walrelay.witness (source, slot, session, confirmed_lsn) VALUES ('%s', '%s', gen_random_uuid(), '0/10')", source, slot))
}

// catalogue is all that a check could have changed, as text.
func (p *patient) catalogue() string {
	p.t.Helper()
	var text string
	err := p.conn.QueryRow(p.t.Context(), `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
		SELECT format('slot %s %s %s %s %s %s', slot_name, plugin, active, restart_lsn, confirmed_flush_lsn, temporary) AS line FROM pg_replication_slots
		UNION ALL SELECT format('relation %s %s %s', oid, relname, relacl) FROM pg_class WHERE relkind <> 't' AND relnamespace::regnamespace::text !~ '^pg_'
		UNION ALL SELECT format('role %s %s %s', rolname, rolsuper, rolreplication) FROM pg_roles
		UNION ALL SELECT format('publication %s %s %s %s', p.oid, pubname, pubinsert, pubdelete) FROM pg_publication p
		UNION ALL SELECT format('published %s %s', prpubid, prrelid) FROM pg_publication_rel
		UNION ALL SELECT format('setting %s %s', name, setting) FROM pg_settings WHERE source = 'configuration file'
		UNION ALL SELECT format('witness %s', w) FROM walrelay.witness w
		UNION ALL SELECT format('rows %s', count(*)) FROM walrelay.outbox
		UNION ALL SELECT format('database %s %s', datname, datacl) FROM pg_database) l`).Scan(&text)
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

func TestA12ASlotThatAnotherHoldsIsWarnedAbout(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	holder := replication(t, p.cfg.DatabaseURL)
	// Left in COPY mode by the answer.
	holder.Frontend().SendQuery(query("START_REPLICATION SLOT " + p.name + " LOGICAL 0/0 (proto_version '1', publication_names '" + p.name + "')"))
	if err := holder.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	envtest.Eventually(t, patience, func() error {
		var active bool
		if err := p.conn.QueryRow(t.Context(), "SELECT active FROM pg_replication_slots WHERE slot_name = $1", p.name).Scan(&active); err != nil || !active {
			return fmt.Errorf("the slot is not held: %w", err)
		}
		return nil
	})
	d := p.examine()
	d.only()
	d.want("slot "+p.name, warn, fmt.Sprintf("held by pid %d", holder.PID()), "--slot")
}

// A34: seen before the first start, not when it hangs.
func TestA34OpenTransactionsThatHoldUpTheSlotAreNamed(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.Postgres(t, testenv.PGConfig{}).URL("postgres"), false)
	p.examine().want("open transactions", ok)
	blocker, err := pgx.Connect(t.Context(), p.cfg.DatabaseURL+"&application_name=shop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blocker.Close(context.Background()) })
	tx, err := blocker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT walrelay.append('order', '1', 'placed', '{}')"); err != nil {
		t.Fatal(err)
	}
	p.examine().want("open transactions", warn, fmt.Sprintf("pid %d idle in transaction", blocker.PgConn().PID()), "shop",
		fmt.Sprintf("pg_terminate_backend(%d)", blocker.PgConn().PID()))
}

func TestA40SlotsOfRelaysThatAreGoneAreNamedWithWhatTheyRetain(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	renamed, decommissioned, nobodys := p.name+"_before", p.name+"_gone", p.name+"_x"
	for _, s := range []string{renamed, decommissioned, nobodys} {
		p.exec("SELECT pg_create_logical_replication_slot('" + s + "', 'pgoutput')")
	}
	p.witness(p.name, renamed)
	p.witness("mail", decommissioned)
	p.exec("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1048576)) FROM generate_series(1, 3)")
	d := p.examine()
	d.want("slot "+renamed, warn, "MB retained", "ran with it before", "--slot "+renamed)
	d.want("slot "+decommissioned, warn, "MB retained", `source "mail"`, "pg_drop_replication_slot('"+decommissioned+"')")
	c := d.want("slot "+nobodys, warn, "MB retained", "nobody reads it")
	p.exec(strings.TrimPrefix(c.Fix, "if it was that of a relay: "))
	for _, c := range p.examine().Checks {
		if c.Name == "slot "+nobodys {
			t.Errorf("check %+v after its fix, want none", c)
		}
	}
}

// Two relays on one table publish everything twice.
func TestA13TwoSlotsOnOneTableAreWarnedAbout(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	second := p.name + "_second"
	p.exec("SELECT pg_create_logical_replication_slot('" + second + "', 'pgoutput')")
	holder := replication(t, p.cfg.DatabaseURL+"&application_name=walrelay%20second%20slot")
	holder.Frontend().SendQuery(query("START_REPLICATION SLOT " + second + " LOGICAL 0/0 (proto_version '1', publication_names '" + p.name + "')"))
	if err := holder.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	envtest.Eventually(t, patience, func() error {
		for _, c := range p.examine().Checks {
			if c.Name == "slot "+second && c.Verdict == warn && strings.Contains(c.Why, "published twice") {
				return nil
			}
		}
		return fmt.Errorf("the second relay is not named:\n%s", p.examine())
	})
}

// What a slot holds back is shown before it hurts.
func TestA43TheAgeOfCatalogXminAndTheRetainedBytesAreShown(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.exec("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1048576)) FROM generate_series(1, 3)")
	for range 50 {
		p.exec("CREATE TEMP TABLE x ()", "DROP TABLE x")
	}
	d := p.examine()
	c := d.want("catalog_xmin of the slot", ok, "transactions old", "vacuum")
	var age int
	if _, err := fmt.Sscanf(c.Value, "%d transactions old", &age); err != nil || age < 100 {
		t.Errorf("catalog_xmin: %q (%v), want at least 100 transactions", c.Value, err)
	}
	d.want("WAL of the slot", ok, "MB retained", "WAL reserved")
}

func TestAnotherHistoryFails(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.witness(p.name, p.name)
	p.exec("INSERT INTO walrelay.epoch (source, number, system_id, timeline, first_lsn, reason) VALUES ('" + p.name + "', 1, '42', 1, '0/1', 'first start')")
	d := p.examine()
	d.only("history")
	p.sameWords(d.want("history", fail, "another cluster", "known: system 42"))
}
