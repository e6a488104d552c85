package envelope_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
)

func TestEachEscapeLeavesWhatItsPlaceAllows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, token, tokens, value string }{
		{"", "", "", ""},
		{"order.placed", "order%2Eplaced", "order.placed", "order.placed"},
		{"order_line-1", "order_line-1", "order_line-1", "order_line-1"},
		{"a..b", "a%2E%2Eb", "a%2E%2Eb", "a..b"},
		{".a.", "%2Ea%2E", "%2Ea%2E", ".a."},
		{"a b", "a%20b", "a%20b", "a b"},
		{" a ", "%20a%20", "%20a%20", "%20a%20"},
		{"*.>", "%2A%2E%3E", "%2A.%3E", "*.>"},
		{"100%", "100%25", "100%25", "100%25"},
		{"a\r\nb\x7f", "a%0D%0Ab%7F", "a%0D%0Ab%7F", "a%0D%0Ab%7F"},
		{"é", "%C3%A9", "%C3%A9", "é"},
	} {
		if got := envelope.Token(c.in); got != c.token {
			t.Errorf("Token(%q) = %q, want %q", c.in, got, c.token)
		}
		if got := envelope.Tokens(c.in); got != c.tokens {
			t.Errorf("Tokens(%q) = %q, want %q", c.in, got, c.tokens)
		}
		if got := envelope.Value(c.in); got != c.value {
			t.Errorf("Value(%q) = %q, want %q", c.in, got, c.value)
		}
	}
}

func TestUnescapeReadsEveryEscape(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		for name, escape := range map[string]func(string) string{"Token": envelope.Token, "Tokens": envelope.Tokens, "Value": envelope.Value} {
			if got, err := envelope.Unescape(escape(s)); err != nil || got != s {
				t.Errorf("Unescape(%s(%q)) = %q, %v", name, s, got, err)
			}
		}
		if v := envelope.Value(s); !envelope.Verbatim(v) {
			t.Errorf("Value(%q) = %q does not arrive as it is", s, v)
		}
	})
	if got, err := envelope.Unescape("%e9%E9"); err != nil || got != "\xe9\xe9" {
		t.Errorf("Unescape takes no lower case: %q, %v", got, err)
	}
	for _, s := range []string{"%", "%2", "a%", "a%2x", "%%20"} {
		if got, err := envelope.Unescape(s); err == nil {
			t.Errorf("Unescape(%q) = %q, want an error", s, got)
		}
	}
}

func TestVerbatimKnowsWhatClientsChange(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "a", "a b", "日本", `{"a": 1}`} {
		if !envelope.Verbatim(s) {
			t.Errorf("Verbatim(%q) = false", s)
		}
	}
	for _, s := range []string{" ", " a", "a ", "a\tb", "a\nb", "a\rb", "\x00", "\x7f", "\xff"} {
		if envelope.Verbatim(s) {
			t.Errorf("Verbatim(%q) = true", s)
		}
	}
}
