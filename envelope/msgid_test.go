package envelope_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
)

const someUUID = "0192f7a4-5f0e-7c3a-9d5e-2f1c8b7a6e5d"

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestA48EachIdHasItsOwnMessageID(t *testing.T) {
	t.Parallel()
	const scope = "shop:walrelay.outbox:"
	for _, c := range []struct {
		id   string
		uuid bool
		want string
	}{
		{someUUID, true, someUUID},
		{someUUID, false, scope + someUUID},
		{"17", false, scope + "17"},
		{"a.b~c_d-E", false, scope + "a.b~c_d-E"},
		{" ", false, scope + "%20"},
		{"  sp ", false, scope + "%20%20sp%20"},
		{"a\nb", false, scope + "a%0Ab"},
		{"a b", false, scope + "a%20b"},
		{"é", false, scope + "%C3%A9"},
		{"a:b", false, scope + "a%3Ab"},
		{"a%3Ab", false, scope + "a%253Ab"},
		{"sha256:00", false, scope + "sha256%3A00"},
		{strings.Repeat("x", 512), false, scope + strings.Repeat("x", 512)},
		{strings.Repeat("x", 513), false, scope + "sha256:" + digest(strings.Repeat("x", 513))},
		{strings.Repeat(" ", 171), false, scope + "sha256:" + digest(strings.Repeat(" ", 171))},
	} {
		got := envelope.MsgID("shop", "walrelay.outbox", c.id, c.uuid)
		if got != c.want {
			t.Errorf("MsgID of %.30q = %.80q, want %.80q", c.id, got, c.want)
		}
	}
	if got, want := envelope.MsgID("a:b", "s.t:u", "1", false), "a%3Ab:s.t%3Au:1"; got != want {
		t.Errorf("MsgID = %q, want %q", got, want)
	}
	if got := string(envelope.AppendMsgID([]byte("x"), "s", "t", strings.Repeat("y", 600), false)); !strings.HasPrefix(got, "xs:t:sha256:") {
		t.Errorf("AppendMsgID overwrites what is there: %q", got)
	}
}

func TestAMessageIDComesBack(t *testing.T) {
	t.Parallel()
	part := rapid.StringN(1, -1, -1)
	rapid.Check(t, func(t *rapid.T) {
		source, table, id := part.Draw(t, "source"), part.Draw(t, "table"), part.Draw(t, "id")
		s := envelope.MsgID(source, table, id, false)
		got, err := envelope.ParseMsgID(s)
		want := envelope.ParsedMsgID{Source: source, Table: table, ID: id}
		if err == nil && got.Digest != "" {
			want.ID, want.Digest = "", digest(id)
		}
		if err != nil || got != want {
			t.Errorf("ParseMsgID(%q) = %+v, %v, want %+v", s, got, err, want)
		}
		if strings.ContainsAny(s, " \r\n\t\x00") {
			t.Errorf("MsgID = %q has blanks or control characters", s)
		}
	})
}

func TestAMalformedMessageIDIsRefused(t *testing.T) {
	t.Parallel()
	if got, err := envelope.ParseMsgID(someUUID); err != nil || got != (envelope.ParsedMsgID{ID: someUUID}) {
		t.Errorf("ParseMsgID of a uuid = %+v, %v", got, err)
	}
	for _, s := range []string{
		"", "a:b", ":b:c", "a::c", "a:b:", "a:b:c:d", "a:b:%", "a:b:%2", "a:b:%zz", "a%x:b:c", "a:b:sha256:", "a:b:sha256:00", "a:b:sha256:" + strings.Repeat("g", 64),
	} {
		if got, err := envelope.ParseMsgID(s); err == nil {
			t.Errorf("ParseMsgID(%q) = %+v, want an error", s, got)
		}
	}
}
