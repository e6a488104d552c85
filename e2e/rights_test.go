package e2e_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/outbox"
)

// examine runs doctor and gives its checks that are not well.
func examine(t *testing.T, args []string) (unwell []walrelay.Check) {
	t.Helper()
	_, out := fixture.Command(t, nil, append([]string{"doctor", "--json"}, args...)...)
	var report walrelay.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("doctor --json: %v\n%s", err, out)
	}
	for _, c := range report.Checks {
		if c.Verdict != walrelay.VerdictOK {
			unwell = append(unwell, c)
		}
	}
	return unwell
}

// I1, I2, I5, I10: the roles and permissions that ship, as they ship, are enough
// for a relay's whole life: it delivers, writes dead letters, is restarted, runs
// jobs, heals a gap, makes its slot again and cleans up. Every other test of
// this package runs with them as well, on names of its own.
func TestTheRolesAndPermissionsThatShipAreEnoughForARelay(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Source: "walrelay", Flags: observed("--retention", "1s")})
	database, broker := w.RelayFlags()
	run := func(where []string, args ...string) {
		t.Helper()
		if code, out := fixture.Command(t, nil, append(args, where...)...); code != 0 {
			t.Fatalf("walrelay %s = %d: %s", strings.Join(args, " "), code, out)
		}
	}
	relay := w.Start()
	w.Place(10)
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, headers, payload) VALUES ('order', 'a1', 'placed', '{"Nats-Rollup": "all"}', '{}')`)
	w.Place(10)
	w.Stored(20)
	w.Dead(1)
	left(t, w, 1) // that of the dead letter stays
	relay.Kill()

	relay = w.Start("--retention", "off")
	w.Place(10)
	w.Stored(30)
	// One replica and the dead letter are all that doctor may find, once the slot
	// has moved past what was open on the server when it was made.
	envtest.Eventually(t, fixture.Patience, func() error {
		for _, c := range examine(t, slices.Concat(database, broker, []string{"--admin", "off"})) {
			if c.Area != "admin listener" && c.Name != "replicas" && c.Name != "dead letters" {
				return fmt.Errorf("doctor with the rights that ship: %+v", c)
			}
		}
		return nil
	})
	run(slices.Concat(database, broker), "config") // which shows no secret, as none of these does
	run(slices.Concat(database, broker), "replay", "--yes", "--since", "1h")
	run(database, "pause")
	run(database, "resume")
	run(database, "deadletters", "requeue", "--all", "--yes", "--why", "a test", "--no-wait")
	run(database, "deadletters", "list")
	proven(t, w)
	relay.Stop(fixture.Patience)

	// A slot that is gone is made again, and the gap is healed from the table.
	w.Exec("SELECT pg_drop_replication_slot($1)", w.Source)
	insertMany(w, 50)
	relay = w.Start("--retention", "off")
	w.Stored(80)
	gap(t, w, "slot", "healed")
	proven(t, w)
	run(database, "deadletters", "discard", "--all", "--yes", "--why", "a test")
	run(database, "cleanup", "--retention", "1ms", "--yes")
	left(t, w, 0)
	w.Check()
	relay.Stop(fixture.Patience)

	// The administrator looks after schema and stream.
	run([]string{"--database-url", w.As(fixture.RoleAdmin), "--nats", w.BrokerAs("admin"), "--nats-inbox-prefix", "_WALRELAY_ADMIN"}, "migrate", "--stream", w.StreamName)
	run([]string{"--database-url", w.As(fixture.RoleAdmin), "--nats", w.BrokerAs("admin"), "--nats-inbox-prefix", "_WALRELAY_ADMIN"}, "verify")
}

// I10: a right that is taken away is named, by doctor and by the relay.
func TestARightThatIsTakenAwayIsNamed(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	database, broker := w.RelayFlags()
	where := slices.Concat(database, broker)
	for _, c := range []struct{ take, named string }{
		{"REVOKE USAGE ON SCHEMA walrelay FROM @", "USAGE"},
		{"REVOKE UPDATE ON walrelay.witness FROM @", "UPDATE on witness"},
		{"REVOKE SELECT ON walrelay.witness FROM @", "SELECT on witness"},
		{"REVOKE INSERT ON walrelay.epoch FROM @", "INSERT on epoch"},
		{"REVOKE DELETE ON walrelay.proven FROM @", "DELETE on proven"},
		{"REVOKE UPDATE ON walrelay.job FROM @", "UPDATE on job"},
		{"REVOKE INSERT ON walrelay.gap FROM @", "INSERT on gap"},
		{"REVOKE INSERT ON walrelay.dead_letter FROM @", "INSERT on dead_letter"},
		{"REVOKE DELETE ON walrelay.job, walrelay.gap FROM @", `DELETE on "walrelay"."gap", DELETE on "walrelay"."job"`},
		{"REVOKE SELECT ON walrelay.outbox FROM @", "SELECT"},
		{"REVOKE DELETE ON walrelay.outbox FROM @", "DELETE"},
		{"REVOKE UPDATE (seq) ON walrelay.outbox FROM @", "UPDATE"},
	} {
		w.Exec(strings.ReplaceAll(c.take, "@", fixture.RoleRelay))
		unwell := examine(t, where)
		if !slices.ContainsFunc(unwell, func(found walrelay.Check) bool {
			return strings.Contains(found.Name+" "+found.Why, c.named) && strings.Contains(found.Fix, "GRANT") && strings.Contains(found.Fix, fixture.RoleRelay)
		}) {
			t.Errorf("after %s doctor finds %+v, want %q and the grant", c.take, unwell, c.named)
		}
		w.Grant()
	}
	if unwell := examine(t, where); slices.ContainsFunc(unwell, func(c walrelay.Check) bool {
		return c.Verdict == walrelay.VerdictFail || strings.Contains(c.Name, "rights") || strings.Contains(c.Name, "SELECT")
	}) {
		t.Errorf("with all rights again doctor finds %+v", unwell)
	}
	// The relay names the same.
	w.Exec("REVOKE UPDATE ON walrelay.witness FROM " + fixture.RoleRelay)
	relay := w.Start()
	envtest.Eventually(t, fixture.Patience, func() error {
		if state, why := relay.State(); !strings.Contains(why, "lacks UPDATE on witness") {
			return fmt.Errorf("the relay is %s (%s), want the right named", state, why)
		}
		return nil
	})
	w.Place(3)
	w.Grant()
	w.Stored(3)
	w.Check()
	relay.Stop(fixture.Patience)
}

// I10: so is a permission of NATS. Each line of the file is needed.
func TestAPermissionThatIsTakenAwayIsNamed(t *testing.T) {
	t.Parallel()
	password := fixture.NewSecret()
	whole := fixture.Permissions(t, "shop", "SHOP", password)
	path := natsConfig(t, whole)
	broker := envtest.NATS(t, testenv.NATSConfig{ConfigFile: path})
	w := fixture.New(t, fixture.Config{Postgres: envtest.Postgres(t, testenv.PGConfig{}), NATS: broker})
	where := []string{
		"--database-url", w.As(fixture.RoleRelay), "--source", w.Source, "--nats", broker.URL(), "--nats-user", "relay",
		"--nats-password-file", secretFile(t, password), "--nats-inbox-prefix", "_WALRELAY",
	}
	// A message, so that there is an end of the stream to read.
	relay := w.Start()
	w.Place(1)
	w.Stored(1)
	relay.Stop(fixture.Patience)
	mine := whole[strings.Index(whole, "user: relay"):strings.Index(whole, "user: billing")]
	for _, c := range []struct{ line, named string }{
		{`"outbox.shop.>"`, `not permitted to publish "outbox.shop.>"`},
		{`"$JS.API.STREAM.INFO.SHOP"`, `not permitted to publish "$JS.API.STREAM.INFO.SHOP"`},
		{`"$JS.API.STREAM.MSG.GET.SHOP"`, `not permitted to publish "$JS.API.STREAM.MSG.GET.SHOP"`},
		{`"_WALRELAY.>"`, `not permitted to subscribe to "_WALRELAY.`},
	} {
		if !strings.Contains(mine, c.line) {
			t.Fatalf("the file that ships does not have %s for the relay", c.line)
		}
		restart(t, broker, func() {
			writeSecret(t, path, strings.Replace(whole, mine, strings.Replace(mine, c.line, `"nothing"`, 1), 1))
		})
		if unwell := examine(t, where); !slices.ContainsFunc(unwell, func(found walrelay.Check) bool {
			return found.Verdict == walrelay.VerdictFail && strings.Contains(found.Why, c.named)
		}) {
			t.Errorf("without %s doctor finds %+v, want %q", c.line, unwell, c.named)
		}
	}
}

