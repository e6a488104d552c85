package envelope_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay/envelope"
)

func getter(headers map[string]string) func(string) string {
	return func(name string) string { return headers[name] }
}

func TestReadGivesWhatTheHeadersSay(t *testing.T) {
	t.Parallel()
	got, err := envelope.Read(getter(map[string]string{
		"Nats-Msg-Id":             "wire-2",
		"Walrelay-Event-Id":       someUUID,
		"Walrelay-Source":         "shop",
		"Walrelay-Position":       "2/16/B374D848/7",
		"Walrelay-Committed-At":   "2026-01-02T03:04:05.678Z",
		"Walrelay-Origin":         "replay/12",
		"Walrelay-Mark":           "2/16/B374D900/0",
		"Walrelay-Late":           "1",
		"Walrelay-Aggregate-Type": "order",
		"Walrelay-Aggregate-Id":   "50%25",
		"Walrelay-Event-Type":     "order.placed",
		"Walrelay-Created-At":     "infinity",
		"Walrelay-Payload":        "null",
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := envelope.Event{
		ID: someUUID, Source: "shop",
		Position: envelope.Position{Epoch: 2, Commit: 0x16B374D848, Index: 7}, HasPosition: true,
		AggregateType: "order", AggregateID: "50%", EventType: "order.placed", CreatedAt: "infinity",
		CommittedAt: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC),
		Origin:      "replay/12", Mark: envelope.Position{Epoch: 2, Commit: 0x16B374D900},
		Late: true, NullPayload: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	if got.Live() {
		t.Error("a replayed event is live")
	}
}

func TestReadTakesAMessageOfLeanHeaders(t *testing.T) {
	t.Parallel()
	got, err := envelope.Read(getter(map[string]string{"Nats-Msg-Id": someUUID}))
	if diff := cmp.Diff(envelope.Event{ID: someUUID}, got); diff != "" || err != nil {
		t.Errorf("error %v, event (-want +got):\n%s", err, diff)
	}
	if !got.Live() {
		t.Error("an event without origin is not live")
	}
}

func TestReadReportsAllThatIsMalformed(t *testing.T) {
	t.Parallel()
	got, err := envelope.Read(getter(map[string]string{
		"Walrelay-Source":       "shop",
		"Walrelay-Position":     "16/B374D848",
		"Walrelay-Mark":         "x",
		"Walrelay-Committed-At": "yesterday",
		"Walrelay-Aggregate-Id": "50%",
		"Walrelay-Event-Type":   "order.placed",
	}))
	if err == nil {
		t.Fatal("Read takes it")
	}
	for _, want := range []string{"Nats-Msg-Id", "Walrelay-Position", "Walrelay-Mark", "Walrelay-Committed-At", "Walrelay-Aggregate-Id"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
	if diff := cmp.Diff(envelope.Event{Source: "shop", EventType: "order.placed"}, got); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}

func TestA56ReservedNamesAreKnownInAnyCase(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"Nats-Rollup": true, "nats-msg-id": true, "NATS-": true, "Walrelay-X": true, "walrelay-position": true,
		"Status": true, "STATUS": true, "Description": true,
		"": false, "Nats": false, "X-Nats-Rollup": false, "traceparent": false, "Status-Code": false,
	} {
		if got := envelope.Reserved(name); got != want {
			t.Errorf("Reserved(%q) = %t, want %t", name, got, want)
		}
	}
}
