package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
)

// I1, I3: each kind at its place between good rows, over a kill of the relay.
func TestAPoisonRowOfEachKindBetweenGoodOnesHoldsUpNone(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: shortDuplicates})
	w.Exec(`ALTER TABLE walrelay.outbox DROP CONSTRAINT outbox_headers_object`)
	w.Exec("INSERT INTO e2e.aggregate VALUES ('a1')")
	var want []string
	for _, kind := range []struct{ headers, payload, reason string }{
		{`'{"Nats-Rollup": "all"}'`, `'{}'`, "reserved_header"},
		{`'{"a b": "v"}'`, `'{}'`, "invalid_header"},
		{`'{"a": "1", "A": "2"}'`, `'{}'`, "duplicate_header"},
		{`'[]'`, `'{}'`, "invalid_headers_json"},
		{`jsonb_build_object('h', repeat('x', 70000))`, `'{}'`, "headers_too_large"},
		{`'{}'`, `to_jsonb(repeat('x', 1048576))`, "too_large"},
	} {
		w.Exec(`SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', '') FROM generate_series(1, 20);
			INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, headers, payload) VALUES ('order', 'a1', 'placed', ` + kind.headers + `, ` + kind.payload + `);
			SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', '') FROM generate_series(1, 20)`)
		want = append(want, kind.reason)
	}
	relay := w.Start()
	w.AwaitRecorded(uint64(1 + w.Random("instant").IntN(200)))
	relay.Kill()
	relay = w.Start()
	w.Check()
	w.Stored(240)
	var got []string
	for _, d := range w.Dead(len(want)) {
		got = append(got, d.Reason)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons of the dead letters (-want +got):\n%s", diff)
	}
	relay.Stop(fixture.Patience)
}

// I1, I3, I6, I10: very many of one kind are a wrong setting, which an operator
// mends or accepts.
func TestAThousandPoisonRowsOfOneKindHoldDeliveryUntilTheyAreAccepted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		every int // every nth row is poison
		most  int // dead letters before delivery waits
	}{
		{"in a row", 1, 20},
		{"between good ones", 2, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t, fixture.Config{Flags: observed()})
			relay := w.Start()
			addr := adminOf(t, relay.Text)
			w.Place(1)
			w.Stored(1)
			w.Exec(`SELECT e2e.place(gen_random_uuid(), 'a1', 'placed', '', CASE WHEN i % $1::int = 0 THEN '{"Nats-Rollup": "all"}' ELSE '{}' END::jsonb)
				FROM generate_series(1, $2::int) AS i`, c.every, 1000*c.every)
			w.Place(1)
			good := 2 + 1000*(c.every-1)
			awaitReadiness(t, addr, http.StatusServiceUnavailable, "reserved_header")
			letters := w.Dead(c.most)
			_, why := fetch(t, addr, "/readyz")
			named := 0
			rows, err := w.Rows(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rows {
				if strings.Contains(why, r.ID) {
					named++
				}
			}
			if named == 0 || !strings.Contains(why, "walrelay deadletters accept --reason reserved_header") {
				t.Errorf("/readyz names %d events, want some, and the command: %s", named, why)
			}
			if !strings.Contains(why, fmt.Sprint(len(letters)+1)) {
				t.Errorf("/readyz does not say how many were refused: %s", why)
			}

			// Neither time nor a restart lets more through; the slot stays held.
			held, err := envelope.ParsePosition(letters[0].Position)
			if err != nil {
				t.Fatal(err)
			}
			instant(t.Context(), 2500*time.Millisecond)
			w.Dead(c.most)
			relay.Kill()
			relay = w.Start()
			addr = adminOf(t, relay.Text)
			awaitReadiness(t, addr, http.StatusServiceUnavailable, "reserved_header")
			if now := w.SlotAt(); now > held.Commit {
				t.Errorf("the confirmed LSN is %s, beyond the transaction at %s in which delivery waits", now, held)
			}
			if got, err := w.LastSeq(t.Context()); err != nil || got >= uint64(good) {
				t.Errorf("%d messages are stored, %v; want fewer than %d while delivery waits", got, err, good)
			}

			if err := deadletter.Accept(t.Context(), w.Pool, "walrelay", w.Source, "reserved_header", "test"); err != nil {
				t.Fatal(err)
			}
			w.Stored(good)
			w.Dead(1000)
			awaitReadiness(t, addr, http.StatusOK, "ready")
			w.Check()
			relay.Stop(fixture.Patience)
		})
	}
}
