package walrelay_test

import (
	"strings"
	"testing"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// Each defect of a publication or table is named, a relay waits for the same,
// and where the fix is SQL it mends it.
func TestA29A33EachDefectOfPublicationAndTableIsNamedWithItsFix(t *testing.T) {
	t.Parallel()
	const table = "table walrelay.outbox"
	for name, c := range map[string]struct {
		do    []string
		words []string
		fix   bool // can be run as it is printed
	}{
		"no publication":        {do: []string{"DROP PUBLICATION @"}, words: []string{"does not exist", "CREATE PUBLICATION"}, fix: true},
		"table not covered":     {do: []string{"ALTER PUBLICATION @ DROP TABLE walrelay.outbox"}, words: []string{"does not cover", "ADD TABLE"}, fix: true},
		"inserts not published": {do: []string{"ALTER PUBLICATION @ SET (publish = 'delete')"}, words: []string{"does not publish inserts"}, fix: true},
		"row filter": {
			do:    []string{"ALTER PUBLICATION @ SET TABLE walrelay.outbox WHERE (event_type <> 'x')"},
			words: []string{"lets pass only those rows", "event_type", "DROP TABLE"},
		},
		"unlogged": {do: []string{"ALTER PUBLICATION @ DROP TABLE walrelay.outbox", "ALTER TABLE walrelay.outbox SET UNLOGGED"}, words: []string{"unlogged", "SET LOGGED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, envtest.SharedPostgres(t), true)
			for _, s := range c.do {
				p.exec(strings.ReplaceAll(s, "@", p.name))
			}
			d := p.examine()
			d.only(table)
			found := d.want(table, fail, c.words...)
			p.sameWords(found)
			if c.fix {
				p.exec(found.Fix)
				p.examine().only()
			}
		})
	}
}

// To what is not there nobody has rights, and none are said to be granted.
func TestNothingIsSaidOfRightsOnTablesThatAreNotThere(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]string{"outbox": "DROP TABLE walrelay.outbox", "schema": "DROP TABLE walrelay.gap CASCADE"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, envtest.SharedPostgres(t), true)
			p.exec(do)
			for _, c := range p.examine().Checks {
				if c.Name == "rights to delete old rows" {
					t.Errorf("doctor says %q of the rights to delete", c.Value)
				}
			}
		})
	}
}

func TestA33APublicationThatCoversTheTableByAnyRouteIsFine(t *testing.T) {
	t.Parallel()
	for name, covers := range map[string]string{
		"all tables": "FOR ALL TABLES", "its schema": "FOR TABLES IN SCHEMA walrelay", "table": "FOR TABLE walrelay.outbox",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, envtest.SharedPostgres(t), false)
			p.exec("DROP PUBLICATION "+p.name, "CREATE PUBLICATION "+p.name+" "+covers)
			d := p.examine()
			d.only()
			d.want("table walrelay.outbox", ok, "published: insert, update, delete, truncate")
			if text := d.String(); strings.Contains(text, "outbox, deletes") { // it has a key
				t.Errorf("deletes are warned about:\n%s", text)
			}
		})
	}
}

func TestA29APublicationYoungerThanTheSlotIsSaid(t *testing.T) {
	t.Parallel()
	// On a cluster of its own: transactions of others make it uncertain.
	p := newPatient(t, envtest.Postgres(t, testenv.PGConfig{}).URL("postgres"), true)
	p.examine().want("publication "+p.name, ok)
	p.exec("SELECT walrelay.append('order', '1', 'placed', '{}')", "DROP PUBLICATION "+p.name, "CREATE PUBLICATION "+p.name+" FOR TABLE walrelay.outbox")
	p.examine().want("publication "+p.name, unknown, "made or changed after", "at risk")
}

func TestA30ANameThatDiffersInCaseAloneIsReportedWithTheRealOne(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), false)
	p.exec(`CREATE SCHEMA "My Schema"`, `CREATE TABLE "My Schema"."Out.Box" ("Id" uuid PRIMARY KEY, kind text, agg text, "select" text, "ключ" jsonb)`,
		"ALTER PUBLICATION "+p.name+` ADD TABLE "My Schema"."Out.Box"`)
	columns := walrelay.Columns{ID: "Id", AggregateType: "kind", AggregateID: "agg", EventType: "select", Payload: "ключ"}
	p.cfg.Tables = []walrelay.Table{{Schema: "My Schema", Name: "Out.Box", Columns: columns}}
	p.examine().only()

	p.cfg.Tables[0].Name = "out.box"
	d := p.examine()
	d.only("table My Schema.out.box")
	p.sameWords(d.want("table My Schema.out.box", fail, `"My Schema"."Out.Box"`))

	p.cfg.Tables[0].Name, p.cfg.Tables[0].Columns.ID = "Out.Box", "id"
	d = p.examine()
	d.only("table My Schema.Out.Box, columns")
	d.want("table My Schema.Out.Box, columns", fail, `no column "id"`, `nearest: "Id"`)
}

