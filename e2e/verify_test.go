package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/reconcile"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/internal/witness"
)

// counts are those of a report that are not 0.
type counts map[string]uint64

func countsOf(r *reconcile.Report) counts {
	c := counts{
		"missing": r.Missing.Count, "unknown": r.Unknown.Count, "stored again": r.StoredAgain.Count, "out of order": r.OutOfOrder.Count,
		"different": r.Different.Count, "on their way": r.OnTheirWay, "dead-lettered": r.DeadLettered, "skipped": r.Skipped,
		"unrouted": r.Unrouted, "not verifiable": r.NotVerifiable, "not judged": r.NotJudged, "replayed": r.Replayed, "not compared": r.NotCompared,
	}
	maps.DeleteFunc(c, func(_ string, n uint64) bool { return n == 0 })
	return c
}

// verify runs the verb and demands the exit code that its findings ask for.
func verify(t *testing.T, w *fixture.World, flags ...string) *reconcile.Report {
	t.Helper()
	args := append([]string{"verify", "--json", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source}, flags...)
	code, out := verb(t, nil, args...)
	var r reconcile.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("walrelay verify --json ended with code %d and printed no JSON (%v):\n%s", code, err, out)
	}
	want := 0
	if r.Found() {
		want = 1
	}
	if code != want {
		t.Errorf("walrelay verify ended with code %d, want %d:\n%s", code, want, out)
	}
	return &r
}

func demand(t *testing.T, step string, r *reconcile.Report, want counts) {
	t.Helper()
	if want == nil {
		want = counts{}
	}
	if diff := cmp.Diff(want, countsOf(r)); diff != "" {
		t.Fatalf("%s: counts (-want +got):\n%s\n%+v", step, diff, r)
	}
}

