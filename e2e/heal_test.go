package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// insertMany writes n events of one aggregate in one statement.
func insertMany(w *fixture.World, n int) {
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'bulk', 'placed', jsonb_build_object('i', i) FROM generate_series(1, $1::int) i`, n)
}

// proven waits until the relay has proven what it delivered.
func proven(t *testing.T, w *fixture.World) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		if !fixture.Value[bool](w, `SELECT NOT EXISTS (SELECT FROM walrelay.outbox WHERE NOT EXISTS (
			SELECT FROM walrelay.proven p WHERE p.id = (SELECT max(id) FROM walrelay.proven) AND pg_visible_in_snapshot(xid, p.snapshot)))`) {
			return fmt.Errorf("the newest proven snapshot does not see every row")
		}
		return nil
	})
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func removeDir(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

// neverStarted undoes what migrate did about the slot.
func neverStarted(w *fixture.World) {
	w.Exec("SELECT pg_drop_replication_slot($1)", w.Source)
	w.Exec("DELETE FROM walrelay.proven")
}

// loseSlotAndProofs leaves of the proofs the one that was declared when the slot
// was made.
func loseSlotAndProofs(t *testing.T, w *fixture.World) {
	t.Helper()
	w.Exec("DELETE FROM walrelay.proven WHERE id > (SELECT min(id) FROM walrelay.proven)")
	envtest.Eventually(t, fixture.Patience, func() error {
		// Once the server has seen the end of the relay.
		_, err := w.Pool.Exec(t.Context(), "SELECT pg_drop_replication_slot($1)", w.Source)
		return err
	})
}

// gap waits until the newest gap is of the kind and state, and gives the number
// of its events.
func gap(t *testing.T, w *fixture.World, kind, state string) (events int64) {
	t.Helper()
	envtest.Eventually(t, fixture.Patience, func() error {
		found := fixture.Value[string](w, `SELECT coalesce((SELECT kind || ' ' || state FROM walrelay.gap ORDER BY id DESC LIMIT 1), 'none')`)
		if found != kind+" "+state {
			return fmt.Errorf("the newest gap is %s, want %s %s", found, kind, state)
		}
		events = fixture.Value[int64](w, `SELECT coalesce(events, 0) FROM walrelay.gap ORDER BY id DESC LIMIT 1`)
		return nil
	})
	return events
}

// I1, I5, A38: the slot is dropped while no relay runs; all arrives in order,
// once, and before what is new.
func TestA38ADroppedSlotIsHealedInOrderBeforeAnythingNew(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	w.Place(20)
	w.Stored(20)
	proven(t, w)
	relay.Stop(30 * time.Second)
	insertMany(w, 1000)
	w.Exec("SELECT pg_drop_replication_slot($1)", w.Source)
	w.Start().Await("relaying", fixture.Patience)
	w.Place(5)
	messages := w.Stored(1025)
	for i, m := range messages[20:1020] {
		if want := fmt.Sprintf(`{"i": %d}`, i+1); string(m.Body) != want {
			t.Fatalf("message %d is %s, want %s: what was missed comes in order, before what is new", m.Seq, m.Body, want)
		}
		if m.Header.Get("Walrelay-Late") != "" || !strings.HasPrefix(m.Header.Get("Walrelay-Origin"), "heal/") {
			t.Fatalf("headers of message %d are %v, want an origin of heal and nothing late", m.Seq, m.Header)
		}
	}
	if n := gap(t, w, "slot", "healed"); n != 1000 {
		t.Errorf("the gap tells of %d events, want 1000", n)
	}
	proven(t, w) // once no gap is open, in the very session that has healed it
	w.Check()
	// Vacuum is not held back by what was needed to heal.
	if n := fixture.Value[int64](w, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'walrelay %' AND backend_xmin IS NOT NULL AND state <> 'active' AND backend_type = 'client backend'"); n != 0 {
		t.Errorf("%d sessions of the relay keep a transaction open, want none", n)
	}
}

// I1, I3, A38, A41: the slot is gone before anything was confirmed to it. That
// something was delivered makes it no first start.
func TestA38ASlotDroppedBeforeTheFirstConfirmationIsHealed(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"made by migrate": nil, "made for a backfill": {"--backfill"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{Flags: flags})
			if flags != nil {
				neverStarted(w)
				w.Place(10)
			}
			relay := w.Start()
			relay.Await("relaying", fixture.Patience)
			if flags == nil {
				w.Place(10)
			}
			w.Stored(10)
			envtest.Eventually(t, fixture.Patience, func() error {
				if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.job WHERE ended_at IS NULL"); n != 0 {
					return fmt.Errorf("%d jobs have not ended", n)
				}
				return nil
			})
			relay.Kill()
			// As it is within the first second.
			w.Exec(`UPDATE walrelay.witness SET confirmed_lsn = '0/0',
				streams = (SELECT jsonb_object_agg(key, value - 'position' - 'msg_id' || '{"last_seq": 0}') FROM jsonb_each(streams))`)
			w.Place(5)
			loseSlotAndProofs(t, w)
			w.Start().Await("relaying", fixture.Patience)
			w.Place(5)
			w.Stored(20)
			gap(t, w, "slot", "healed")
			w.Check()
		})
	}
}

// I1, I5, A38: the slot is made again by hand, or advanced by hand, so that
// nothing looks wrong.
func TestA38ASlotThatWasMadeAgainOrAdvancedByHandIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, hand := range map[string]string{
		"made again": `SELECT pg_drop_replication_slot($1); SELECT pg_create_logical_replication_slot($1, 'pgoutput')`,
		"advanced":   `SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{})
			relay := w.Start()
			w.Place(10)
			w.Stored(10)
			proven(t, w)
			relay.Stop(30 * time.Second)
			insertMany(w, 1000)
			w.Exec(strings.ReplaceAll(hand, "$1", "'"+w.Source+"'"))
			w.Start()
			w.Place(5)
			if n := gap(t, w, "unseen", "healed"); n != 1000 {
				t.Errorf("the gap tells of %d events, want 1000", n)
			}
			late := 0
			for _, m := range w.Stored(1015) {
				if m.Header.Get("Walrelay-Late") == "1" {
					late++
				}
			}
			if late != 1000 {
				t.Errorf("%d messages are marked late, want 1000", late)
			}
			w.Check()
		})
	}
}

