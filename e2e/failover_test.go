package e2e_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A pair is a world on a primary that has a standby, and what it becomes once
// that one is promoted.
type pair struct {
	*fixture.World
	primary, standby *testenv.Postgres
	proxy            *testenv.Proxy // between the two
	both             []string       // flags of a relay that knows both
}

// newPair makes a standby that keeps a copy of the slot if it is told so.
func newPair(t *testing.T, primary map[string]string, synchronised bool, flags ...string) *pair {
	t.Helper()
	p := &pair{primary: envtest.Postgres(t, testenv.PGConfig{Version: 17, Settings: primary})}
	p.World = fixture.New(t, fixture.Config{Postgres: p.primary, Flags: flags})
	if slices.Contains(flags, "--shared") {
		p.Share()
	}
	p.proxy = envtest.Proxy(t, p.primary.Addr())
	p.standby = envtest.Standby(t, p.primary, testenv.StandbyConfig{Via: p.proxy.Addr(), Settings: map[string]string{
		"hot_standby_feedback": "on", "wal_retrieve_retry_interval": "200ms",
	}})
	if synchronised {
		// Only now: the worker that finds no primary tries again after a minute.
		on := p.On(p.standby)
		on.Exec("ALTER SYSTEM SET sync_replication_slots = on")
		on.Exec("SELECT pg_reload_conf()")
	}
	url := hosts(p.primary, p.standby)
	if !synchronised { // what a relay knows is the same
		url += "&target_session_attrs=read-write"
	}
	p.both = []string{"--database-url", url}
	return p
}

// hosts is the URL of a database that one of several servers has.
func hosts(servers ...*testenv.Postgres) string {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr()
	}
	return strings.Replace(servers[0].URL("shop"), addrs[0], strings.Join(addrs, ","), 1)
}

// awaitCopy waits until the standby has a copy of the slot that it keeps. For
// that the slot must have passed a record which servers write every 15 s if
// there is need; hurry writes one.
func (p *pair) awaitCopy(t *testing.T, hurry bool) {
	t.Helper()
	on := p.On(p.standby)
	envtest.Eventually(t, fixture.Patience, func() error {
		if hurry {
			p.Exec("SELECT pg_log_standby_snapshot()")
		}
		if !fixture.Value[bool](on, "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND synced AND NOT temporary)", p.Source) {
			return fmt.Errorf("the standby has no copy of slot %s that it would keep", p.Source)
		}
		return nil
	})
}

// fail kills the primary and promotes the standby.
func (p *pair) fail(t *testing.T) *fixture.World {
	t.Helper()
	if err := p.primary.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.proxy.Cut(); err != nil {
		t.Fatal(err)
	}
	if err := p.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p.On(p.standby)
}

// listed gives the events that the relay has listed as ones that the database
// never had.
func listed(w *fixture.World) []string {
	ids := fixture.Value[[]string](w, `SELECT coalesce(array_agg(id), '{}') FROM
		(SELECT jsonb_array_elements_text(detail->'events') AS id FROM walrelay.gap WHERE kind = 'phantom' AND state = 'listed') AS events`)
	slices.Sort(ids)
	return ids
}

// checkButPhantoms demands that the checker finds no other fault than events
// which the database does not have, and that exactly those are listed.
func checkButPhantoms(t *testing.T, w *fixture.World) (phantoms []string) {
	t.Helper()
	a := w.Settle(fixture.Patience)
	t.Logf("account: %s", a)
	if n := len(a.Invented); a.Faults() != n || a.Committed == 0 {
		t.Errorf("the checker found faults: %s", a)
	}
	messages, err := w.Messages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known := fixture.Value[[]string](w, "SELECT array_agg(id) FROM e2e.ledger")
	for _, m := range messages {
		if !slices.Contains(known, m.Event.ID) {
			phantoms = append(phantoms, m.Event.ID)
		}
	}
	slices.Sort(phantoms)
	if got := listed(w); !slices.Equal(got, phantoms) {
		t.Errorf("%d events are listed as ones that the database never had, want %d:\n%v\nwant\n%v", len(got), len(phantoms), got, phantoms)
	}
	// Proofs are rows of this database: none can speak of what it never had.
	if n := fixture.Value[int64](w, `SELECT count(*) FROM walrelay.proven p WHERE p.epoch < (SELECT max(number) FROM walrelay.epoch)
		AND p.lsn > (SELECT first_lsn FROM walrelay.epoch ORDER BY number DESC LIMIT 1)`); n != 0 {
		t.Errorf("%d proven snapshots of the old epoch lie beyond the switch point", n)
	}
	return phantoms
}

