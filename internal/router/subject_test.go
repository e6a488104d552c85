package router_test

import (
	"hash/fnv"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/router"
)

func TestATemplateWritesItsValues(t *testing.T) {
	t.Parallel()
	h := fnv.New32a()
	_, _ = h.Write([]byte("42"))
	part := strconv.Itoa(int(h.Sum32() % 16))
	for template, want := range map[string]string{
		"":                                     "outbox.shop.order.order.placed",
		"ev.{event_type}":                      "ev.order.placed",
		"ev.{token(event_type)}":               "ev.order%2Eplaced",
		"ev.{raw(event_type)}":                 "ev.order.placed",
		"{source}.{schema}.{table}":            "shop.walrelay.outbox",
		"ev.{aggregate_type}-{aggregate_id}.x": "ev.order-42.x",
		"ev.{partition(16)}.{id}":              "ev." + part + "." + someUUID,
		"ev.{partition(1)}":                    "ev.0",
		"{tenant}.ev":                          "acme.ev",
	} {
		r := newRouter(t, config(subject(template), extraColumn("tenant", "")))
		m := published(t, r, outbox(val("tenant", oidText, "acme")))
		if m.Subject != want {
			t.Errorf("subject of template %q = %q, want %q", template, m.Subject, want)
		}
		if len(m.Headers) == 0 || m.Headers[0].Name != envelope.HeaderMsgID {
			t.Errorf("the first header is not %s", envelope.HeaderMsgID)
		}
	}
}

func TestA53AndA54ATemplateEscapesWhatASubjectCannotHold(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config(subject("ev.{event_type}")))
	one := newRouter(t, config(subject("ev.{token(event_type)}")))
	for _, c := range []struct{ in, tokens, token string }{
		{"a b", "a%20b", "a%20b"},
		{"a\tb", "a%09b", "a%09b"},
		{"ev.a\r\nPUB x 0", "ev.a%0D%0APUB%20x%200", "ev%2Ea%0D%0APUB%20x%200"},
		{"a\n", "a%0A", "a%0A"},
		{"a\x00b", "a%00b", "a%00b"},
		{"a..b", "a%2E%2Eb", "a%2E%2Eb"},
		{".a", "%2Ea", "%2Ea"},
		{"a.", "a%2E", "a%2E"},
		{"a.*", "a.%2A", "a%2E%2A"},
		{">", "%3E", "%3E"},
		{`"a"`, "%22a%22", "%22a%22"},
		{"é", "%C3%A9", "%C3%A9"},
		{"A.b", "A.b", "A%2Eb"},
		{"50%", "50%25", "50%25"},
		{"$JS.API.STREAM.PURGE.X", "%24JS.API.STREAM.PURGE.X", "%24JS%2EAPI%2ESTREAM%2EPURGE%2EX"},
	} {
		row := outbox(val("event_type", oidText, c.in))
		if got := published(t, r, row).Subject; got != "ev."+c.tokens {
			t.Errorf("{event_type} of %q = %q, want %q", c.in, got, "ev."+c.tokens)
		}
		if got := published(t, one, row).Subject; got != "ev."+c.token {
			t.Errorf("{token(event_type)} of %q = %q, want %q", c.in, got, "ev."+c.token)
		}
	}
}

func TestA53AndA54AReadyMadeSubjectIsCheckedAndNeverChanged(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config(subject("{raw(topic)}"), extraColumn("topic", "")))
	for _, s := range []string{"ev.a", "EV.a", "ev.é.日本", "ev.a-b_c:d/e=f%20", "a", strings.Repeat("t", 200), strings.Repeat("t", router.MaxSubject)} {
		if got := published(t, r, outbox(val("topic", oidText, s))).Subject; got != s {
			t.Errorf("subject = %q, want %q", got, s)
		}
	}
	for _, s := range []string{
		"", "ev.a b", "ev.a\tb", "ev.a\r\nPUB x 0", "ev.a\n", " ev.a", "ev.a\x00", "ev.a\x7f",
		"ev..a", "ev.a.", ".ev.a", "ev.", ".", "ev.*", "ev.>", ">", "*", "ev.a*b", `"ev.a"`, "ev.\u2028a", "ev.\xff",
	} {
		out := refused(t, r, outbox(val("topic", oidText, s)), router.ReasonInvalidSubject)
		if out.Message.Subject != "" {
			t.Errorf("the illegal subject %q is in the message", s)
		}
		if out.Stream != "SHOP" || out.StreamIndex != 0 {
			t.Errorf("stream of a refused row = %q, %d, want SHOP, 0", out.Stream, out.StreamIndex)
		}
	}
	refused(t, r, outbox(null("topic", oidText)), router.ReasonInvalidSubject)
}

