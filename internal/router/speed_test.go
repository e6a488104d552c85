package router_test

import (
	"testing"

	"github.com/walrelay/walrelay/internal/router"
)

func TestAnEventAllocatesNothing(t *testing.T) {
	for name, cfg := range map[string]router.Config{
		"default":     config(),
		"cloudevents": config(func(c *router.Config) { c.CloudEvents = true }),
		"partition":   config(subject("ev.{partition(16)}.{token(aggregate_id)}")),
	} {
		r := newRouter(t, cfg)
		var out router.Routed
		for row, r2 := range map[string]*router.Row{
			"no headers":  outbox(),
			"traceparent": outbox(val("headers", oidJSONB, `{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`)),
			"bytea":       outbox(val("payload", oidBytea, `\x00ff00ff`), val("id", oidInt8, "123456")),
		} {
			n := testing.AllocsPerRun(100, func() {
				if err := r.Route(r2, &out); err != nil || out.Verdict != router.Publish {
					t.Fatalf("Route = %v, %s", err, out.Verdict)
				}
			})
			if n != 0 {
				t.Errorf("%s, %s: %v allocations an event, want 0", name, row, n)
			}
		}
	}
}

func BenchmarkRoute(b *testing.B) {
	r := newRouter(b, config())
	for name, row := range map[string]*router.Row{
		"headers=none":  outbox(),
		"headers=trace": outbox(val("headers", oidJSONB, `{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`)),
	} {
		b.Run(name, func(b *testing.B) {
			var out router.Routed
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Route(row, &out); err != nil || out.Verdict != router.Publish {
					b.Fatal(err, out.Verdict)
				}
			}
		})
	}
}
