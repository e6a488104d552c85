package e2e_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// I4: whatever the role, the database or the server say about text output.
func TestA24SettingsThatChangeTextOutputChangeNoByteOfAnEvent(t *testing.T) {
	t.Parallel()
	settings := map[string]string{
		"bytea_output": "escape", "DateStyle": "SQL,DMY", "TimeZone": "Asia/Kolkata", "IntervalStyle": "iso_8601", "extra_float_digits": "-5",
	}
	cluster := envtest.Postgres(t, testenv.PGConfig{Settings: settings})
	w := fixture.New(t, fixture.Config{Postgres: cluster})
	w.Exec(`ALTER TABLE walrelay.outbox ALTER payload TYPE bytea USING NULL`)
	for name, value := range settings {
		w.Exec(fmt.Sprintf("ALTER DATABASE shop SET %s = %s; ALTER ROLE postgres SET %s = %s", name, quoted(value), name, quoted(value)))
	}
	relay := w.Start()
	w.Exec(`SET bytea_output = 'hex'; INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
		VALUES ('order', 'a1', 'placed', '\x00ff5c0a', '2026-01-02 03:04:05.678+00')`)
	m := w.Stored(1)[0]
	if diff := cmp.Diff([]byte{0x00, 0xFF, 0x5C, 0x0A}, m.Body); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if got, want := m.Event.CreatedAt, "2026-01-02 03:04:05.678+00"; got != want {
		t.Errorf("created_at = %q, want %q", got, want)
	}
	w.Check()
	relay.Stop(fixture.Patience)
}

func quoted(s string) string { return "'" + s + "'" }

func TestA25OddTimesAndNumbersPassAsText(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	times := []string{"infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "294276-12-31 00:00:00+00"}
	relay := w.Start()
	for _, at := range times {
		w.Exec(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
			VALUES ('order', 'a1', 'placed', jsonb_build_object('digits', repeat('9', 1000)::numeric, 'e', 1e300, 'zero', '-0'::float8, 'nan', 'NaN'::numeric), $1::text::timestamptz)`, at)
	}
	w.Check()
	var got []string
	for _, m := range w.Stored(len(times)) {
		got = append(got, m.Event.CreatedAt)
	}
	if diff := cmp.Diff(times, got); diff != "" {
		t.Errorf("created_at (-want +got):\n%s", diff)
	}
	relay.Stop(fixture.Patience)
}

// I4.
func TestA26TheBodyIsTheColumnsTextByteForByte(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	const insert = `INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
		VALUES ('order', 'a1', 'placed', %s, '{"big": 1234567890123456789, "d": 1.10, "t": true, "n": null, "o": {"a": [1, 2.50]}}')`
	const numbers = `'{"n":12345678901234567890123,"d":1.10,"e":1e400}'`
	const odd = `{"b" : 1,"a":2, "a":3 ,"t":"\u00e9"}`
	relay := w.Start()
	w.Exec(fmt.Sprintf(insert, numbers))
	want := []string{fixture.Value[string](w, "SELECT payload::text FROM walrelay.outbox")}
	w.Exec("ALTER TABLE walrelay.outbox ALTER payload TYPE json USING payload::json")
	w.Exec(fmt.Sprintf(insert, quoted(odd)))
	w.Exec("ALTER TABLE walrelay.outbox ALTER payload TYPE text USING payload::text")
	w.Exec(fmt.Sprintf(insert, quoted("no JSON at all, é \t")))
	want = append(want, odd, "no JSON at all, é \t")
	var got []string
	for _, m := range w.Stored(3) {
		got = append(got, string(m.Body))
		h := m.Header
		if h.Get("big") != "1234567890123456789" || h.Get("d") != "1.10" || h.Get("t") != "true" || len(h["n"]) != 0 || h.Get("o") != `{"a":[1,2.50]}` {
			t.Errorf("headers = %v, want every digit", h)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bodies (-want +got):\n%s", diff)
	}
	w.Check()
	relay.Stop(fixture.Patience)
}

func TestA27NullAndEmptyPayloadsAreToldApart(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	w.Exec(`ALTER TABLE walrelay.outbox ALTER payload DROP NOT NULL, ALTER headers DROP NOT NULL, DROP CONSTRAINT outbox_headers_object`)
	const insert = "INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', 'a1', 'placed', %s, %s)"
	type body struct {
		Text string
		Null bool
	}
	var want []body
	put := func(sql, text string, null bool) {
		w.Exec(fmt.Sprintf(insert, sql, "'{}'"))
		want = append(want, body{text, null})
	}
	relay := w.Start()
	put("NULL", "", true)
	put("'null'", "null", false)
	put("'{}'", "{}", false)
	w.Exec("ALTER TABLE walrelay.outbox ALTER payload TYPE text USING payload::text")
	put("''", "", false)
	put("NULL", "", true)
	w.Exec("ALTER TABLE walrelay.outbox ALTER payload TYPE bytea USING NULL")
	put("''", "", false)
	put("NULL", "", true)
	w.Exec(fmt.Sprintf(insert, "''", "NULL"))
	want = append(want, body{})
	for _, headers := range []string{"'[]'", "'null'", "'\"x\"'", "'1'"} {
		w.Exec(fmt.Sprintf(insert, "''", headers))
	}
	w.Check()
	var got []body
	for _, m := range w.Stored(len(want)) {
		got = append(got, body{string(m.Body), m.Header.Get(envelope.HeaderPayload) == "null"})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bodies (-want +got):\n%s", diff)
	}
	for _, d := range w.Dead(4) {
		if d.Reason != "invalid_headers_json" {
			t.Errorf("the dead letter's reason is %q, want invalid_headers_json", d.Reason)
		}
	}
	relay.Stop(fixture.Patience)
}