func TestA52ALongSubjectIsRefused(t *testing.T) {
	t.Parallel()
	ready := newRouter(t, config(subject("{raw(topic)}"), extraColumn("topic", "")))
	escaped := newRouter(t, config(subject("{topic}"), extraColumn("topic", "")))
	for _, n := range []int{router.MaxSubject + 1, 4000, 5000, 40000} {
		row := outbox(val("topic", oidText, strings.Repeat("t", n)))
		refused(t, ready, row, router.ReasonSubjectTooLong)
		refused(t, escaped, row, router.ReasonSubjectTooLong)
	}
	// The limit is on what is sent: 400 blanks are 1200 bytes.
	out := refused(t, escaped, outbox(val("topic", oidText, strings.Repeat(" ", 400))), router.ReasonSubjectTooLong)
	if len(out.Refusal.Detail) > 500 {
		t.Errorf("the detail repeats the whole subject: %d bytes", len(out.Refusal.Detail))
	}
	published(t, ready, outbox(val("topic", oidText, "good")))
}

func TestA55ASubjectThatTalksToTheServerIsRefused(t *testing.T) {
	t.Parallel()
	ready := newRouter(t, config(subject("{raw(topic)}"), extraColumn("topic", "")))
	escaped := newRouter(t, config(subject("{topic}"), extraColumn("topic", "")))
	for _, s := range []string{
		"$JS.API.STREAM.PURGE.EVENTS", "$JS.API.STREAM.DELETE.EVENTS", "$SYS.REQ.x", "$JS.ACK.x", "$x",
		"_INBOX.x", "_INBOX", "_inbox.x", "_INBOX_service.x", "_WALRELAY.x", "_R_.x", "_GR_.x",
	} {
		row := outbox(val("topic", oidText, s))
		refused(t, ready, row, router.ReasonReservedSubject)
		if strings.HasPrefix(s, "_") {
			refused(t, escaped, row, router.ReasonReservedSubject)
			continue
		}
		if got := published(t, escaped, row).Subject; !strings.HasPrefix(got, "%24") {
			t.Errorf("subject of %q = %q, want an escaped dollar sign", s, got)
		}
	}
	for _, s := range []string{"a.$JS.x", "a._INBOX.x", "_x.y"} {
		published(t, ready, outbox(val("topic", oidText, s)))
	}
}

func TestAnEmptyTypeIsRefusedWhereItWouldMakeAnEmptyToken(t *testing.T) {
	t.Parallel()
	r := newRouter(t, config())
	for _, column := range []string{"aggregate_type", "event_type"} {
		refused(t, r, outbox(val(column, oidText, "")), router.ReasonInvalidSubject)
		refused(t, r, outbox(null(column, oidText)), router.ReasonInvalidSubject)
	}
}

// TestDistinctValuesHaveDistinctLegalSubjects holds for whatever a row says.
func TestDistinctValuesHaveDistinctLegalSubjects(t *testing.T) {
	t.Parallel()
	forms := []*router.Router{
		newRouter(t, config(subject("{event_type}"))),
		newRouter(t, config(subject("{token(event_type)}"))),
		newRouter(t, config(subject("{raw(event_type)}"))),
	}
	// Few characters, chosen for their effect, make collisions likely.
	value := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune(".%2E*> $_INBOX-a\x00é\n"))))
	rapid.Check(t, func(rt *rapid.T) {
		a, b := value.Draw(rt, "a"), value.Draw(rt, "b")
		for i, r := range forms {
			subjects := [2]string{}
			for j, v := range []string{a, b} {
				out := route(t, r, outbox(val("event_type", oidText, v)))
				switch out.Verdict {
				case router.Publish:
					checkLegal(rt, out.Message.Subject)
					subjects[j] = strings.Clone(out.Message.Subject)
				case router.Refused:
				case router.Skip, router.Unrouted, router.NotOutbox:
					rt.Fatalf("verdict of %q = %s", v, out.Verdict)
				}
			}
			if a != b && subjects[0] != "" && subjects[0] == subjects[1] {
				rt.Errorf("form %d: %q and %q have the same subject %q", i, a, b, subjects[0])
			}
			if i < 2 && subjects[0] != "" {
				if back, err := envelope.Unescape(subjects[0]); err != nil || back != a {
					rt.Errorf("form %d: Unescape(%q) = %q, %v, want %q", i, subjects[0], back, err, a)
				}
			}
		}
	})
}

// What was found good is remembered; nothing was when the first row comes.
func TestTheFirstSubjectIsCheckedAsAnyOther(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"", "placed", "a b"} {
		r := newRouter(t, config(subject("{raw(event_type)}")))
		for _, v := range []string{first, "placed", "placed", "", "a b", "placed"} {
			out := route(t, r, outbox(val("event_type", oidText, v)))
			if good := out.Verdict == router.Publish; good != (v == "placed") {
				t.Errorf("first %q, then %q: verdict %s of subject %q", first, v, out.Verdict, out.Message.Subject)
			}
		}
	}
}

// checkLegal is written apart from the code it checks.
func checkLegal(t rapid.TB, s string) {
	if len(s) > 1024 || strings.ContainsAny(s, " \t\r\n\x00*>\"") {
		t.Fatalf("illegal subject %q", s)
	}
	parts := strings.Split(s, ".")
	for _, p := range parts {
		if p == "" {
			t.Fatalf("subject %q has an empty token", s)
		}
	}
	if s[0] == '$' || strings.HasPrefix(strings.ToUpper(parts[0]), "_INBOX") {
		t.Fatalf("reserved subject %q", s)
	}
}