func TestAColumnListThatLeavesOutAMappedColumnFails(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), false)
	p.exec("ALTER PUBLICATION " + p.name + " SET TABLE walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at)")
	d := p.examine()
	d.only("table walrelay.outbox, columns")
	c := d.want("table walrelay.outbox, columns", fail, "headers", "column list")
	c.Fix = "" // the relay's message has it in other words
	p.sameWords(c)
}

func TestA42AKeylessTableWhoseDeletesArePublishedIsWarnedAbout(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.exec("ALTER TABLE walrelay.outbox DROP CONSTRAINT outbox_pkey", "ALTER PUBLICATION "+p.name+" SET (publish = 'insert, update, delete')",
		"SELECT walrelay.append('order', '1', 'placed', '{}')")
	if _, err := p.conn.Exec(t.Context(), "DELETE FROM walrelay.outbox"); err == nil {
		t.Fatal("the delete succeeds, so there is nothing to warn about")
	}
	c := p.examine().want("table walrelay.outbox, deletes", warn, "no key", "SET (publish = 'insert')")
	p.exec(c.Fix, "DELETE FROM walrelay.outbox")
}

func TestA23PartitionsThatAloneArePublishedFail(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), false)
	p.exec(`CREATE TABLE public.box (id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb, at timestamptz NOT NULL) PARTITION BY RANGE (at)`,
		"CREATE TABLE public.box_1 PARTITION OF public.box DEFAULT", "ALTER PUBLICATION "+p.name+" ADD TABLE public.box_1")
	p.cfg.Tables = []walrelay.Table{{Schema: "public", Name: "box", Columns: walrelay.Columns{ID: "id", CreatedAt: "at"}}}
	d := p.examine()
	d.only("table public.box")
	c := d.want("table public.box", fail, "partitions made later")
	p.exec(c.Fix)
	d = p.examine()
	d.only()
	d.want("table public.box", ok, "partitioned table, published under its own name")
	d.want("table public.box, id", warn, "may be null")
	d.want("table public.box, xid", warn, "created_at")
	d.want("table public.box, seq", warn)
	p.exec("ALTER PUBLICATION " + p.name + " SET (publish_via_partition_root = false)")
	p.examine().want("table public.box", ok, "under its partitions' names")
}

func TestAForeignTableIsNoOutbox(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), false)
	p.exec("CREATE VIEW public.box AS SELECT * FROM walrelay.outbox")
	p.cfg.Tables = []walrelay.Table{{Schema: "public", Name: "box"}}
	p.examine().want("table public.box", fail, "no table")
}

// Without a backfill the relay begins at the slot.
func TestA41RowsThatAreThereBeforeTheSlotAreCounted(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), false)
	p.exec("SELECT walrelay.append('order', '1', 'placed', '{}') FROM generate_series(1, 1000)")
	p.examine().want("table walrelay.outbox, rows", warn, "1000", "will not be sent", "--backfill")
}

func TestWithoutSELECTOnTheOutboxThereIsAWarning(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	role := p.role("_relay", "REPLICATION")
	p.cfg.DatabaseURL = p.as(role)
	d := p.examine()
	d.only("rights on the schema")
	c := d.want("rights on the schema", fail, "USAGE", "UPDATE on witness", "GRANT SELECT, INSERT, UPDATE, DELETE ON")
	p.sameWords(c)
	p.exec(c.Fix)
	d = p.examine()
	d.only()
	c = d.want("table walrelay.outbox, SELECT", warn, "not granted", "GRANT SELECT")
	p.exec(c.Fix)
	for _, c := range p.examine().Checks {
		if strings.HasSuffix(c.Name, "SELECT") {
			t.Errorf("check %+v after its fix, want none", c)
		}
	}
}

func TestAMissingSchemaAndAnOldOneFail(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	for _, c := range []struct{ do, word string }{
		{"ALTER TABLE walrelay.dead_letter DROP COLUMN columns", "column columns of table dead_letter"},
		{"DELETE FROM walrelay.migration", "migration 00001_outbox.sql"},
		{"DROP TABLE walrelay.epoch", "table epoch"},
	} {
		p.exec(c.do)
		d := p.examine()
		d.only("schema")
		p.sameWords(d.want("schema", fail, c.word, "walrelay migrate"))
	}
}

func TestAMissingIndexIsAWarning(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.exec("DROP INDEX walrelay.gap_open", "DROP TRIGGER outbox_refuse_update ON walrelay.outbox")
	d := p.examine()
	d.only()
	d.want("schema, the rest", warn, "index gap_open", "trigger outbox_refuse_update")
}

func TestOpenGapsAndDeadLettersWarn(t *testing.T) {
	t.Parallel()
	p := newPatient(t, envtest.SharedPostgres(t), true)
	p.exec(`INSERT INTO walrelay.dead_letter (source, "table", payload_null, payload_size, reason, error) VALUES ('` + p.name + `', 't', true, 0, 'r', 'e')`)
	d := p.examine()
	d.only()
	d.want("dead letters", warn, "1 open", "deadletters list")
	p.exec(`INSERT INTO walrelay.gap (source, kind, "from", "to", events) VALUES ('` + p.name + `', 'displaced', '1/0/1/0', '1/0/2/0', 2)`)
	d = p.examine()
	d.only()
	d.want("open gaps", warn, "2 events may be in no stream", "walrelay replay --missing")
}
