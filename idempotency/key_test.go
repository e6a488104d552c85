package idempotency_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/idempotency"
)

func TestKeysAreReadable(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"receipt-mail:42": idempotency.Key("receipt-mail", "42"),
		"a%3Ab:":          idempotency.Key("a:b", ""),
		"a:b:":            idempotency.Key("a", "b", ""),
		"a%20%C3%A9%25":   idempotency.Key("a é%"),
	} {
		if got != want {
			t.Errorf("Key = %s, want %s", got, want)
		}
	}
}

func TestDistinctPartsNeverCollide(t *testing.T) {
	t.Parallel()
	part := rapid.OneOf(rapid.StringMatching(`[ab:%=]{0,3}`), rapid.StringMatching(`x{250,260}[ab]`))
	parts := rapid.SliceOfN(part, 1, 4)
	rapid.Check(t, func(t *rapid.T) {
		a, b := parts.Draw(t, "a"), parts.Draw(t, "b")
		keyA, keyB := idempotency.Key(a[0], a[1:]...), idempotency.Key(b[0], b[1:]...)
		if (keyA == keyB) != slices.Equal(a, b) {
			t.Fatalf("Key(%q) = %s and Key(%q) = %s", a, keyA, b, keyB)
		}
		// A hashed key given as a part is not the hashed key.
		if again := idempotency.Key(keyA); strings.Contains(keyA, "=") && again == keyA {
			t.Fatalf("Key(%q) = itself", keyA)
		}
		if len(keyA) > 255 {
			t.Fatalf("Key(%q) has %d bytes, want at most 255", a, len(keyA))
		}
	})
}

func TestTheSameWebhookHasTheSameKey(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	key := func(source, body string, at time.Time) string {
		return idempotency.WebhookKey(source, []byte(body), at)
	}
	first := key("stripe", `{"a":1.0,"b":[2]}`, at)
	for name, same := range map[string]string{
		"blanks and order": key("stripe", "{ \"b\": [2],\n\"a\": 1 }", at),
		"escapes":          key("stripe", `{"\u0061":1e0,"b":[2]}`, at),
		"zone":             key("stripe", `{"a":1,"b":[2]}`, at.In(time.FixedZone("", 7200))),
	} {
		if same != first {
			t.Errorf("%s: key %s, want %s", name, same, first)
		}
	}
	different := map[string]string{"": first}
	for name, other := range map[string]string{
		"source":          key("paypal", `{"a":1,"b":[2]}`, at),
		"body":            key("stripe", `{"a":1,"b":[3]}`, at),
		"time":            key("stripe", `{"a":1,"b":[2]}`, at.Add(1)),
		"no time":         key("stripe", `{"a":1,"b":[2]}`, time.Time{}),
		"form":            key("stripe", `a=1&b=2`, at),
		"other form":      key("stripe", `a=1&b=3`, at),
		"A26 long number": key("stripe", `{"n":12345678901234567890}`, at),
		"A26 next number": key("stripe", `{"n":12345678901234567891}`, at),
		"A26 fraction":    key("stripe", `{"n":0.1}`, at),
		"A26 more digits": key("stripe", `{"n":0.1000000000000000055}`, at),
		"huge exponent":   key("stripe", `{"n":1e-99999999999999999999}`, at),
		"small exponent":  key("stripe", `{"n":1e-400}`, at),
		"repeated name":   key("stripe", `{"n":1,"n":2}`, at),
		"other repeated":  key("stripe", `{"n":2,"n":2}`, at),
		"zero":            key("stripe", `{"n":0}`, at),
	} {
		for known, k := range different {
			if k == other {
				t.Errorf("%q and %q have the same key %s", name, known, k)
			}
		}
		different[name] = other
	}
}