// A writer writes events, and nothing else: not who wrote them, not when, and
// it reads none.
func TestAWriterHasNoOtherRightThanToWriteEvents(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	service := w.Source + "_service"
	w.Exec(fmt.Sprintf("CREATE ROLE %s LOGIN IN ROLE %s", service, fixture.RoleWriter))
	t.Cleanup(func() { dropRole(t, w, service) })
	conn, err := pgx.Connect(t.Context(), w.As(service))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	// What notes the rows for the checker is no business of the service.
	w.Exec("ALTER FUNCTION e2e.note() SECURITY DEFINER")
	if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		return outbox.Append(t.Context(), tx, outbox.Event{AggregateType: "order", AggregateID: "a1", Type: "placed", Payload: map[string]int{"n": 1}})
	}); err != nil {
		t.Errorf("outbox.Append as a writer: %v", err)
	}
	for _, statement := range []string{
		"SELECT walrelay.append('order', 'a1', 'placed', '{}')",
		"INSERT INTO walrelay.outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'order', 'a1', 'placed', '{}') ON CONFLICT (id) DO NOTHING RETURNING id",
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Errorf("%s as a writer: %v", statement, err)
		}
	}
	for _, statement := range []string{
		"SELECT payload FROM walrelay.outbox",
		"DELETE FROM walrelay.outbox",
		"UPDATE walrelay.outbox SET payload = '{}'",
		"TRUNCATE walrelay.outbox",
		"INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('order', 'a1', 'placed', '{}', '1')",
		"INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', 'a1', 'placed', '{}', 'epoch')",
		"SELECT FROM walrelay.witness",
		"SELECT FROM walrelay.dead_letter",
		"INSERT INTO walrelay.job (source, kind) VALUES ('walrelay', 'replay')",
		"CREATE TABLE walrelay.mine ()",
	} {
		if _, err := conn.Exec(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s as a writer: %v, want permission denied", statement, err)
		}
	}
	relay := w.Start()
	w.Stored(3)
	w.Check()
	relay.Stop(fixture.Patience)
}

