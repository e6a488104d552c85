package router_test

import (
	"strings"
	"testing"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/router"
)

// FuzzRoute holds that a row of any content is refused with a reason or makes
// a message that arrives as it is.
func FuzzRoute(f *testing.F) {
	f.Add("1", "order", "42", "order.placed", "ev.a", `{"a": 1}`, `{}`)
	f.Add("", "$JS", "\r\n", "..", "$JS.API.X", `\x00`, `{"Nats-Rollup":"all"}`)
	f.Add("a\nb", "_INBOX", " ", "*", "ev..a", "", `{"a":{"b":[1,"\u00e9\ud83d\ude00"]},"A":null,"c":-1.5e3}`)
	templates := []string{"{event_type}", "ev.{token(aggregate_type)}.{aggregate_id}", "{raw(topic)}"}
	f.Fuzz(func(t *testing.T, id, aggregateType, aggregateID, eventType, topic, payload, headers string) {
		for i, template := range templates {
			r := newRouter(t, config(subject(template), extraColumn("topic", ""), func(c *router.Config) { c.CloudEvents = i == 1 }))
			out := route(t, r, outbox(
				val("id", oidText, id), val("aggregate_type", oidText, aggregateType), val("aggregate_id", oidText, aggregateID),
				val("event_type", oidText, eventType), val("topic", oidText, topic),
				val("payload", []uint32{oidText, oidBytea, oidJSON}[i], payload), val("headers", oidJSON, headers),
			))
			if out.StreamIndex != 0 {
				t.Fatalf("StreamIndex = %d, want 0", out.StreamIndex)
			}
			switch out.Verdict {
			case router.Publish:
			case router.Refused:
				if out.Refusal.Reason == "" || out.Refusal.Detail == "" {
					t.Fatalf("refused without a reason: %+v", out.Refusal)
				}
				continue
			case router.Skip, router.Unrouted, router.NotOutbox:
				t.Fatalf("verdict = %s", out.Verdict)
			}
			if strings.ContainsAny(out.Message.Subject, " \t\r\n\x00*>") || len(out.Message.Subject) > router.MaxSubject {
				t.Fatalf("illegal subject %q", out.Message.Subject)
			}
			h, size := overTheWire(t, out.Message)
			if size != out.Message.HeaderBytes || len(h) != len(out.Message.Headers) {
				t.Fatalf("the client writes %d bytes of %d headers, want %d of %d", size, len(h), out.Message.HeaderBytes, len(out.Message.Headers))
			}
			e, err := envelope.Read(h.Get)
			if err != nil || e.ID != out.Message.MsgID || e.AggregateID != aggregateID || e.EventType != eventType {
				t.Fatalf("Read = %+v, %v", e, err)
			}
		}
	})
}
