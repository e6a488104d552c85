package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I1, I5: a database that was restored from a copy of its files is another
// history of the same source. Its LSNs come again with other events, so the
// relay must neither skip nor publish.
func TestARelayOnARestoredDatabaseHaltsAndDeliversNothing(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]struct{ transactions int }{
		"the copy's log ends before the stream's last event": {0},
		"the copy's log has grown beyond it":                 {400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := envtest.Postgres(t, testenv.PGConfig{})
			w := fixture.New(t, fixture.Config{Postgres: cluster})
			relay := w.Start()
			w.Load(fixture.LoadConfig{Writers: 2, Transactions: 20}).Wait()
			w.Settle(fixture.Patience)
			relay.Stop(fixture.Patience)

			if err := cluster.Stop(t.Context(), testenv.Fast); err != nil {
				t.Fatal(err)
			}
			restored := envtest.Postgres(t, testenv.PGConfig{DataFrom: cluster.DataDir()})
			if err := cluster.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			relay = w.Start()
			w.Load(fixture.LoadConfig{Writers: 2, Transactions: 60}).Wait()
			w.Check()
			relay.Stop(fixture.Patience)
			stored, err := w.LastSeq(t.Context())
			if err != nil {
				t.Fatal(err)
			}

			other := w.On(restored)
			if ahead.transactions > 0 {
				other.Load(fixture.LoadConfig{Writers: 2, Transactions: ahead.transactions}).Wait()
			}
			confirmed, err := other.Confirmed(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			relay = other.Start()
			reason := relay.Await("halted", fixture.Patience)
			if !strings.Contains(reason, w.StreamName) || !strings.Contains(reason, "walrelay adopt --database") {
				t.Errorf("the reason %q does not name the stream and the command", reason)
			}
			if !relay.Running() {
				t.Error("the halted relay ended; it has to stay")
			}
			now, err := w.LastSeq(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if now != stored {
				t.Errorf("the stream's last sequence is %d, want %d as before: nothing may be published", now, stored)
			}
			after, err := other.Confirmed(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if after != confirmed {
				t.Errorf("the confirmed LSN went from %s to %s, want it untouched", confirmed, after)
			}
			relay.Stop(fixture.Patience)
			adopted(t, other, stored)
		})
	}
}

// adopted has a halted relay's database adopted and demands that what is
// written from then on is sent, in an epoch of its own, and nothing else.
func adopted(t *testing.T, w *fixture.World, stored uint64) {
	t.Helper()
	adopt := []string{"adopt", "--database", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source}
	if code, _ := fixture.Command(t, nil, adopt...); code != 2 { // nobody is there to be asked
		t.Errorf("walrelay adopt without --yes = %d, want 2", code)
	}
	epochs := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.epoch")
	code, out := fixture.Command(t, nil, append(adopt, "--dry-run")...)
	if want := fmt.Sprintf("last sequence %d", stored); code != 0 || !strings.Contains(out, want) || !strings.Contains(out, "rows of the outbox tables are not known") {
		t.Errorf("walrelay adopt --dry-run = %d, %q, want the stream's end and the rows", code, out)
	}
	if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.epoch"); n != epochs {
		t.Errorf("a dry run began %d epochs", n-epochs)
	}
	code, out = fixture.Command(t, nil, append(adopt, "--yes", "--json")...)
	var report struct {
		Adopted bool
		Epoch   uint32
	}
	if err := json.Unmarshal([]byte(out), &report); code != 0 || err != nil || !report.Adopted {
		t.Fatalf("walrelay adopt --yes --json = %d, %q, want adopted", code, out)
	}
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	var ids []string
	for range 5 {
		ids = append(ids, fixture.Value[string](w, `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
			VALUES ('order', 'adopted', 'order.placed', '{}') RETURNING id::text`))
	}
	var got []string
	envtest.Eventually(t, fixture.Patience, func() error {
		got = nil
		err := w.Each(t.Context(), func(m *fixture.Message) bool {
			if m.Seq > stored {
				got = append(got, m.Header.Get("Nats-Msg-Id"))
				if m.Position.Epoch != report.Epoch || m.Header.Get("Walrelay-Origin") != "" {
					t.Errorf("message %d has position %v and origin %q, want epoch %d and none", m.Seq, m.Position, m.Header.Get("Walrelay-Origin"), report.Epoch)
				}
			}
			return true
		})
		if err == nil && len(got) < len(ids) {
			err = fmt.Errorf("%d messages came, want %d", len(got), len(ids))
		}
		return err
	})
	envtest.Eventually(t, fixture.Patience, func() error { // so the look for unseen rows is over
		if !fixture.Value[bool](w, "SELECT EXISTS (SELECT FROM walrelay.proven WHERE streams <> '{}')") {
			return errors.New("nothing is proven yet")
		}
		return nil
	})
	if last, err := w.LastSeq(t.Context()); err != nil || last != stored+5 || !slices.Equal(got, ids) {
		t.Errorf("the stream ends at %d with %v (%v), want 5 messages behind %d: %v", last, got, err, stored, ids)
	}
	if code, _ := fixture.Command(t, nil, append(adopt, "--dry-run")...); code != 1 {
		t.Errorf("walrelay adopt beside a running relay = %d, want 1: the slot is held", code)
	}
	relay.Stop(fixture.Patience)
}

