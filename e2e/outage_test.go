package e2e_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// long says whether $DRILL_LONG asks for drills at their full length.
func long() bool { return os.Getenv("DRILL_LONG") == "1" }

// placeMany writes n events, each in a transaction of its own, and takes the
// database's word for all of them.
func placeMany(w *fixture.World, n string) {
	w.Exec("INSERT INTO e2e.aggregate SELECT 'a' || i FROM generate_series(1, 7) AS i ON CONFLICT DO NOTHING")
	w.Exec(`DO $$ BEGIN
		FOR i IN 1..` + n + ` LOOP
			PERFORM e2e.place(gen_random_uuid(), 'a' || 1 + i % 7, 'placed', '');
			COMMIT;
		END LOOP;
	END $$`)
}

// I1, I3, I5, I6, I8, I10.
func TestA59TwoMinutesWithoutNATSUnderLoadLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	pause := 8 * time.Second
	if long() {
		pause = 2 * time.Minute
	}
	cluster := envtest.Postgres(t, testenv.PGConfig{})
	broker := envtest.NATS(t, testenv.NATSConfig{})
	w := fixture.New(t, fixture.Config{Postgres: cluster, NATS: broker, Stream: shortDuplicates, Flags: observed()})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	placeMany(w, "500")
	w.AwaitRecorded(300)
	began := time.Now()
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	placeMany(w, "10000")
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "no connection to NATS")
	instant(t.Context(), pause-time.Since(began))
	code, out := verb(t, nil, "status", "--source", w.Source, "--admin", addr)
	if code != 1 || !strings.Contains(out, "no connection to NATS") {
		t.Errorf("walrelay status = %d, want 1 and that it waits for NATS:\n%s", code, out)
	}
	if r := report(t, addr); r.LagSeconds == nil || *r.LagSeconds < 5 || r.LagBytes == nil || *r.LagBytes == 0 {
		t.Errorf("the lag is %v s and %v bytes, want that of the outage", r.LagSeconds, r.LagBytes)
	}

	stopFast(t, cluster, 15*time.Second)
	if !relay.Running() {
		t.Fatal("the relay ended; it has to wait for its servers")
	}
	startAgain(t, w, cluster)
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := w.Check()
	if a.Stored != 10500 {
		t.Errorf("%d events are stored, want 10500", a.Stored)
	}
	awaitReadiness(t, addr, http.StatusOK, "ready")
	relay.Stop(fixture.Patience)
}

// I6: neither order of the servers' return matters, and the start needs none.
func TestA59NATSThatIsAbsentAtTheStartIsWaitedFor(t *testing.T) {
	t.Parallel()
	broker := envtest.NATS(t, testenv.NATSConfig{})
	w := fixture.New(t, fixture.Config{NATS: broker, Flags: observed()})
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Place(5)
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "no connection to NATS")
	instant(t.Context(), 3*time.Second) // several attempts
	before := w.SlotAt()
	w.Place(5)
	if now := w.SlotAt(); now != before {
		t.Errorf("the confirmed LSN went from %s to %s with nothing stored", before, now)
	}
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Stored(10)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	w.Check()
	relay.Stop(fixture.Patience)
}

// I3, I6, I10.
func TestA50AFullStreamIsWaitedForInOrder(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{
		Stream: func(cfg *jetstream.StreamConfig) { cfg.Discard, cfg.MaxMsgs = jetstream.DiscardNew, 100 },
		Flags:  observed(),
	})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	placeMany(w, "150")
	first := w.Stored(100)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "is full")
	w.Stored(100)
	stream, err := w.JetStream.Stream(t.Context(), w.StreamName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.AwaitRecorded(150)
	rest, err := w.Messages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rows, err := w.Rows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := append(first, rest...)
	if len(all) != len(rows) {
		t.Fatalf("%d messages were stored, want %d", len(all), len(rows))
	}
	for i := range all {
		if all[i].Event.ID != rows[i].ID {
			t.Fatalf("message %d is event %s, want %s", i+1, all[i].Event.ID, rows[i].ID)
		}
	}
	w.Dead(0)
	awaitReadiness(t, addr, http.StatusOK, "ready")
	relay.Stop(fixture.Patience)
	relay = w.Start() // what was purged does not come again
	w.Place(1)
	w.AwaitRecorded(151)
	relay.Await("relaying", fixture.Patience)
	if last, err := w.LastSeq(t.Context()); err != nil || last != 151 {
		t.Errorf("the stream's last sequence is %d, %v, want 151", last, err)
	}
	relay.Stop(fixture.Patience)
}

// I6, I10.
func TestA58AMissingStreamAndAMissingJetStreamAreToldApart(t *testing.T) {
	t.Parallel()
	broker := envtest.NATS(t, testenv.NATSConfig{ConfigFile: natsConfig(t, `
		accounts {
			SHOP { jetstream: enabled, users: [{user: shop, password: shop}] }
			BARE { users: [{user: bare, password: bare}] }
		}
		no_auth_user: shop`)})
	w := fixture.New(t, fixture.Config{NATS: broker, Flags: observed()})
	if err := w.JetStream.DeleteStream(t.Context(), w.StreamName); err != nil {
		t.Fatal(err)
	}
	w.Place(5)

	bare := w.Start("--nats", strings.Replace(w.NATSURL, "://", "://bare:bare@", 1))
	awaitReadiness(t, adminOf(t, bare.Text), http.StatusServiceUnavailable, "JetStream not enabled")
	bare.Stop(fixture.Patience)

	relay := w.Start()
	addr := adminOf(t, relay.Text)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "does not exist")
	_, why := fetch(t, addr, "/readyz")
	if !strings.Contains(why, w.StreamName) || !strings.Contains(why, "walrelay migrate --stream") {
		t.Errorf("/readyz names neither the stream nor the command: %s", why)
	}
	if _, err := w.JetStream.Stream(t.Context(), w.StreamName); err == nil {
		t.Error("the relay made the stream unasked")
	}
	w.Migrate()
	w.Stored(5)
	awaitReadiness(t, addr, http.StatusOK, "ready")

	// A subject that the stream does not take is neither.
	w.UpdateStream(func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{"outbox.*.order.placed"} })
	w.Exec("SELECT e2e.place(gen_random_uuid(), 'a1', 'sent', '')")
	w.Place(1)
	awaitReadiness(t, addr, http.StatusServiceUnavailable, "no stream covers subject")
	w.UpdateStream(func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{"outbox.*.order.*"} })
	w.Stored(7)
	w.Check()
	relay.Stop(fixture.Patience)
}

// I3, I6: a stream whose leader changes again and again takes all, in order.
func TestA58AStreamWhoseLeaderStepsDownAgainAndAgainTakesAllInOrder(t *testing.T) {
	t.Parallel()
	brokers := envtest.NATSCluster(t, 3, testenv.NATSConfig{})
	var urls []string
	for _, b := range brokers {
		urls = append(urls, b.URL())
	}
	w := fixture.New(t, fixture.Config{NATSURLs: strings.Join(urls, ","), Flags: observed()})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	load := w.Load(fixture.LoadConfig{Writers: 2})
	for range 4 {
		before, err := w.LastSeq(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Conn.Request("$JS.API.STREAM.LEADER.STEPDOWN."+w.StreamName, nil, 5*time.Second); err != nil {
			t.Logf("step down: %v", err)
		}
		w.AwaitRecorded(before + 100)
	}
	load.Stop()
	w.Check()
	relay.Stop(fixture.Patience)
}
