package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// A poison is a row that is good but for one value.
type poison struct {
	kind    any    // event type, the subject where the template takes it raw
	headers string // JSON
	payload string // JSON
	reason  string // of the dead letter; empty where the row is stored
}

// mixed writes each row between good ones and demands that each poison row has
// its dead letter, in order, and that all others are stored, in order.
func mixed(t *testing.T, w *fixture.World, good string, rows []poison) {
	t.Helper()
	relay := w.Start()
	insert := func(p poison) {
		w.Exec("INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', 'a1', $1, $2, $3)",
			p.kind, orElse(p.payload, "{}"), orElse(p.headers, "{}"))
	}
	var stored, refused int
	var want []string
	insert(poison{kind: good})
	for _, p := range rows {
		insert(p)
		if p.reason == "" {
			stored++
		} else {
			refused++
			want = append(want, p.reason)
		}
		insert(poison{kind: good})
	}
	w.Check()
	w.Stored(1 + len(rows) + stored)
	var got []string
	for _, d := range w.Dead(refused) {
		got = append(got, d.Reason)
		if d.Error == "" || d.Position == "" {
			t.Errorf("dead letter %d says neither why nor where: %+v", d.Number, d)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons of the dead letters (-want +got):\n%s", diff)
	}
	relay.Stop(fixture.Patience)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// rawSubjects is a world whose rows bring ready-made subjects under ev.
func rawSubjects(t *testing.T) *fixture.World {
	t.Helper()
	w := fixture.New(t, fixture.Config{
		Flags:  []string{"--subject", "{raw(event_type)}"},
		Stream: func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{"ev.>", "EV.>"}; cfg.AllowRollup = true },
	})
	w.Exec("ALTER TABLE walrelay.outbox DROP CONSTRAINT outbox_event_type_length, ALTER event_type DROP NOT NULL")
	return w
}

func TestA51AnEventThatIsTooLargeIsADeadLetterAndTheOthersFlow(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	filler := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	w := fixture.New(t, fixture.Config{})
	mixed(t, w, "placed", []poison{
		{kind: "big", payload: filler(mib - 4096)},
		{kind: "big", payload: filler(mib - 76), reason: "too_large"},
		{kind: "big", payload: filler(mib), reason: "too_large"},
		{kind: "big", payload: filler(10 * mib), reason: "too_large"},
		{kind: "big", payload: filler(20), headers: `{"h": ` + filler(70000) + `}`, reason: "headers_too_large"},
	})
	letters := w.Dead(4)
	if letters[0].Payload == nil || letters[2].Payload != nil || letters[2].Size != 10*mib {
		t.Errorf("the dead letters hold %d bytes of %d and %d bytes of %d, want the first whole and of the third the size alone",
			len(letters[0].Payload), letters[0].Size, len(letters[2].Payload), letters[2].Size)
	}
}

func TestA51TheStreamsOwnLimitIsKnown(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{Stream: func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 5000 }})
	mixed(t, w, "placed", []poison{
		{kind: "big", payload: `"` + strings.Repeat("x", 4000) + `"`},
		{kind: "big", payload: `"` + strings.Repeat("x", 5000) + `"`, reason: "too_large"},
	})
}

func TestA52ALongSubjectIsADeadLetterAndTheConnectionStays(t *testing.T) {
	t.Parallel()
	w := rawSubjects(t)
	mixed(t, w, "ev.good", []poison{
		{kind: "ev." + strings.Repeat("x", 200)},
		{kind: "ev." + strings.Repeat("x", 4000), reason: "subject_too_long"},
		{kind: "ev." + strings.Repeat("x", 5000), reason: "subject_too_long"},
		{kind: "ev." + strings.Repeat("x", 40000), reason: "subject_too_long"},
	})
}

func TestA53ASubjectWithBlanksOrControlCharactersIsADeadLetter(t *testing.T) {
	t.Parallel()
	w := rawSubjects(t)
	rows := []poison{{kind: "", reason: "invalid_subject"}, {kind: nil, reason: "invalid_subject"}}
	for _, subject := range []string{"ev.a b", "ev.a\tb", "ev.a\r\nPUB x 0", "ev.a\n", " ev.a", "ev.a\x7f", "ev.a\x01"} {
		rows = append(rows, poison{kind: subject, reason: "invalid_subject"})
	}
	mixed(t, w, "ev.good", rows)
}

func TestA54ASubjectOfAnImpossibleShapeIsADeadLetterAndNoOutage(t *testing.T) {
	t.Parallel()
	w := rawSubjects(t)
	rows := []poison{{kind: "ev.é.日本"}, {kind: "EV.a"}}
	for _, subject := range []string{"ev..a", "ev.a.", ".ev.a", `"ev.a"`, "ev.*", "ev.>", "ev.", ">", "*.a"} {
		rows = append(rows, poison{kind: subject, reason: "invalid_subject"})
	}
	mixed(t, w, "ev.good", rows)
}

func TestA55ASubjectThatTalksToTheServerIsADeadLetter(t *testing.T) {
	t.Parallel()
	w := rawSubjects(t)
	var rows []poison
	for _, subject := range []string{
		"$JS.API.STREAM.PURGE." + w.StreamName, "$JS.API.STREAM.DELETE." + w.StreamName, "$SYS.REQ.x", "_INBOX.x", "$JS.ACK.x", "$KV.a.b",
	} {
		rows = append(rows, poison{kind: subject, reason: "reserved_subject"})
	}
	mixed(t, w, "ev.good", rows)
}

func TestA56AHeaderThatCommandsTheStreamIsADeadLetter(t *testing.T) {
	t.Parallel()
	w := rawSubjects(t)
	var rows []poison
	for _, name := range []string{"Nats-Rollup", "Nats-Msg-Id", "nats-msg-id", "Nats-Expected-Stream", "Walrelay-Position", "Status"} {
		rows = append(rows, poison{kind: "ev.a", headers: fmt.Sprintf(`{%q: "all"}`, name), reason: "reserved_header"})
	}
	mixed(t, w, "ev.good", rows)
}

func TestA57HeadersThatCannotGoOnTheWireAreDeadLetters(t *testing.T) {
	t.Parallel()
	w := fixture.New(t, fixture.Config{})
	rows := []poison{
		{kind: "fine", headers: `{"empty": "", "japanese": "日本", "number": 1234567890123456789, "true": true}`},
		{kind: "twice", headers: `{"a": "1", "A": "2"}`, reason: "duplicate_header"},
	}
	for _, name := range []string{``, `a b`, `a:b`, `clé`, `日本`, `a\r\nb`, `X/Y`} {
		rows = append(rows, poison{kind: "name", headers: `{"` + name + `": "v"}`, reason: "invalid_header"})
	}
	for _, value := range []string{`v\r\nNats-Msg-Id: 1`, ` x `} {
		rows = append(rows, poison{kind: "value", headers: `{"a": "` + value + `"}`, reason: "invalid_header"})
	}
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf(`"h%d": "v"`, i))
	}
	rows = append(rows, poison{kind: "many", headers: "{" + strings.Join(many, ", ") + "}"})
	mixed(t, w, "placed", rows)
	for _, m := range w.Stored(1 + len(rows) + 2) {
		if m.Event.EventType == "fine" && (m.Header.Get("number") != "1234567890123456789" || m.Header.Get("japanese") != "日本") {
			t.Errorf("headers of the good row are %v", m.Header)
		}
	}
}
