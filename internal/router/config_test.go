package router_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/router"
)

func TestAllProblemsOfAConfigurationAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := router.New(router.Config{
		Source: "my shop",
		Tables: []router.Table{
			{Schema: "walrelay", Name: "outbox", Columns: router.Columns{Extra: map[string]string{"topic": "X-Topic", "id": "", "t2": "nats-x", "t3": "x-topic", "t4": "a b"}}},
			{Schema: "walrelay", Name: "outbox"},
			{Schema: "a.b", Name: "c"},
			{Name: "c"},
		},
		Routes: []router.Route{
			{Table: "walrelay.outbux", Stream: "A"},
			{Stream: "A.B"},
			{Stream: "C", Subject: "ev.{topik}", EventTypes: []string{""}},
			{Stream: "C", Subject: "ev.{topic"},
			{Stream: "C", Subject: "$JS.{topic}"},
			{Stream: "C", Subject: "ev..{topic}"},
			{Stream: "C", Subject: "ev.{partition(0)}"},
			{Stream: "C", Subject: "ev.{lower(topic)}"},
			{Stream: "C", Headers: []envelope.Header{{Name: "x-topic", Value: "a"}, {Name: "Walrelay-X"}, {Name: "d", Value: "hidden\n"}, {Name: "D"}}},
		},
	})
	if err == nil {
		t.Fatal("New takes it")
	}
	for _, want := range []string{
		"source:", `"my shop"`, "tables[0].columns.extra[id]", "tables[0].columns.extra[t2]", "tables[0].columns.extra[topic]", "tables[0].columns.extra[t4]",
		"tables[1]", "is there twice", "tables[2]", "tables[3]",
		`routes[0].table: "walrelay.outbux"`, "routes[1].stream", "routes[2].event_types", `nearest: "topic"`,
		"routes[3].subject", "routes[4].subject", "routes[5].subject", "routes[6].subject", "routes[7].subject", `function "lower"`,
		"routes[8].headers[x-topic]", "routes[8].headers[Walrelay-X]", "routes[8].headers[d]", "routes[8].headers[D]", "routes[8]: ", "never reached",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q", want)
		}
	}
	if strings.Contains(err.Error(), "hidden") {
		t.Error("the error shows a header value")
	}
	var ce *router.ConfigError
	if !errors.As(err, &ce) || ce.Field == "" || ce.Problem == "" || ce.Fix == "" {
		t.Errorf("the error is no complete ConfigError: %+v", ce)
	}
	if t.Failed() {
		t.Log(err)
	}
	if _, err = router.New(router.Config{}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("New(Config{}) = %v, want three problems", err)
	}
}

func TestColumnsHaveDefaults(t *testing.T) {
	t.Parallel()
	extra := map[string]string{"a": "b"}
	if got := (router.Columns{Extra: extra}).Effective(); got.Seq != "seq" || got.Extra["a"] != "b" {
		t.Errorf("Effective of nothing but further columns = %+v", got)
	}
	got := router.Columns{Payload: "body"}.Effective()
	if got.Payload != "body" || got.ID != "id" || got.Headers != "" || got.CreatedAt != "" {
		t.Errorf("Effective of a mapped payload = %+v", got)
	}
}

func TestTheHashChangesWithWhatDecidesAboutMessages(t *testing.T) {
	t.Parallel()
	base := newRouter(t, config()).Hash()
	// Fixed: a release that changes it reports a change of every user's routes.
	if want := "2ebe200843673169e97d9e1126d260dcd18f51ee7f3125f42be34bf9b83cbe5c"; base != want {
		t.Errorf("Hash = %s, want %s", base, want)
	}
	for name, same := range map[string]func(*router.Config){
		"source":          func(c *router.Config) { c.Source = "other" },
		"default subject": subject(router.DefaultSubject),
		"own columns":     func(c *router.Config) { c.Tables[0].Columns = router.Own() },
	} {
		if got := newRouter(t, config(same)).Hash(); got != base {
			t.Errorf("%s changes the hash", name)
		}
	}
	seen := map[string]string{base: "nothing"}
	for name, other := range map[string]func(*router.Config){
		"subject": subject("ev.x"),
		"stream":  func(c *router.Config) { c.Routes[0].Stream = "B" },
		"types":   func(c *router.Config) { c.Routes[0].EventTypes = []string{"x"} },
		"skip":    func(c *router.Config) { c.Routes[0].Skip = true },
		"headers": func(c *router.Config) { c.Routes[0].Headers = []envelope.Header{{Name: "a", Value: "b"}} },
		"columns": func(c *router.Config) { c.Tables[0].Columns = router.Debezium() },
		"extra":   extraColumn("a", "b"),
		"lean":    func(c *router.Config) { c.Lean = true },
		"ce":      func(c *router.Config) { c.CloudEvents = true },
	} {
		got := newRouter(t, config(other)).Hash()
		if before, ok := seen[got]; ok {
			t.Errorf("%s and %s have the same hash", name, before)
		}
		seen[got] = name
	}
}