// A relay's user cannot do to the stream what a relay never does, and a
// consumer's nothing but consume.
func TestUsersOfTheBrokerCanDoNoMoreThanTheirWork(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	w.Start().Await("relaying", fixture.Patience)
	w.Place(1)
	w.Stored(1)
	info := "$JS.API.STREAM.INFO." + w.StreamName
	for _, c := range []struct {
		user, inbox   string
		allow, refuse []string
	}{
		{"relay", "_WALRELAY", []string{info}, []string{
			"$JS.API.STREAM.PURGE." + w.StreamName, "$JS.API.STREAM.DELETE." + w.StreamName, "$JS.API.STREAM.UPDATE." + w.StreamName,
			"$JS.API.STREAM.MSG.DELETE." + w.StreamName, "$JS.API.STREAM.CREATE.OTHER", "$JS.API.CONSUMER.CREATE.OTHER.mine", "other.subject",
		}},
		{"billing", "_INBOX_billing", []string{info}, []string{
			"outbox." + w.Source + ".order.placed", "$JS.API.STREAM.PURGE." + w.StreamName, "$JS.API.CONSUMER.DELETE." + w.StreamName + ".other",
			"$JS.API.CONSUMER.CREATE." + w.StreamName + ".other", "$JS.ACK." + w.StreamName + ".other.1.1.1.1.0",
		}},
		{"admin", "_WALRELAY_ADMIN", []string{info, "$JS.API.STREAM.PURGE." + w.StreamName}, []string{"outbox." + w.Source + ".order.placed", "$JS.API.STREAM.CREATE.OTHER"}},
	} {
		denied := make(chan error, 10)
		conn, err := nats.Connect(w.BrokerAs(c.user), nats.CustomInboxPrefix(c.inbox), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range c.allow {
			if m, err := conn.RequestWithContext(t.Context(), subject, nil); err != nil || strings.Contains(string(m.Data), `"error"`) {
				t.Errorf("%s asks on %s: %v, %v", c.user, subject, m, err)
			}
		}
		for _, subject := range append(c.refuse, "$JS.API.STREAM.DELETE.ELSE") {
			if err := conn.Publish(subject, []byte("{}")); err != nil {
				t.Fatal(err)
			}
			if err := <-denied; !strings.Contains(err.Error(), fmt.Sprintf("%q", subject)) {
				t.Errorf("%s publishes %s: %v, want a refusal", c.user, subject, err)
			}
		}
		conn.Close()
	}
	if _, err := w.JetStream.Stream(t.Context(), w.StreamName); err != nil {
		t.Error(err)
	}
}
