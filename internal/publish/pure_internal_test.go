package publish

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
)

func TestAnswersAreReadForWhatTheySay(t *testing.T) {
	t.Parallel()
	p := newAckParser("EV")
	for name, c := range map[string]struct {
		data   string
		header nats.Header
		want   ack
	}{
		"stored":         {data: `{"stream":"EV", "seq":42}`, want: ack{kind: ackStored, seq: 42}},
		"with domain":    {data: `{"stream":"EV","domain":"hub","seq":42}`, want: ack{kind: ackStored, seq: 42}},
		"largest number": {data: `{"stream":"EV", "seq":18446744073709551615}`, want: ack{kind: ackStored, seq: 1<<64 - 1}},
		"duplicate":      {data: `{"stream":"EV", "seq":7,"duplicate": true}`, want: ack{kind: ackDuplicate, seq: 7}},
		"other stream":   {data: `{"stream":"EVIL", "seq":7}`, want: ack{kind: ackOther, stream: "EVIL"}},
		"error": {
			data: `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"EV","seq":0}`,
			want: ack{kind: ackError, err: &APIError{Code: 10071, Description: "wrong last sequence: 3"}},
		},
		"no sequence":   {data: `{"stream":"EV"}`, want: ack{kind: ackOther, stream: "EV"}},
		"nothing":       {data: ``, want: ack{kind: ackOther}},
		"no responders": {header: nats.Header{"Status": {"503"}}, want: ack{kind: ackNoResponders}},
		"no answer":     {data: `hello`, want: ack{kind: ackOther}},
	} {
		if diff := cmp.Diff(c.want, p.parse(c.header, []byte(c.data)), cmp.AllowUnexported(ack{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// I6: unknown errors are never permanent. The table is the one of what the
// server was seen to answer.
func TestErrorCodesHaveTheirClass(t *testing.T) {
	t.Parallel()
	want := map[int]Class{
		10054: ClassPermanent, 10097: ClassPermanent, 10166: ClassPermanent, 10165: ClassPermanent,
		10071: ClassResync, 10164: ClassResync, 10158: ClassResync, 10163: ClassResync,
		10077: ClassEnvironment, 10060: ClassEnvironment, 10070: ClassEnvironment, 10023: ClassEnvironment,
		10047: ClassEnvironment, 10028: ClassEnvironment, 10002: ClassEnvironment, 10008: ClassEnvironment,
		10009: ClassEnvironment, 10118: ClassEnvironment, 10109: ClassEnvironment, 10167: ClassEnvironment,
		10059: ClassEnvironment, 10039: ClassEnvironment, 10076: ClassEnvironment, 99999: ClassEnvironment, 0: ClassEnvironment,
	}
	for code, class := range want {
		if got := Classify(code); got != class {
			t.Errorf("Classify(%d) = %v, want %v", code, got, class)
		}
	}
}

func TestASubjectFilterMatchesAsTheServerDoes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		filter, subject string
		want            bool
	}{
		{"ev.>", "ev.a", true},
		{"ev.>", "ev.a.b", true},
		{"ev.>", "ev", false},
		{"ev.*", "ev.a", true},
		{"ev.*", "ev.a.b", false},
		{"ev.*.c", "ev.b.c", true},
		{"ev", "ev", true},
		{"ev", "ev.a", false},
		{">", "x", true},
		{"*.b", "a.c", false},
	} {
		if got := matches(c.filter, c.subject); got != c.want {
			t.Errorf("matches(%q, %q) = %v, want %v", c.filter, c.subject, got, c.want)
		}
	}
}

func TestTheReserveCoversTheChainsHeaders(t *testing.T) {
	t.Parallel()
	size := func(headers ...envelope.Header) int {
		n := 0
		for _, h := range headers {
			n += len(h.Name) + len(": ") + len(h.Value) + len("\r\n")
		}
		return n
	}
	want := size(envelope.Header{Name: envelope.HeaderExpectedStream, Value: "SHOP"},
		envelope.Header{Name: envelope.HeaderExpectedLastSeq, Value: strconv.FormatUint(1<<64-1, 10)})
	if got := HeaderReserve("SHOP"); got != want {
		t.Errorf("HeaderReserve() = %d, want %d", got, want)
	}
}

// A message that goes through the arena comes out as it went in, whatever else
// comes and goes.
func TestHeldMessagesStayWhatTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := window{}
		ts := templates{stream: "EV"}
		var model []Message
		held := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				m := Message{
					Subject: rapid.StringN(1, 20, 40).Draw(t, "subject"), MsgID: rapid.StringN(1, 20, 40).Draw(t, "id"),
					Body: make([]byte, rapid.SampledFrom([]int{0, 1, 300, 30_000, 70_000}).Draw(t, "body")),
				}
				for i := range rapid.IntRange(0, 4).Draw(t, "headers") {
					m.Headers = append(m.Headers, envelope.Header{Name: fmt.Sprint("H", i%3), Value: rapid.String().Draw(t, "value")})
				}
				for i := range m.Body {
					m.Body[i] = byte(len(model) + i)
				}
				w.push(&m, ts.find(m.Headers))
				held += dataLen(&m) + entryBytes
				model = append(model, m)
			},
			"pop": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				held -= dataLen(&model[0]) + entryBytes
				w.stored()
				model = model[1:]
			},
			"": func(t *rapid.T) {
				if w.held() != len(model) || w.bytes != held {
					t.Fatalf("held %d of %d bytes, want %d of %d", w.held(), w.bytes, len(model), held)
				}
				for k := range model {
					want, got := model[k], w.at(w.head+uint64(k)).message()
					if got.Subject != want.Subject || got.MsgID != want.MsgID || !bytes.Equal(got.Body, want.Body) ||
						!slices.Equal(got.Headers, want.Headers) {
						t.Fatalf("message %d = %.200v, want %.200v", k, got, want)
					}
				}
			},
		})
	})
}