// Writers are at work, some events are dead letters, and nothing is found.
func TestVerifyFindsNothingWhereEverythingArrived(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a1', 'placed', '{}')`)
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', 'a1', 'placed', '{}', '{"Nats-Rollup": "all"}')`)
	w.Exec("INSERT INTO e2e.aggregate SELECT 'w' || i FROM generate_series(0, 2) i")
	working, finish := context.WithCancel(t.Context())
	var writers errgroup.Group
	for i := range 3 {
		writers.Go(func() error {
			for working.Err() == nil {
				if _, err := w.Pool.Exec(t.Context(), "SELECT e2e.place(gen_random_uuid(), 'w' || $1::int, 'placed', '') FROM generate_series(1, 3)", i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	w.AwaitRecorded(300)
	for range 3 {
		r := verify(t, w, "--bodies")
		// Messages that are newer than the snapshot have no row in it.
		r.NotJudged = 0
		if len(r.Unknown.Shown) > 0 || r.Proof != reconcile.ProofConfirmed {
			t.Errorf("report = %+v, want no findings and the proof that all is confirmed", r)
		}
		letters := r.DeadLettered
		r.DeadLettered = 0
		demand(t, "under load", r, nil)
		if letters == 0 {
			t.Error("no row counts as dead-lettered, want the refused one")
		}
		if r.Tables[0].Rows < 300 || r.Streams[0].Ours < r.Tables[0].Rows-letters {
			t.Errorf("%d rows and %d messages were compared, want all", r.Tables[0].Rows, r.Streams[0].Ours)
		}
	}
	finish()
	if err := writers.Wait(); err != nil {
		t.Error(err)
	}
	w.Check()
	demand(t, "at rest", verify(t, w), counts{"dead-lettered": 1})
	relay.Stop(fixture.Patience)
}

// A spoiler does to a stream what nobody should.
type spoiler struct {
	t    *testing.T
	w    *fixture.World
	msgs []fixture.Message
}

// copyOf is message n with one header more or another value.
func (s *spoiler) copyOf(n int, name, value string) *nats.Msg {
	m := nats.NewMsg(s.msgs[n].Subject)
	for h, v := range s.msgs[n].Header {
		if !strings.HasPrefix(h, "Nats-Expected-") {
			m.Header[h] = v
		}
	}
	m.Data = s.msgs[n].Body
	if name != "" {
		m.Header.Set(name, value)
	}
	return m
}

// put stores a message, however long its id is remembered.
func (s *spoiler) put(m *nats.Msg) {
	s.t.Helper()
	envtest.Eventually(s.t, fixture.Patience, func() error {
		ack, err := s.w.JetStream.PublishMsg(s.t.Context(), m)
		if err == nil && ack.Duplicate {
			err = fmt.Errorf("the stream still remembers id %s", m.Header.Get(envelope.HeaderMsgID))
		}
		return err
	})
}

func (s *spoiler) remove(n int) {
	s.t.Helper()
	stream, err := s.w.JetStream.Stream(s.t.Context(), s.w.StreamName)
	if err == nil {
		err = stream.DeleteMsg(s.t.Context(), s.msgs[n].Seq)
	}
	if err != nil {
		s.t.Fatalf("delete message %d: %v", n, err)
	}
}

// Each spoiling goes red as what it is, and as nothing else.
func TestVerifyTellsEveryKindOfSpoilingApart(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	const events = 14
	for i := range events {
		aggregate := "a1"
		if i == 7 || i == 8 {
			aggregate = "a2"
		}
		w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
			VALUES ('order', $1, 'placed', jsonb_build_object('n', $2::int), now() - make_interval(secs => $3))`, aggregate, i, 100-i)
	}
	// Never publishable, and so young that nothing removed can be it.
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, headers, created_at)
		VALUES ('order', 'a1', 'placed', '{}', '{"Nats-Rollup": "all"}', now() + interval '2 hours')`)
	s := &spoiler{t: t, w: w, msgs: w.Stored(events)}
	w.Dead(1)
	proven(t, w) // the relay has had its own look, and will not mend what is spoiled
	demand(t, "before", verify(t, w), counts{"dead-lettered": 1})

	want := counts{}
	check := func(step string, of func(*reconcile.Report) *reconcile.Findings, events ...string) *reconcile.Report {
		t.Helper()
		r := verify(t, w)
		demand(t, step, r, want)
		if of == nil {
			return r
		}
		var got []string
		for _, f := range of(r).Shown {
			got = append(got, f.Event)
		}
		if diff := cmp.Diff(events, got); diff != "" {
			t.Errorf("%s: events of the findings (-want +got):\n%s", step, diff)
		}
		return r
	}
	id := func(n int) string { return s.msgs[n].Event.ID }

	lost := fixture.Value[string](w, "DELETE FROM walrelay.dead_letter RETURNING event_id")
	want["missing"] = 1
	check("a dead letter's record is deleted", func(r *reconcile.Report) *reconcile.Findings { return &r.Missing }, lost)

	forced := s.copyOf(2, envelope.HeaderMsgID, "forced")
	forced.Header.Set(envelope.HeaderEventID, id(2))
	s.put(forced)
	want["replayed"] = 1
	check("an event is replayed under a new id", nil)

	s.put(s.copyOf(3, "", ""))
	want["stored again"] = 1
	check("an event is stored twice", func(r *reconcile.Report) *reconcile.Findings { return &r.StoredAgain }, id(3))

	s.put(s.copyOf(4, envelope.HeaderMsgID, "00000000-0000-4000-8000-00000000beef"))
	want["unknown"] = 1
	check("a message has an id that no row has", func(r *reconcile.Report) *reconcile.Findings { return &r.Unknown }, "00000000-0000-4000-8000-00000000beef")

	w.Exec("DELETE FROM walrelay.outbox WHERE id = $1", id(5))
	want["unknown"] = 2
	check("a row is deleted", func(r *reconcile.Report) *reconcile.Findings { return &r.Unknown }, id(5), "00000000-0000-4000-8000-00000000beef")

	foreign := s.copyOf(4, envelope.HeaderMsgID, "not-ours")
	foreign.Header.Set(envelope.HeaderSource, "other")
	s.put(foreign)
	check("another source's message", nil)

	s.remove(6)
	changed := s.copyOf(6, "", "")
	changed.Data = []byte(`{"n": 66}`)
	s.put(changed)
	// It is behind later ones of its aggregate as well.
	want["different"], want["out of order"] = 1, 1
	r := check("a body has another length", func(r *reconcile.Report) *reconcile.Findings { return &r.Different }, id(6))
	if got, want := r.Different.Shown[0].Detail, "body of 9 bytes, want 8"; got != want {
		t.Errorf("detail = %q, want %q", got, want)
	}

	s.remove(7)
	s.put(s.copyOf(7, "", "")) // of an aggregate whose other event is stored before now
	want["out of order"] = 2
	check("two events of an aggregate have changed places", func(r *reconcile.Report) *reconcile.Findings { return &r.OutOfOrder }, id(6), id(7))

	s.remove(9)
	late := s.copyOf(9, envelope.HeaderOrigin, "heal/1")
	late.Header.Set(envelope.HeaderLate, "1")
	s.put(late)
	check("an event is healed late", nil)

	s.remove(10)
	want["not verifiable"] = 1
	r = check("a message is deleted", nil)
	if r.Streams[0].Removed != 4 || r.Streams[0].NotLive != 1 || r.Streams[0].Late != 1 {
		t.Errorf("stream = %+v, want 4 removed, 1 not live, 1 late", r.Streams[0])
	}

	s.remove(11)
	header := s.copyOf(11, envelope.HeaderCreatedAt, "2026-01-02 03:04:05+00")
	header.Header.Set(envelope.HeaderOrigin, "replay/2")
	s.put(header)
	want["different"] = 2
	r = check("a header differs", func(r *reconcile.Report) *reconcile.Findings { return &r.Different }, id(6), id(11))
	if got, want := r.Different.Shown[1].Detail, "header Walrelay-Created-At differs"; got != want {
		t.Errorf("detail = %q, want %q", got, want)
	}

	s.remove(12)
	body := s.copyOf(12, envelope.HeaderOrigin, "replay/2")
	body.Data = []byte(`{"n": 99}`)
	s.put(body)
	check("a body differs in its bytes alone, which are not looked at", nil)
	want["different"] = 3
	r = verify(t, w, "--bodies")
	demand(t, "a body differs in its bytes alone", r, want)
	if got, want := r.Different.Shown[2].Detail, "body differs"; got != want {
		t.Errorf("detail = %q, want %q", got, want)
	}

	code, text := verb(t, nil, "verify", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source)
	for _, part := range []string{"\nmissing:\n  event " + lost + ", table walrelay.outbox, aggregate order/a1", "out of order", "--bodies compares every byte"} {
		if code != 1 || !strings.Contains(text, part) {
			t.Errorf("walrelay verify ended with code %d and printed\n%s\nwant code 1 and %q", code, text, part)
		}
	}
}

// A62, A38: what the relay has not sent is on its way; what was proven to be
// delivered and is nowhere is missing.
func TestVerifyTellsRowsOnTheirWayFromMissingOnes(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	w.Place(3)
	w.Stored(3)
	relay.Stop(fixture.Patience)
	w.Place(4)
	w.Exec("DELETE FROM walrelay.proven") // as if the relay had stopped before it proved anything
	r := verify(t, w)
	demand(t, "the relay is stopped", r, counts{"on their way": 4})
	if r.Proof != reconcile.ProofNone || len(r.Notes) == 0 || !strings.Contains(r.Notes[0], "no relay holds slot") {
		t.Errorf("proof = %q, notes = %q, want none and that no relay holds the slot", r.Proof, r.Notes)
	}
	w.Exec(`INSERT INTO walrelay.proven (source, epoch, snapshot, lsn) SELECT source, epoch, pg_current_snapshot(), pg_current_wal_insert_lsn() FROM walrelay.witness`)
	w.Place(2)
	r = verify(t, w)
	demand(t, "a snapshot is said to be proven", r, counts{"on their way": 2, "missing": 4})
	if r.Proof != reconcile.ProofSnapshot {
		t.Errorf("proof = %q, want %q", r.Proof, reconcile.ProofSnapshot)
	}
	relay = w.Start()
	w.Check()
	demand(t, "the relay is back", verify(t, w), nil)
	relay.Stop(fixture.Patience)
}

// What a stream removed cannot be verified, and is not called missing.
func TestVerifyCallsNothingMissingThatTheStreamRemoved(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	w.Place(6)
	w.Stored(6)
	stream, err := w.JetStream.Stream(t.Context(), w.StreamName)
	if err != nil {
		t.Fatal(err)
	}
	r := verify(t, w)
	demand(t, "before", r, nil)
	if err := stream.DeleteMsg(t.Context(), 6); err != nil { // the end itself
		t.Fatal(err)
	}
	demand(t, "the last message is deleted", verify(t, w), counts{"not verifiable": 1})
	if err := stream.DeleteMsg(t.Context(), 1); err != nil { // the beginning
		t.Fatal(err)
	}
	demand(t, "the first message is deleted", verify(t, w), counts{"not verifiable": 2})
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = verify(t, w)
	demand(t, "the stream is purged", r, counts{"not verifiable": 6})
	if r.Streams[0].Removed != 6 {
		t.Errorf("removed = %d, want 6", r.Streams[0].Removed)
	}
	w.Place(2)
	w.AwaitRecorded(8)
	demand(t, "more came", verify(t, w), counts{"not verifiable": 6})
	relay.Stop(fixture.Patience)
}

// A row is what its created_at says, and --since goes by it.
func TestVerifySinceLooksAtYoungEventsOnly(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	for _, age := range []string{"100 days", "3 days", "2 hours", "1 hour", "1 minute", "1 second"} {
		w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
			VALUES ('order', 'a1', 'placed', '{}', now() - $1::text::interval)`, age)
	}
	msgs := w.Stored(6)
	r := verify(t, w, "--since", "90m")
	demand(t, "since 90 minutes", r, counts{"not judged": 3})
	if r.Tables[0].Rows != 3 {
		t.Errorf("%d rows were compared, want 3", r.Tables[0].Rows)
	}
	// Older than what retention keeps, out of the span, within it.
	for _, n := range []int{0, 1, 3} {
		w.Exec("DELETE FROM walrelay.outbox WHERE id = $1", msgs[n].Event.ID)
	}
	demand(t, "rows are deleted, since 90 minutes", verify(t, w, "--since", "90m"), counts{"not judged": 3, "unknown": 1})
	demand(t, "rows are deleted", verify(t, w), counts{"not judged": 2, "unknown": 1}) // the oldest row is of 2 hours ago
	demand(t, "rows are deleted, retention of half an hour", verify(t, w, "--retention", "30m"), counts{"not judged": 3})
	w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
		VALUES ('order', 'a1', 'placed', '{}', now() - interval '99 days')`)
	w.AwaitRecorded(7)
	demand(t, "an older row is there still", verify(t, w), counts{"not judged": 1, "unknown": 2})
	relay.Stop(fixture.Patience)
}

func TestVerifyRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--since", "yesterday"}, 2, `use a duration such as 10m`},
		{[]string{"--retention=-1h"}, 2, "use a duration such as 168h"},
		{[]string{"--nats", "embedded:x"}, 2, "--embedded-listen"},
		{[]string{"--stream", "NONE"}, 1, `stream "NONE" does not exist`},
		{[]string{"--table", "public.none"}, 1, "there is no such table"},
	} {
		args := append([]string{"verify", "--database-url", w.DatabaseURL, "--nats", w.NATSURL, "--source", w.Source, "--wait", "1s"}, c.args...)
		if code, text := verb(t, nil, args...); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("walrelay verify %v ended with code %d and printed %q, want code %d and %q", c.args, code, text, c.code, c.want)
		}
	}
}

// Several tables, routes and streams; a table of another kind, without xid and
// seq, with bytes as payload.
func TestVerifyKnowsTablesRoutesAndStreams(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{AnyUser: true})
	w.Exec(`CREATE TABLE public.events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload bytea, tenant text)`)
	w.Exec(fmt.Sprintf("ALTER PUBLICATION %q ADD TABLE public.events", w.Source))
	second := w.StreamName + "2"
	if _, err := w.JetStream.CreateStream(t.Context(), jetstream.StreamConfig{Name: second, Subjects: []string{"ev." + w.Source + ".>"}}); err != nil {
		t.Fatal(err)
	}
	flags := []string{
		"--tables", `[{name: walrelay.outbox}, {name: public.events, preset: debezium, extra: {tenant: X-Tenant}}]`,
		"--routes", `[{event_types: [ignored], skip: true}, {table: public.events, stream: ` + second + `, subject: 'ev.{source}.{type}', headers: {X-Region: eu}}, {}]`,
	}
	flags[3] = strings.ReplaceAll(flags[3], "{type}", "{event_type}")
	relay := w.Start(flags...)
	relay.Await("relaying", fixture.Patience)
	w.Place(3)
	for i := range 5 {
		w.Exec(`INSERT INTO public.events (aggregatetype, aggregateid, type, payload, tenant) VALUES ('x', $1::int::text, 'made', '\x00ff', 'it''s \ "me"')`, i)
	}
	w.Exec(`INSERT INTO public.events (aggregatetype, aggregateid, type) VALUES ('x', '1', 'ignored'), ('x', NULL, 'made')`)
	var r *reconcile.Report
	envtest.Eventually(t, fixture.Patience, func() error {
		r = verify(t, w, append(flags, "--bodies")...)
		if r.Streams[0].Read+r.Streams[1].Read < 9 {
			return fmt.Errorf("streams = %+v, want 9 messages", r.Streams)
		}
		return nil
	})
	demand(t, "all arrived", r, counts{"skipped": 1})
	// The routes of another configuration make other messages.
	flags[3] = strings.Replace(flags[3], "eu", "us", 1)
	r = verify(t, w, flags...)
	demand(t, "with another route", r, counts{"skipped": 1, "different": 6})
	if got, want := r.Different.Shown[0].Detail, "header X-Region differs"; got != want {
		t.Errorf("detail = %q, want %q", got, want)
	}
	if len(r.Notes) == 0 || !strings.Contains(r.Notes[0], "not those that the relay ran with") {
		t.Errorf("notes = %q, want that the routes are others", r.Notes)
	}
	relay.Stop(fixture.Patience)
}

// I4: what Rows reads from a table makes the message that the slot made, byte
// for byte, whatever the types and the settings.
func TestARowThatIsReadMakesTheMessageThatTheSlotMade(t *testing.T) {
	t.Parallel()
	settings := map[string]string{
		"bytea_output": "escape", "DateStyle": "SQL,DMY", "TimeZone": "Asia/Kolkata", "IntervalStyle": "iso_8601", "extra_float_digits": "-5",
	}
	cluster := envtest.Postgres(t, testenv.PGConfig{Settings: settings})
	w := fixture.New(t, fixture.Config{Postgres: cluster})
	w.Exec(`ALTER TABLE walrelay.outbox ALTER payload DROP NOT NULL, ALTER headers DROP NOT NULL, DROP CONSTRAINT outbox_headers_object,
		ADD at timestamptz, ADD span interval, ADD price money, ADD real float8, ADD raw bytea, ADD dead int; ALTER TABLE walrelay.outbox DROP dead`)
	payloads := map[string][]string{
		"jsonb": {`'{"b": 1, "a": [1.10, 1e400], "é": "\u0001"}'`, "'null'", "NULL"},
		"json":  {`'{"b" : 1,"a":2, "a":3 ,"t":"\u00e9"}'`, "NULL"},
		"text":  {`E'no JSON, \\ '' é \t\n'`, "''", "NULL"},
		"bytea": {`'\x00ff5c0a27'`, "''", "NULL"},
	}
	flags := []string{"--tables", `[{name: walrelay.outbox, extra: {at: X-At, span: X-Span, price: X-Price, real: X-Real, raw: X-Raw}}]`, "--format", "cloudevents"}
	relay := w.Start(flags...)
	relay.Await("relaying", fixture.Patience)
	cfg := router.Config{
		Source: w.Source, Routes: []router.Route{{Stream: w.StreamName}}, CloudEvents: true,
		Tables: []router.Table{{Schema: "walrelay", Name: "outbox", Columns: router.Own()}},
	}
	cfg.Tables[0].Columns.Extra = map[string]string{"at": "X-At", "span": "X-Span", "price": "X-Price", "real": "X-Real", "raw": "X-Raw"}
	made, err := router.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	compared, stored := 0, 0
	for _, kind := range []string{"jsonb", "json", "text", "bytea"} {
		w.Exec(`TRUNCATE walrelay.outbox; ALTER TABLE walrelay.outbox ALTER payload TYPE ` + kind + ` USING NULL`)
		for _, payload := range payloads[kind] {
			w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, headers, at, span, price, real, raw) VALUES
				('order %', ' a1 ', 'placed', ` + payload + `, '{"d": 1.10, "o": {"a": [1]}}', '2026-01-02 03:04:05.678+00', '1 day 2 hours', 3.5, 0.1::float8 + 0.2, '\x00ff'),
				('order', 'a2', 'placed', ` + payload + `, NULL, 'infinity', NULL, NULL, 'NaN', NULL)`)
			stored += 2
		}
		want := map[string]fixture.Message{}
		for _, m := range w.Stored(stored) {
			want[m.Event.ID] = m
		}
		conn, err := pinned(t, w.DatabaseURL)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for row, err := range reconcile.Rows(t.Context(), tx, cfg.Tables[0], reconcile.RowFilter{Batch: 2}) {
			if err != nil {
				t.Fatal(err)
			}
			var out router.Routed
			if err := made.Route(&row.Row, &out); err != nil || out.Verdict != router.Publish {
				t.Fatalf("Route() = %v, verdict %v (%s), want a message", err, out.Verdict, out.Refusal.Detail)
			}
			m := want[out.Message.MsgID]
			got, slot := nats.Header{}, nats.Header{}
			for _, h := range out.Message.Headers {
				got[h.Name] = append(got[h.Name], h.Value)
			}
			for name, values := range m.Header {
				if name != envelope.HeaderPosition && name != envelope.HeaderCommittedAt && !strings.HasPrefix(name, "Nats-Expected-") {
					slot[name] = values
				}
			}
			if diff := cmp.Diff(slot, got); diff != "" {
				t.Errorf("%s: headers (-slot +table):\n%s", kind, diff)
			}
			if diff := cmp.Diff(string(m.Body), string(out.Message.Body)); diff != "" || m.Subject != out.Message.Subject {
				t.Errorf("%s: subject %q, want %q; body (-slot +table):\n%s", kind, out.Message.Subject, m.Subject, diff)
			}
			compared++
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if compared != stored {
		t.Errorf("%d rows were compared, want %d", compared, stored)
	}
	relay.Stop(fixture.Patience)
}

// pinned connects as the relay does.
func pinned(t *testing.T, url string) (*pgx.Conn, error) {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	maps.Copy(cfg.RuntimeParams, witness.PinSettings())
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

// What a work queue's consumer has taken is not missing.
func TestVerifyOfAWorkQueueCallsNothingMissing(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	stream, err := w.JetStream.Stream(t.Context(), w.StreamName)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.Retention = jetstream.WorkQueuePolicy
	if err := w.JetStream.DeleteStream(t.Context(), w.StreamName); err != nil {
		t.Fatal(err)
	}
	stream = envtest.MakeStream(t, w.JetStream, cfg)
	relay := w.Start()
	relay.Await("relaying", fixture.Patience)
	w.Place(30)
	w.AwaitRecorded(30)
	demand(t, "nothing is consumed", verify(t, w), nil)
	consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := consumer.Fetch(30)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for msg := range batch.Messages() {
		if n++; n%2 == 0 || n > 28 { // the last ones too
			if err := msg.DoubleAck(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := verify(t, w)
	demand(t, "half is consumed", r, counts{"not verifiable": 16})
	if r.Streams[0].Removed != 16 || r.Streams[0].Read != 14 {
		t.Errorf("stream = %+v, want 16 removed and 14 read", r.Streams[0])
	}
	relay.Stop(fixture.Patience)
}

// I3: in lanes only the order of each aggregate is kept, and that is what is
// looked at.
func TestVerifyLooksAtEachAggregateOfASharedStream(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Flags: []string{"--shared"}})
	const aggregates, events = 5, 400
	w.Exec(`INSERT INTO e2e.aggregate SELECT 'a' || i FROM generate_series(1, $1::int) i`, aggregates)
	for i := range events {
		w.Exec("SELECT e2e.place(gen_random_uuid(), 'a' || $1::int, 'placed', '')", i%aggregates+1)
	}
	relay := w.Start()
	w.Check()
	messages, err := w.Messages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	demand(t, "all arrived", verify(t, w), nil)
	s := &spoiler{t: t, w: w, msgs: messages}
	move := func(n int) {
		t.Helper()
		s.remove(n)
		again := s.copyOf(n, "", "")
		again.Header.Del(envelope.HeaderMsgID)
		again.Header.Set(envelope.HeaderEventID, s.msgs[n].Event.ID)
		s.put(again)
	}
	move(events - aggregates) // the last one of its aggregate
	demand(t, "an event stands behind newer ones of other aggregates", verify(t, w), counts{"replayed": 1})
	move(3)
	demand(t, "an event stands behind newer ones of its own", verify(t, w), counts{"out of order": 1, "replayed": 2})
	relay.Stop(fixture.Patience)
}
