package walrelay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

// What keeps partitions from being made and dropped is a warning with its fix,
// which mends it.
func TestPartitionsAreLookedAt(t *testing.T) {
	t.Parallel()
	p := strangerTo(t, envtest.SharedPostgres(t))
	owner, relay := p.name+"_owner", p.name+"_relay"
	p.exec(fmt.Sprintf(`CREATE ROLE %s LOGIN REPLICATION; CREATE ROLE %s LOGIN REPLICATION; GRANT CREATE ON DATABASE %s TO %[1]s`, owner, relay, p.name))
	defer p.exec(fmt.Sprintf(`SELECT pg_drop_replication_slot('%s'); DROP PUBLICATION IF EXISTS %[1]s; DROP OWNED BY %[2]s, %[3]s; DROP ROLE %[2]s, %[3]s`, p.name, owner, relay))
	as, err := pgx.ParseConfig(p.as(owner))
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), as, migrations.Config{Slot: p.name, Publication: p.name, Partitioned: true, PartitionsAhead: 3}, nil); err != nil {
		t.Fatal(err)
	}
	p.exec(fmt.Sprintf(`GRANT USAGE ON SCHEMA walrelay TO %s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walrelay TO %[1]s`, relay))
	p.cfg.DatabaseURL = p.as(relay)
	const name = "table walrelay.outbox, partitions"
	c := p.examine().want(name, warn, "neither make partitions", "GRANT EXECUTE")
	p.exec(c.Fix)
	var until string
	if err := p.conn.QueryRow(t.Context(), "SELECT to_char(max(upper) AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM walrelay.partitions()").Scan(&until); err != nil {
		t.Fatal(err)
	}
	good := func() { t.Helper(); p.examine().want(name, ok, "made until "+until, "default partition of") }
	good()
	p.exec("ALTER TABLE walrelay.outbox_default OWNER TO " + relay)
	c = p.examine().want(name, warn, "walrelay.outbox_default do not belong to "+owner)
	p.exec(c.Fix)
	good()
	p.exec(`DO $$ BEGIN EXECUTE 'DROP TABLE ' || (SELECT string_agg(part::text, ', ') FROM walrelay.partitions() WHERE lower < now() + interval '1 day'); END $$`)
	p.examine().want(name, warn, "none for now", "goes into the default partition")
	p.exec("SELECT walrelay.make_partition(), walrelay.make_partition()")
	good()
	p.exec("DROP TABLE walrelay.outbox_default")
	p.examine().want(name, warn, "an insert for which no partition is there fails")
	p.exec("SELECT walrelay.make_partition()",
		`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) SELECT 'o', 'a', 'e', to_jsonb(repeat(gen_random_uuid()::text, 50)), 'infinity' FROM generate_series(1, 40000)`)
	if c = p.examine().want(name, warn, "holds more than 64 MB"); strings.Contains(c.Value, "none") {
		t.Errorf("check = %+v, want the partitions named all the same", c)
	}
}