// I1, I3: a model of one stream with pipelined publishes, lost answers, lost
// messages, messages that are gone and foreign ones. However the window learns
// of it, it never counts as stored what is not, and what it counts is a prefix.
func TestAResyncCountsNothingThatIsNotStored(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := window{base: 10}
		ts := templates{stream: "EV"}
		headers := func(pos envelope.Position) []envelope.Header {
			return []envelope.Header{{Name: envelope.HeaderSource, Value: "me"}, {Name: envelope.HeaderPosition, Value: pos.String()}}
		}
		n := rapid.IntRange(1, 12).Draw(t, "held")
		for i := range n {
			pos := envelope.Position{Epoch: 1, Commit: 5, Index: uint64(i)}
			m := Message{Subject: "ev.a", MsgID: strconv.Itoa(i), Headers: headers(pos)}
			w.push(&m, ts.find(m.Headers)).pos = pos
		}
		lastSeq := w.base
		stream := map[uint64]int{} // sequence -> our message, -1 foreign
		stored := map[int]bool{}
		foreign := false
		store := func(i int) {
			lastSeq++
			stream[lastSeq] = i
			if i >= 0 {
				stored[i] = true
			}
		}
		for round := range rapid.IntRange(1, 3).Draw(t, "rounds") {
			if round > 0 {
				w.rewind()
			}
			sent := rapid.IntRange(0, w.held()).Draw(t, "sent")
			for range sent {
				if rapid.IntRange(0, 9).Draw(t, "foreign") == 0 {
					store(-1)
					foreign = true
				}
				i := w.next
				expect := w.seq(i) - 1
				number, _ := strconv.Atoi(w.at(i).id())
				w.sent()
				if rapid.IntRange(0, 5).Draw(t, "lost") == 0 {
					continue
				}
				ok := lastSeq == expect
				if ok {
					store(number)
				}
				if rapid.IntRange(0, 3).Draw(t, "answer lost") == 0 {
					continue
				}
				w.answer(w.at(i))
				w.at(i).acked = ok
			}
			gone := rapid.Bool().Draw(t, "some gone")
			w.close()
			places := map[uint64]place{}
			for _, seq := range w.unproven(lastSeq) {
				i, was := stream[seq]
				// Foreign messages stay: one that is gone before it was
				// ever seen cannot be told from one of ours without answer.
				if !was || gone && i >= 0 && rapid.Bool().Draw(t, "gone") {
					places[seq] = place{}
					continue
				}
				p := place{found: true, msg: StoredMessage{Subject: "other", Header: nats.Header{}}}
				if i >= 0 {
					for _, h := range headers(envelope.Position{Epoch: 1, Commit: 5, Index: uint64(i)}) {
						p.msg.Header.Set(h.Name, h.Value)
					}
					p.msg.Header.Set(envelope.HeaderMsgID, strconv.Itoa(i))
				}
				places[seq] = p
			}
			v := w.judge("me", identity{}, lastSeq, places)
			for range v.stored {
				number, _ := strconv.Atoi(w.at(w.head).id())
				if !stored[number] {
					t.Fatalf("message %d counts as stored; the stream has %v", number, stream)
				}
				w.stored()
			}
			if !foreign && (v.foreign > 0 || w.base != lastSeq) {
				t.Fatalf("verdict %+v without a foreign message; base %d, end %d", v, w.base, lastSeq)
			}
			if foreign {
				if v.foreign == 0 && w.base != lastSeq {
					t.Fatalf("verdict %+v: the foreign message was not seen in %v", v, stream)
				}
				for _, pos := range v.missing {
					if stored[int(pos.Index)] {
						t.Fatalf("%v is called missing; the stream has %v", pos, stream)
					}
				}
				return
			}
		}
	})
}

