package router_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/internal/router"
)

func pattern(t testing.TB, subject string, types ...string) router.Pattern {
	t.Helper()
	r, err := router.New(router.Config{
		Source: "shop", Tables: []router.Table{{Schema: "public", Name: "outbox"}},
		Routes: []router.Route{{Stream: "SHOP", Subject: subject, EventTypes: types}},
	})
	if err != nil {
		t.Fatal(err)
	}
	list := r.Patterns()
	if len(list) != 1 {
		t.Fatalf("Patterns() of %q gives %d, want 1", subject, len(list))
	}
	return list[0]
}

func TestWhatStreamsTakeOfARoute(t *testing.T) {
	t.Parallel()
	const all, some, none = router.CoversAll, router.CoversSome, router.CoversNone
	for _, c := range []struct {
		subject string
		types   []string
		filter  string // the narrowest
		streams []string
		want    router.Coverage
	}{
		{"", nil, "outbox.shop.>", []string{"outbox.shop.>"}, all},
		{"", nil, "outbox.shop.>", []string{"outbox.>"}, all},
		{"", nil, "outbox.shop.>", []string{">"}, all},
		{"", nil, "outbox.shop.>", []string{"outbox.shop.*.>"}, all}, // both values are one token at least
		{"", nil, "outbox.shop.>", []string{"outbox.shop.*.*"}, some},
		{"", nil, "outbox.shop.>", []string{"outbox.shop.order.>", "outbox.shop.mail.>"}, some},
		{"", nil, "outbox.shop.>", []string{"outbox.shop.order"}, none}, // one token too few
		{"", nil, "outbox.shop.>", []string{"outbox.other.>"}, none},
		{"", nil, "outbox.shop.>", nil, none},
		{"ev.{event_type}", []string{"order.placed"}, "ev.order.placed", []string{"ev.order.*"}, all},
		{"ev.{event_type}", []string{"order.placed"}, "ev.order.placed", []string{"ev.*"}, none},
		{"ev.{token(event_type)}", []string{"order.placed"}, "ev.order%2Eplaced", []string{"ev.*"}, all},
		{"ev.{token(aggregate_id)}.x", nil, "ev.*.x", []string{"ev.*.x"}, all},
		{"ev.{token(aggregate_id)}.x", nil, "ev.*.x", []string{"ev.*.y"}, none},
		{"ev.{token(aggregate_id)}.x", nil, "ev.*.x", []string{"ev.1.x"}, some},
		{"ev.{partition(16)}.{aggregate_type}", nil, "ev.*.>", []string{"ev.*.>"}, all},
		{"ev.{aggregate_type}.end", nil, "ev.>", []string{"ev.*.*.end"}, some},
		{"ev.{aggregate_type}.end", nil, "ev.>", []string{"ev.end"}, none},
		{"ev.{aggregate_type}.end", nil, "ev.>", []string{"ev.*.other"}, none},
		{"ev.a{aggregate_type}", nil, "ev.>", []string{"ev.>"}, all},
		{"{raw(event_type)}", nil, ">", []string{"ev.>"}, some},
		{"{source}.{schema}.{table}", nil, "shop.public.outbox", []string{"shop.public.outbox"}, all},
	} {
		p := pattern(t, c.subject, c.types...)
		if got := p.Filter(); got != c.filter {
			t.Errorf("Filter() of %q %q = %q, want %q", c.subject, c.types, got, c.filter)
		}
		if got := p.Covered(c.streams); got != c.want {
			t.Errorf("Covered(%q) of %q %q = %d, want %d", c.streams, c.subject, c.types, got, c.want)
		}
	}
}

// What a route makes of any row is within its filter, and what is said of
// streams holds for it.
func TestARowsSubjectIsWhatThePatternSays(t *testing.T) {
	t.Parallel()
	tokens := rapid.SampledFrom([]string{"a", "b", "a.b", "b.a", "a.b.a"})
	rapid.Check(t, func(t *rapid.T) {
		template := rapid.SampledFrom([]string{"{aggregate_type}.{event_type}", "a.{aggregate_type}", "{aggregate_type}.b.{event_type}", "{event_type}.b"}).Draw(t, "template")
		filter := rapid.SampledFrom([]string{">", "a.>", "*.b", "a.*.>", "*.b.*", "a.b", "*.*.b.>", "a.*", "b"}).Draw(t, "filter")
		aggregate, event := tokens.Draw(t, "aggregate type"), tokens.Draw(t, "event type")
		subject := map[string]string{
			"{aggregate_type}.{event_type}":   aggregate + "." + event,
			"a.{aggregate_type}":              "a." + aggregate,
			"{aggregate_type}.b.{event_type}": aggregate + ".b." + event,
			"{event_type}.b":                  event + ".b",
		}[template]
		r, err := router.New(router.Config{
			Source: "shop", Tables: []router.Table{{Schema: "public", Name: "outbox"}}, Routes: []router.Route{{Stream: "SHOP", Subject: template}},
		})
		if err != nil {
			t.Fatal(err)
		}
		takes := router.MatchesFilter(filter, subject)
		switch got := r.Patterns()[0].Covered([]string{filter}); {
		case got == router.CoversAll && !takes:
			t.Errorf("filter %q is said to take all of %q and does not take %q", filter, template, subject)
		case got == router.CoversNone && takes:
			t.Errorf("filter %q is said to take none of %q and takes %q", filter, template, subject)
		}
	})
}