// epochs is how many the source has in the world's database.
func epochs(w *fixture.World) int64 {
	return fixture.Value[int64](w, "SELECT count(*) FROM walrelay.epoch")
}

// I1, I3, I5: the slot's copy on the standby goes on where the slot was, and
// the slot never was ahead of the standby.
func TestAPromotedStandbyWithASynchronisedSlotIsFollowedWithoutLoss(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"chain": nil, "lanes": {"--shared"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, map[string]string{"synchronized_standby_slots": "standby"}, true, flags...)
			relay := p.Start(p.both...)
			load := p.Load(fixture.LoadConfig{Writers: 3})
			p.AwaitRecorded(200)
			p.awaitCopy(t, true)
			more(t, load, 50)
			after := p.fail(t)
			load.Stop()
			further := after.Load(fixture.LoadConfig{Writers: 3})
			relay.Await("relaying", fixture.Patience)
			more(t, further, 50)
			further.Stop()
			if flags == nil {
				after.Check()
			} else if phantoms := checkButPhantoms(t, after); len(phantoms) != 0 {
				t.Errorf("the stream holds %d events that the database never had, want none: the slot waits for the standby", len(phantoms))
			}
			if n := fixture.Value[int64](after, "SELECT count(*) FROM walrelay.gap"); n != 0 {
				t.Errorf("%d gaps were noted, want none", n)
			}
			if n := epochs(after); n != 2 {
				t.Errorf("the source has %d epochs, want 2", n)
			}
			relay.Stop(fixture.Patience)
		})
	}
}

// I1, I3, I5, A38: no slot on the new primary, and a standby that may lack the
// last transactions.
func TestA38APromotedStandbyWithoutTheSlotIsHealed(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, false)
	relay := p.Start(p.both...)
	load := p.Load(fixture.LoadConfig{Writers: 3, Keep: true})
	p.AwaitRecorded(200)
	envtest.Eventually(t, fixture.Patience, func() error {
		if fixture.Value[int64](p.World, "SELECT count(*) FROM walrelay.proven WHERE streams <> '{}'") == 0 {
			return errors.New("nothing is proven")
		}
		return nil
	})
	more(t, load, 50)
	after := p.fail(t)
	load.Stop()
	further := after.Load(fixture.LoadConfig{Writers: 3, Keep: true})
	relay.Await("relaying", fixture.Patience)
	more(t, further, 50)
	further.Stop()
	envtest.Eventually(t, fixture.Patience, func() error {
		if n := fixture.Value[int64](after, "SELECT count(*) FROM walrelay.gap WHERE kind = 'slot' AND state = 'healed'"); n != 1 {
			return fmt.Errorf("%d gaps of the slot are healed, want 1", n)
		}
		return nil
	})
	checkButPhantoms(t, after)
	if n := epochs(after); n != 2 {
		t.Errorf("the source has %d epochs, want 2", n)
	}
	relay.Stop(fixture.Patience)
}