func TestALossIsALowerEndOrAnotherStream(t *testing.T) {
	t.Parallel()
	made := mustTime("2026-01-02T03:04:05Z")
	for _, c := range []struct {
		now  end
		want bool
	}{
		{end{made, 10}, false},
		{end{made, 11}, false},
		{end{made, 9}, true},
		{end{made.Add(1), 10}, true},
	} {
		if got := lost(made, 10, c.now); got != c.want {
			t.Errorf("lost(%v) = %v, want %v", c.now, got, c.want)
		}
	}
}

func TestAnAnswerToAnEarlierRoundIsStale(t *testing.T) {
	t.Parallel()
	w := window{}
	ts := templates{stream: "EV"}
	for i := range 5 {
		m := Message{Subject: "ev.a", MsgID: strconv.Itoa(i)}
		w.push(&m, ts.find(nil))
	}
	w.rewind()
	var old []uint64
	for range 5 {
		old = append(old, w.number(w.next))
		w.sent()
	}
	w.stored()
	w.rewind()
	for range 4 {
		w.sent()
	}
	for _, number := range old {
		if i, ok := w.index(number); ok {
			t.Errorf("number %d of the first round is entry %d of the second", number, i)
		}
	}
	if i, ok := w.index(w.number(3)); !ok || i != 3 {
		t.Errorf("index(number(3)) = %d, %v", i, ok)
	}
}

func mustTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// A51: a stream in files keeps no record beyond 32 MiB, whatever it is set to.
func TestWhatAStreamKeepsAtMostDependsOnItsStorage(t *testing.T) {
	t.Parallel()
	const huge = 64 << 20
	for _, tt := range []struct {
		facts StreamFacts
		want  int
	}{
		{StreamFacts{Storage: "file"}, fileRecordMost},
		{StreamFacts{Storage: "file", MaxMsgSize: 1000}, 1000},
		{StreamFacts{Storage: "file", MaxMsgSize: huge}, fileRecordMost},
		{StreamFacts{Storage: "memory", MaxMsgSize: huge}, huge},
		{StreamFacts{Storage: "memory"}, 0},
	} {
		if got := tt.facts.Largest(); got != tt.want {
			t.Errorf("Largest() of a stream in %s with max_msg_size %d = %d, want %d", tt.facts.Storage, tt.facts.MaxMsgSize, got, tt.want)
		}
	}
}
