package walrelay

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/router"
)

func TestTheIDOfARowIsReadFromItsEvents(t *testing.T) {
	t.Parallel()
	const uuid = "0195d2f0-0000-7000-8000-000000000001"
	for _, c := range []struct {
		id   string
		uuid bool
		ok   bool
	}{{uuid, true, true}, {"42", false, true}, {"a:b %41", false, true}, {"ü", false, true}, {"", true, false}} {
		event := envelope.MsgID("s", "public.t", c.id, c.uuid)
		if got, ok := rowID(event); got != c.id || ok != c.ok {
			t.Errorf("rowID(%q) = %q, %v; want %q, %v", event, got, ok, c.id, c.ok)
		}
	}
}

// I4: what a letter keeps of a row makes the same message again.
func TestALetterIsRoutedToTheMessageThatItsRowWouldHaveBeen(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1000) // its event has only a hash of it
	for name, kinds := range map[string][2]uint32{"uuid and jsonb": {2950, 3802}, "number and bytea": {20, oidBytea}, "text": {25, 25}} {
		columns := Columns{
			ID: "key", AggregateType: "kind", AggregateID: "entity", EventType: "type", Payload: "body", Headers: "head", CreatedAt: "made",
			Extra: map[string]string{"tenant": "Tenant", "region": ""},
		}
		cfg, err := (Config{
			DatabaseURL: "postgres://x/y", NATS: "nats://x", Subject: "a.{aggregate_type}.{token(region)}.{token(id)}", CloudEvents: true,
			Tables: []Table{{Schema: "public", Name: "events", Columns: columns}},
		}).withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		routes, err := newRouter(&cfg)
		if err != nil {
			t.Fatal(err)
		}
		table := &letterTable{columns: router.Columns(columns), bytea: kinds[1] == oidBytea, relation: &decode.Relation{Schema: "public", Name: "events"}}
		for _, c := range []string{"key", "kind", "entity", "type", "body", "head", "made", "tenant", "region"} {
			column := decode.Column{Name: c, TypeOID: 25}
			switch c {
			case "key":
				column.TypeOID = kinds[0]
			case "body":
				column.TypeOID = kinds[1]
			}
			table.relation.Columns = append(table.relation.Columns, column)
		}
		id := map[uint32]string{2950: "0195d2f0-0000-7000-8000-000000000001", 20: "42", 25: long}[kinds[0]]
		body := map[uint32]string{3802: `{"a": 1}`, oidBytea: `\x00ff41`, 25: ""}[kinds[1]]
		for _, null := range []string{"", "head", "body", "tenant", "made"} {
			row := router.Row{Relation: table.relation, Position: envelope.Position{Epoch: 1, Commit: 2, Index: 3}}
			for i, v := range []string{id, "order", "7", "placed", body, `{"trace": "t"}`, "2026-01-02 03:04:05+00", "acme", "eu"} {
				value := decode.Value{Kind: decode.Text, Data: []byte(v)}
				if table.relation.Columns[i].Name == null {
					value = decode.Value{Kind: decode.Null}
				}
				row.Tuple = append(row.Tuple, value)
			}
			again := router.Row{Relation: table.relation, Position: row.Position}
			var routed router.Routed
			if err := routes.Route(&row, &routed); err != nil || routed.Verdict != router.Publish {
				t.Fatalf("%s: Route = %v (%s), %v; want publish", name, routed.Verdict, routed.Refusal.Detail, err)
			}
			want := describe(&routed)
			letter := letterOfRow(routes, &row, &routed)
			for _, c := range table.relation.Columns {
				again.Tuple = append(again.Tuple, table.value(&letter, c.Name))
			}
			if err := routes.Route(&again, &routed); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, describe(&routed)); diff != "" {
				t.Errorf("%s, %q null: the message of the letter differs from its row's (-row +letter):\n%s", name, null, diff)
			}
		}
	}
}

// describe is a copy of all that is published.
func describe(r *router.Routed) []string {
	list := []string{strings.Clone(r.Message.Subject), strings.Clone(r.Message.MsgID), string(r.Message.Body)}
	for _, h := range r.Message.Headers {
		list = append(list, h.Name+": "+strings.Clone(h.Value))
	}
	return list
}