// I1, I3, I5, I10: an asynchronous standby that lacks what was sent already.
func TestEventsThatThePromotedDatabaseNeverHadAreListed(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"chain": nil, "lanes": {"--shared"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, nil, true, flags...)
			relay := p.Start(p.both...)
			p.Load(fixture.LoadConfig{Writers: 3, Transactions: 40}).Wait()
			p.Settle(fixture.Patience)
			p.awaitCopy(t, true)
			// Some that the new primary has and the slot's copy will send
			// again, then some that it never gets.
			p.Place(10)
			if err := p.standby.Follows(t.Context(), p.primary); err != nil {
				t.Fatal(err)
			}
			if err := p.proxy.Hold(testenv.Downstream); err != nil {
				t.Fatal(err)
			}
			before, err := p.LastSeq(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			before = max(before, fixture.Value[uint64](p.World, "SELECT count(*) FROM e2e.ledger"))
			p.Place(25)
			p.AwaitRecorded(before + 25)
			relay.Kill()
			after := p.fail(t)
			further := after.Load(fixture.LoadConfig{Writers: 2})
			more(t, further, 20)

			// A database that was restored to an earlier time looks the same,
			// and lacks more.
			confirmed, err := after.Confirmed(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			cautious := after.Start("--heal-limit", "20")
			if reason := cautious.Await("halted", fixture.Patience); !strings.Contains(reason, p.StreamName) || !strings.Contains(reason, "heal_limit") {
				t.Errorf("the relay halts with %q, want the stream and the limit", reason)
			}
			if seq, err := p.LastSeq(t.Context()); err != nil || seq != before+25 {
				t.Errorf("the stream's last sequence is %d (%v), want %d: nothing may be published", seq, err, before+25)
			}
			if now, err := after.Confirmed(t.Context()); err != nil || now != confirmed {
				t.Errorf("the confirmed LSN is %s (%v), want %s as before", now, err, confirmed)
			}
			cautious.Stop(fixture.Patience)

			relay = after.Start(p.both...)
			relay.Await("relaying", fixture.Patience)
			more(t, further, 20)
			relay.Kill() // the phantoms are listed once
			relay = after.Start(p.both...)
			more(t, further, 20)
			further.Stop()
			if phantoms := checkButPhantoms(t, after); len(phantoms) != 25 {
				t.Errorf("the stream holds %d events that the database never had, want 25", len(phantoms))
			}
			relay.Stop(fixture.Patience)
		})
	}
}

// A14: of several hosts each verb takes the primary, wherever it stands in the
// list and in whatever form that is asked for.
func TestA14EveryVerbTakesThePrimaryOfSeveralHosts(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, false)
	_, broker := p.RelayFlags()
	relay := p.Start(p.both...)
	p.Place(3)
	p.Check()
	proven(t, p.World)
	for _, attrs := range []string{"", "&target_session_attrs=primary", "&target_session_attrs=read-write"} {
		database := []string{"--database-url", hosts(p.standby, p.primary) + attrs, "--source", p.Source}
		both := slices.Concat(database, broker)
		for _, args := range [][]string{
			append([]string{"migrate"}, database...),
			append([]string{"doctor", "--admin", "off"}, both...),
			append([]string{"verify"}, both...),
			append([]string{"replay", "--missing", "--yes", "--no-wait"}, both...),
			append([]string{"deadletters", "list"}, database...),
			append([]string{"deadletters", "requeue", "--all", "--why", "mended"}, database...),
			append([]string{"cleanup", "--retention", "1h"}, database...),
			append([]string{"pause"}, database...),
			append([]string{"resume"}, database...),
		} {
			if code, out := verb(t, nil, args...); code != 0 {
				t.Errorf("walrelay %s ended with %d, want 0:\n%s", strings.Join(args, " "), code, out)
			}
		}
		status := append([]string{"status", "--admin", "off"}, database...)
		if code, out := verb(t, nil, status...); code != 1 || !strings.Contains(out, "is held by pid") {
			t.Errorf("walrelay status of a relay that is not asked ended with %d, want 1 and who holds the slot:\n%s", code, out)
		}
	}
	relay.Stop(fixture.Patience)
	if code, out := verb(t, nil, "teardown", "--yes", "--database-url", hosts(p.standby, p.primary)+"&target_session_attrs=read-write", "--source", p.Source); code != 0 {
		t.Errorf("walrelay teardown ended with %d, want 0:\n%s", code, out)
	}
}