// I1, I5: the table is taken out of the publication under load, and put back.
func TestRowsThatPassedWhileTheTableWasNotPublishedAreHealed(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: []string{"--heal-limit", "1000000"}})
	relay := w.Start()
	load := w.Load(fixture.LoadConfig{Keep: true})
	more(t, load, 100)
	publication := w.Source
	w.Exec(fmt.Sprintf(`ALTER PUBLICATION %q DROP TABLE walrelay.outbox`, publication))
	relay.Await("waiting", fixture.Patience)
	more(t, load, 200)
	w.Exec(fmt.Sprintf(`ALTER PUBLICATION %q ADD TABLE walrelay.outbox`, publication))
	relay.Await("relaying", fixture.Patience)
	more(t, load, 100)
	load.Stop()
	proven(t, w)
	gap(t, w, "unseen", "healed")
	w.Check()
}

// I1, I5, A62: a broker that comes back with an older copy of its files.
func TestA62ABrokerThatForgotIsFilledAgain(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]bool{"idle": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			broker := envtest.NATS(t, testenv.NATSConfig{Dir: dir + "/js", SyncAlways: true})
			w := fixture.New(t, fixture.Config{NATS: broker, Flags: []string{"--ack-timeout", "1s"}})
			w.Start()
			w.Place(50)
			w.Stored(50)
			proven(t, w)
			restart(t, broker, func() { copyDir(t, dir+"/js", dir+"/copy") })
			insertMany(w, 1000)
			w.AwaitRecorded(1050)
			proven(t, w)
			var load *fixture.Load
			if busy {
				load = w.Load(fixture.LoadConfig{Keep: true})
				more(t, load, 50)
			}
			restart(t, broker, func() {
				removeDir(t, dir+"/js")
				copyDir(t, dir+"/copy", dir+"/js")
			})
			if busy {
				more(t, load, 50)
				load.Stop()
			}
			envtest.Eventually(t, fixture.Patience, func() error {
				if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.gap WHERE kind = 'stream' AND state = 'healed'"); n != 1 {
					return fmt.Errorf("%d gaps of the stream are healed, want one", n)
				}
				return nil
			})
			if busy {
				w.Place(1)
			}
			proven(t, w)
			w.Check()
		})
	}
}

