package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// haltsOn demands that a relay on a database that is not the one which the
// stream was filled from halts, and that it neither publishes nor confirms.
func haltsOn(t *testing.T, w *fixture.World, part string, flags ...string) {
	t.Helper()
	stored, err := w.LastSeq(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	confirmed := w.SlotAt()
	relay := w.Start(flags...)
	if reason := relay.Await("halted", fixture.Patience); !strings.Contains(reason, part) {
		t.Errorf("the relay halts with %q, want %q", reason, part)
	}
	if seq, err := w.LastSeq(t.Context()); err != nil || seq != stored {
		t.Errorf("the stream's last sequence is %d (%v), want %d: nothing may be published", seq, err, stored)
	}
	if now := w.SlotAt(); now != confirmed {
		t.Errorf("the confirmed LSN went from %s to %s, want it untouched", confirmed, now)
	}
	relay.Stop(fixture.Patience)
	// A second one is not taken in by what the first one left.
	relay = w.Start(flags...)
	relay.Await("halted", fixture.Patience)
	relay.Stop(fixture.Patience)
	if now := w.SlotAt(); now != confirmed {
		t.Errorf("the confirmed LSN went from %s to %s at the second start, want it untouched", confirmed, now)
	}
}

// I1, I5, I10: a copy is brought to an instant of the past from the archive, has
// grown beyond the stream's end since, and its slot sends again what was stored
// long ago. It is told from a failover by how much it lacks, and goes on like one
// where an operator says so.
func TestAPointInTimeRestoreHaltsAndGoesOnOnlyWhereThatIsAllowed(t *testing.T) {
	t.Parallel()
	cluster := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"wal_keep_size": "1GB"}})
	w := fixture.New(t, fixture.Config{Postgres: cluster, Stream: shortDuplicates})
	relay := w.Start()
	w.Load(fixture.LoadConfig{Writers: 2, Transactions: 20, Keep: true}).Wait()
	w.Settle(fixture.Patience)
	relay.Stop(fixture.Patience)
	if err := cluster.Stop(t.Context(), testenv.Fast); err != nil {
		t.Fatal(err)
	}
	base := t.TempDir() + "/base"
	copyDir(t, cluster.DataDir(), base)
	if err := cluster.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	relay = w.Start()
	w.Load(fixture.LoadConfig{Writers: 2, Transactions: 20, Keep: true}).Wait()
	w.Settle(fixture.Patience)
	target := w.WALEnd()
	w.Place(40) // what the restored one lacks
	w.Check()
	relay.Stop(fixture.Patience)
	w.Exec("SELECT pg_switch_wal()")

	restored := envtest.Postgres(t, testenv.PGConfig{DataFrom: base, Recover: true, Settings: map[string]string{
		"restore_command":        fmt.Sprintf(`cp "%s/pg_wal/%%f" "%%p"`, cluster.DataDir()),
		"recovery_target_lsn":    target.String(),
		"recovery_target_action": "promote",
	}})
	other := w.On(restored)
	envtest.Eventually(t, fixture.Patience, func() error {
		if fixture.Value[bool](other, "SELECT pg_is_in_recovery()") {
			return fmt.Errorf("the restored server still recovers")
		}
		return nil
	})
	other.Load(fixture.LoadConfig{Writers: 2, Transactions: 100, Keep: true}).Wait()
	haltsOn(t, other, "heal_limit", "--heal-limit", "20")

	relay = other.Start()
	other.Load(fixture.LoadConfig{Writers: 2, Transactions: 20, Keep: true}).Wait()
	if phantoms := checkButPhantoms(t, other); len(phantoms) != 40 {
		t.Errorf("the stream holds %d events that the restored database never had, want 40", len(phantoms))
	}
	if n := epochs(other); n != 2 {
		t.Errorf("the source has %d epochs, want 2", n)
	}
	relay.Stop(fixture.Patience)
}

// I1, I5, I10: another cluster in the place of the old one: with what a dump
// brought, or empty and migrated. Whether its log is behind the stream's last
// event or beyond it says nothing.
func TestARebuiltClusterIsNotTakenForTheOldOne(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Postgres: envtest.Postgres(t, testenv.PGConfig{}), Superuser: true, AnyUser: true})
	relay := w.Start()
	w.Place(20)
	w.Check()
	relay.Stop(fixture.Patience)

	rebuilt := envtest.Postgres(t, testenv.PGConfig{})
	if err := rebuilt.CreateDatabase(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	other := w.On(rebuilt)
	other.Exec("CREATE SCHEMA e2e; CREATE TABLE e2e.other (filler text)")
	other.Migrate()
	fill := func() {
		other.Exec("INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a1', 'placed', '{}')")
	}
	fill()
	haltsOn(t, other, w.StreamName)
	for other.WALEnd() < w.WALEnd()+(1<<20) {
		other.Exec("INSERT INTO e2e.other SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
	}
	// Its slot is beyond all that the stream has.
	other.Exec("SELECT pg_drop_replication_slot('shop')")
	other.Exec("SELECT pg_create_logical_replication_slot('shop', 'pgoutput')")
	fill()
	haltsOn(t, other, w.StreamName)

	// With a dump of our tables it is known for another one.
	for _, table := range []string{"epoch", "witness"} {
		other.Exec("DELETE FROM walrelay." + table)
		rows, err := w.Pool.Query(t.Context(), "SELECT row_to_json(x)::text FROM walrelay."+table+" AS x")
		if err != nil {
			t.Fatal(err)
		}
		dump, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(dump) == 0 {
			t.Fatalf("read table %s: %d rows (%v)", table, len(dump), err)
		}
		for _, row := range dump {
			other.Exec("INSERT INTO walrelay."+table+" SELECT * FROM json_populate_record(NULL::walrelay."+table+", $1::text::json)", row)
		}
	}
	fill()
	haltsOn(t, other, "another cluster")
}
