package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// A30: names that need quotes, everywhere at once, and a mistake in their case.
func TestA30QuotedMixedCaseAndOddNames(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	w.Exec(`CREATE SCHEMA "My Schema";
		CREATE TABLE "My Schema"."Out.Box" ("Id" text PRIMARY KEY, "Topic" text, "select" text, "ключ" text, "Body" json);
		CREATE TABLE "Out.Box" ("Id" text PRIMARY KEY);
		CREATE PUBLICATION "My""Pub'1" FOR TABLE "My Schema"."Out.Box" WITH (publish = 'insert')`)
	tables := func(name string) string {
		return fmt.Sprintf(`[{name: '"My Schema"."%s"', columns: {id: Id, aggregate_type: Topic, aggregate_id: "ключ", event_type: select, payload: Body}}]`, name)
	}
	// The publication has to be older than the slot.
	w.Exec("SELECT pg_drop_replication_slot($1)", w.Source)
	w.Exec("DELETE FROM walrelay.proven")
	relay := w.Start("--publication", `My"Pub'1`, "--tables", tables("out.box"))
	reason := relay.Await("waiting", fixture.Patience)
	if want := `there is a table "My Schema"."Out.Box"`; !strings.Contains(reason, want) {
		t.Errorf("reason for a wrong case is %q, want it to hold %q", reason, want)
	}
	relay.Kill()
	w.Start("--publication", `My"Pub'1`, "--tables", tables("Out.Box")).Await("relaying", fixture.Patience)
	w.Exec(`INSERT INTO "My Schema"."Out.Box" VALUES ('a.b c', 'Order', 'Placed.Now', 'schlüssel', '{"x":  1}')`)
	m := w.Stored(1)[0]
	if want := "outbox." + w.Source + ".Order.Placed.Now"; m.Subject != want || string(m.Body) != `{"x":  1}` {
		t.Errorf("message is %s %s, want subject %s and the body to the letter", m.Subject, m.Body, want)
	}
}

// The two other forms of a message: without what subject and body tell, and
// with the attributes of CloudEvents.
func TestLeanHeadersAndCloudEvents(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	w.Start("--headers", "lean", "--format", "cloudevents").Await("relaying", fixture.Patience)
	w.Place(1)
	h := w.Stored(1)[0].Header
	for name, want := range map[string]string{"ce-specversion": "1.0", "ce-type": "placed", "ce-id": h.Get("Nats-Msg-Id")} {
		if got := h[name]; len(got) != 1 || got[0] != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"Walrelay-Created-At", "Walrelay-Committed-At"} {
		if h.Get(name) != "" {
			t.Errorf("lean headers have %s", name)
		}
	}
	if h.Get("Walrelay-Position") == "" || h.Get("Walrelay-Source") != w.Source {
		t.Errorf("headers are %v: position and source are needed in every form", h)
	}
	w.Check()
}