// I1, I5: another cluster, to which the rows came by a dump, with xids of the
// first one; with a slot that migrate made there, and without.
func TestARebuiltClusterIsAdopted(t *testing.T) {
	t.Parallel()
	for name, slot := range map[string]bool{"with a new slot": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{Superuser: true, AnyUser: true}) // the rebuilt cluster has no roles
			relay := w.Start()
			w.Place(20)
			w.Stored(20)
			relay.Stop(fixture.Patience)
			stored, err := w.LastSeq(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			rebuilt := envtest.Postgres(t, testenv.PGConfig{})
			if err := rebuilt.CreateDatabase(t.Context(), "shop"); err != nil {
				t.Fatal(err)
			}
			other := w.On(rebuilt)
			other.Exec(`SELECT count(pg_logical_emit_message(false, 'filler', repeat('x', 1000000))) FROM generate_series(1, 40)`)
			other.Migrate()
			if !slot {
				other.Exec(`SELECT pg_drop_replication_slot($1)`, w.Source)
			}
			other.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at, xid)
				SELECT 'order', 'old', 'order.placed', '{}', now() - interval '1 day', (pg_current_xact_id()::text::bigint + 3 + n)::text::xid8 FROM generate_series(1, 200) n`)
			relay = other.Start()
			if reason := relay.Await("halted", fixture.Patience); !strings.Contains(reason, "walrelay adopt --database") {
				t.Errorf("the reason %q does not name the command", reason)
			}
			relay.Stop(fixture.Patience)
			adopted(t, other, stored)
			// The database's own transactions reach the numbers of the dump: an
			// audit of then must not take its rows for missing ones.
			for range 300 {
				other.Exec(`SELECT pg_current_xact_id()`)
			}
			relay = other.Start()
			audited(t, other, func() {
				other.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'new', 'order.placed', '{}')`)
			})
			relay.Stop(fixture.Patience)
			if last, err := other.LastSeq(t.Context()); err != nil || last != stored+6 {
				t.Errorf("the stream ends at %d (%v), want one message more than %d", last, err, stored+5)
			}
			if n := fixture.Value[int64](other, "SELECT count(*) FROM walrelay.gap WHERE ended_at IS NULL OR kind = 'unseen'"); n != 0 {
				t.Errorf("%d gaps were found, want none", n)
			}
		})
	}
}

// audited writes and waits until what was written is proven.
func audited(t *testing.T, w *fixture.World, write func()) {
	t.Helper()
	before := fixture.Value[int64](w, "SELECT max(id) FROM walrelay.proven")
	write()
	envtest.Eventually(t, fixture.Patience, func() error {
		if fixture.Value[int64](w, "SELECT max(id) FROM walrelay.proven") == before {
			return errors.New("nothing was proven since")
		}
		return nil
	})
}