// I5, A62: what the healing of one stream looks for is that stream's own: what was
// purged from another one since is no loss.
func TestHealingAStreamSendsNothingAgainThatAnotherLetGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker := envtest.NATS(t, testenv.NATSConfig{Dir: dir + "/js", SyncAlways: true})
	w := fixture.New(t, fixture.Config{NATS: broker, More: []string{"B"}, AnyUser: true, Flags: []string{
		"--ack-timeout", "1s", "--routes", `[{event_types: [orphan], stream: B, subject: "b.{event_type}"}, {}]`,
	}})
	makeStream(t, w, jetstream.StreamConfig{Name: "B", Subjects: []string{"b.>"}})
	w.Start()
	placeKind(w, "placed", 20)
	placeKind(w, "orphan", 20)
	proven(t, w)
	// The copy is of A alone: B comes back as it was.
	var lost string
	restart(t, broker, func() {
		found, err := filepath.Glob(dir + "/js/jetstream/*/streams/" + w.StreamName)
		if err != nil || len(found) != 1 {
			t.Fatalf("folders of stream %s: %v, %v", w.StreamName, found, err)
		}
		lost = found[0]
		copyDir(t, lost, dir+"/copy")
	})
	placeKind(w, "placed", 30)
	placeKind(w, "orphan", 30)
	holds(t, w, w.StreamName, 50)
	holds(t, w, "B", 50)
	proven(t, w)
	b, err := w.JetStream.Stream(t.Context(), "B")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	restart(t, broker, func() {
		removeDir(t, lost)
		copyDir(t, dir+"/copy", lost)
	})
	holds(t, w, w.StreamName, 50)
	if n := gap(t, w, "stream", "healed"); n != 0 && n != 30 {
		t.Errorf("the gap tells of %d events, want 30", n)
	}
	placeKind(w, "placed", 1)
	proven(t, w) // so the look for unseen rows is over
	holds(t, w, w.StreamName, 51)
	holds(t, w, "B", 50)
}

// A41, I1, I5: rows there before the first start, writers running, the backfill
// killed in its middle: every row once, old ones first. The last start finds more
// than it remembers at a time (I7).
func TestA41ABackfillThatIsKilledEndsWithEveryRowOnce(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: []string{"--backfill", "--window", "256", "--in-flight-bytes", "1048576"}})
	neverStarted(w)
	const old = 20_000
	insertMany(w, old)
	load := w.Load(fixture.LoadConfig{Keep: true})
	relay := w.Start()
	for _, n := range []uint64{200, 3000, 17_500} {
		w.AwaitRecorded(n)
		relay.Kill()
		relay = w.Start()
	}
	more(t, load, 100)
	load.Stop()
	envtest.Eventually(t, fixture.Patience, func() error {
		if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.job WHERE kind = 'backfill' AND state = 'done'"); n != 1 {
			return fmt.Errorf("%d backfills are done, want one", n)
		}
		return nil
	})
	if !strings.Contains(relay.Text(), "in portions") {
		t.Error("the last start remembered all that was stored, so that this drill shows less than it should")
	}
	if a := w.Check(); a.Stored < old {
		t.Errorf("%d messages are stored, want the %d old ones at least", a.Stored, old)
	}
}