// I8: the relay's status alone moves the slot of an outbox that is idle, so that
// the standby keeps its copy.
func TestTheCopyOfTheSlotIsKeptWhileTheOutboxIsIdle(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, true)
	relay := p.Start(p.both...)
	p.Place(3)
	p.Stored(3)
	p.awaitCopy(t, false)
	after := p.fail(t)
	after.Place(3)
	after.Check()
	if n := fixture.Value[int64](after, "SELECT count(*) FROM walrelay.gap"); n != 0 {
		t.Errorf("%d gaps were noted, want none", n)
	}
	relay.Stop(fixture.Patience)
}

// I1, I5: two servers take writes. What the relay has delivered tells which of
// them goes on.
func TestAnOldPrimaryThatIsStillUpIsPassedOver(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, true)
	relay := p.Start(p.both...)
	p.Place(5)
	p.Stored(5)
	p.awaitCopy(t, true)
	if err := p.standby.Follows(t.Context(), p.primary); err != nil {
		t.Fatal(err)
	}
	relay.Stop(fixture.Patience)
	if err := p.proxy.Cut(); err != nil {
		t.Fatal(err)
	}
	if err := p.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := p.On(p.standby)
	relay = after.Start()
	after.Place(5)
	after.Stored(10)
	relay.Stop(fixture.Patience)

	// What is written on the old one nobody gets.
	p.Place(3)
	confirmed, err := p.Confirmed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	relay = p.Start()
	if reason := relay.Await("halted", fixture.Patience); !strings.Contains(reason, p.StreamName) {
		t.Errorf("the relay halts with %q, want the stream", reason)
	}
	relay.Stop(fixture.Patience)
	if now, err := p.Confirmed(t.Context()); err != nil || now != confirmed {
		t.Errorf("the confirmed LSN of the old primary is %s (%v), want %s as before", now, err, confirmed)
	}

	relay = p.Start(p.both...)
	after.Place(5)
	after.Stored(15)
	after.Check()
	relay.Stop(fixture.Patience)
}

// I1, I2, I5: nothing of the stream is left to be met, and nothing new comes:
// the switch point alone tells where to go on.
func TestAPromotedDatabaseGoesOnBehindAStreamThatIsPurged(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, true)
	relay := p.Start(p.both...)
	p.Place(10)
	p.Stored(10)
	p.awaitCopy(t, true)
	p.Place(10)
	if err := p.standby.Follows(t.Context(), p.primary); err != nil {
		t.Fatal(err)
	}
	if err := p.proxy.Hold(testenv.Downstream); err != nil {
		t.Fatal(err)
	}
	p.Place(10)
	p.Stored(30)
	relay.Kill()
	after := p.fail(t)
	stream, err := p.JetStream.Stream(t.Context(), p.StreamName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	relay = after.Start()
	end, err := envelope.ParseLSN(fixture.Value[string](after, "SELECT pg_current_wal_insert_lsn()::text"))
	if err != nil {
		t.Fatal(err)
	}
	envtest.Eventually(t, fixture.Patience, func() error {
		if now, err := after.Confirmed(t.Context()); err != nil || now < end {
			return fmt.Errorf("the confirmed LSN is %s, want at least %s (%v)", now, end, err) //nolint:errorlint // may be nil
		}
		return nil
	})
	after.Place(3)
	after.AwaitRecorded(33)
	if messages, err := after.Messages(t.Context()); err != nil || len(messages) != 3 || messages[0].Position.Epoch != 2 {
		t.Errorf("the stream holds %d messages (%v), want the three of the new epoch", len(messages), err)
	}
	relay.Stop(fixture.Patience)
}