// I1, A41, A62: what a backfill has sent is missing like anything else where its
// stream is made anew, also if the slot was made when those rows were there and
// nobody was to look for them.
func TestWhatABackfillHasSentIsMissedInAStreamMadeAnew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		declared bool
		later    int
	}{
		"before anything else is proven":         {},
		"after it":                               {later: 5},
		"where the rows were declared as no gap": {declared: true, later: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{Flags: []string{"--backfill"}})
			neverStarted(w)
			w.Place(50)
			if c.declared { // as migrate does
				w.Exec("INSERT INTO walrelay.proven (source, epoch, snapshot, lsn) SELECT $1, 1, pg_current_snapshot(), pg_current_wal_insert_lsn()", w.Source)
			}
			relay := w.Start()
			w.Stored(50)
			relay.Await("relaying", fixture.Patience)
			if c.later > 0 {
				w.Place(c.later)
				w.Stored(50 + c.later)
				proven(t, w)
			}
			relay.Stop(fixture.Patience)
			config := streamOf(t, w).CachedInfo().Config
			if err := w.JetStream.DeleteStream(t.Context(), w.StreamName); err != nil {
				t.Fatal(err)
			}
			makeStream(t, w, config)
			relay = w.Start()
			relay.Await("halted", fixture.Patience) // such a stream is filled only when asked
			replayed(t, w, 0, "--missing")
			relay.Await("relaying", fixture.Patience)
			if n := gap(t, w, "new-stream", "healed"); n != int64(50+c.later) {
				t.Errorf("the gap tells of %d events, want %d", n, 50+c.later)
			}
			w.Place(5)
			w.Stored(55 + c.later)
			w.Check()
		})
	}
}

// A41: without it, what was there is not sent, and that is said.
func TestA41WithoutABackfillOldRowsAreNotSent(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	neverStarted(w)
	w.Exec("ALTER TABLE walrelay.outbox DISABLE TRIGGER e2e_note")
	insertMany(w, 100)
	w.Exec("ALTER TABLE walrelay.outbox ENABLE TRIGGER e2e_note")
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	w.Place(5)
	w.Stored(5)
	proven(t, w)
	relay.Stop(30 * time.Second)
	if !strings.Contains(relay.Text(), "are not sent") {
		t.Error("the log does not tell of the rows that are not sent")
	}
	w.Start()
	w.Place(5)
	w.Stored(10)
	w.Check()
}

// I3, I5: rows of a table without xid that are on their way while an audit looks
// are not taken for missing ones, however far behind the relay is.
func TestAnAuditTakesNoRowOnItsWayForMissing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: []string{"--window", "1", "--columns", "debezium", "--table", "public.outbox"}})
	w.Exec(`CREATE TABLE public.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
			type text NOT NULL, payload jsonb);
		CREATE TRIGGER e2e_note AFTER INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION e2e.note('public.outbox')`)
	w.Exec(fmt.Sprintf(`ALTER PUBLICATION %q SET TABLE public.outbox`, w.Source))
	write := func() {
		w.Exec(`INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload) SELECT 'order', i::text, 'placed', '{}' FROM generate_series(1, 100) i`)
	}
	const behind = 2000 // rows that are to be sent yet, at any time
	written := 0
	backlog := func() error {
		stored, err := w.LastSeq(t.Context())
		for ; err == nil && written < int(stored)+behind; written += 100 {
			write()
		}
		return err
	}
	if err := backlog(); err != nil {
		t.Fatal(err)
	}
	relay := w.Start()
	declared := fixture.Value[int64](w, "SELECT max(id) FROM walrelay.proven")
	envtest.Eventually(t, fixture.Patience, func() error {
		if err := backlog(); err != nil {
			return err
		}
		if fixture.Value[int64](w, "SELECT max(id) FROM walrelay.proven") == declared && fixture.Value[int64](w, "SELECT count(*) FROM walrelay.gap") == 0 {
			return fmt.Errorf("nothing is proven yet")
		}
		return nil
	})
	if n := fixture.Value[int64](w, "SELECT count(*) FROM walrelay.gap"); n != 0 {
		t.Errorf("%d gaps were found, want none: the rows were on their way", n)
	}
	w.Check()
	relay.Stop(30 * time.Second)
}
