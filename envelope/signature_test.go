package envelope_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
)

func newKey(t *testing.T, kind, id string) envelope.Key {
	t.Helper()
	k, err := envelope.NewKey(kind, id)
	if err != nil {
		t.Fatalf("NewKey(%q, %q): %v", kind, id, err)
	}
	return k
}

// signed gives the headers of a message as they arrive.
func signed(k envelope.Key, subject, id string, headers []envelope.Header, body []byte) map[string][]string {
	all := map[string][]string{envelope.HeaderMsgID: {id}, envelope.HeaderExpectedLastSeq: {"17"}}
	for _, h := range headers {
		all[h.Name] = append(all[h.Name], h.Value)
	}
	all[envelope.HeaderSignature] = []string{k.Sign(subject, id, headers, body)}
	return all
}

var signedHeaders = []envelope.Header{
	{Name: envelope.HeaderSource, Value: "shop"},
	{Name: envelope.HeaderPosition, Value: "1/0/16B3748/0"},
	{Name: envelope.HeaderAggregateID, Value: "42"},
	{Name: envelope.HeaderEventType, Value: "placed"},
	{Name: "tenant", Value: "a"},
}

// Whoever changes anything that a consumer acts on needs the key.
func TestASignatureFitsOnlyWhatWasSigned(t *testing.T) {
	t.Parallel()
	const subject, id = "outbox.shop.order.placed", "0192f7a4-5f0e-7c3a-9d5e-2f1c8b7a6e5d"
	body := []byte(`{"amount": 5}`)
	for _, kind := range []string{envelope.KindHMAC, envelope.KindEd25519} {
		k := newKey(t, kind, "k1")
		verifiers := []envelope.Key{newKey(t, kind, "old"), k.Public()}
		if err := envelope.Verify(verifiers, subject, signed(k, subject, id, signedHeaders, body), body); err != nil {
			t.Errorf("%s: Verify of what was signed: %v", kind, err)
		}
		if err := envelope.Verify(verifiers, "outbox.shop.order.paid", signed(k, subject, id, signedHeaders, body), body); !errors.Is(err, envelope.ErrBadSignature) {
			t.Errorf("%s: Verify on another subject: %v, want %v", kind, err, envelope.ErrBadSignature)
		}
		if err := envelope.Verify(verifiers, subject, signed(k, subject, id, signedHeaders, body), []byte(`{"amount": 6}`)); !errors.Is(err, envelope.ErrBadSignature) {
			t.Errorf("%s: Verify of another body: %v, want %v", kind, err, envelope.ErrBadSignature)
		}
		for name, c := range map[string]struct {
			change func(h map[string][]string)
			want   error
		}{
			"another id":              {func(h map[string][]string) { h[envelope.HeaderMsgID] = []string{"other"} }, envelope.ErrBadSignature},
			"an event id beside it":   {func(h map[string][]string) { h[envelope.HeaderEventID] = []string{"other"} }, envelope.ErrBadSignature},
			"two ids":                 {func(h map[string][]string) { h[envelope.HeaderMsgID] = append(h[envelope.HeaderMsgID], "other") }, envelope.ErrBadSignature},
			"no id":                   {func(h map[string][]string) { delete(h, envelope.HeaderMsgID) }, envelope.ErrBadSignature},
			"another position":        {func(h map[string][]string) { h[envelope.HeaderPosition] = []string{"1/0/16B3748/1"} }, envelope.ErrBadSignature},
			"no position":             {func(h map[string][]string) { delete(h, envelope.HeaderPosition) }, envelope.ErrBadSignature},
			"another type":            {func(h map[string][]string) { h[envelope.HeaderEventType] = []string{"paid"} }, envelope.ErrBadSignature},
			"another source":          {func(h map[string][]string) { h[envelope.HeaderSource] = []string{"bank"} }, envelope.ErrBadSignature},
			"another header":          {func(h map[string][]string) { h["tenant"] = []string{"b"} }, envelope.ErrBadSignature},
			"a header more":           {func(h map[string][]string) { h["role"] = []string{"admin"} }, envelope.ErrBadSignature},
			"a value moved to a name": {func(h map[string][]string) { delete(h, "tenant"); h["tenan"] = []string{"ta"} }, envelope.ErrBadSignature},
			"another expectation":     {func(h map[string][]string) { h[envelope.HeaderExpectedLastSeq] = []string{"18"} }, nil},
			"a header of the server":  {func(h map[string][]string) { h["Nats-Stream"] = []string{"OTHER"} }, nil},
			"no signature":            {func(h map[string][]string) { delete(h, envelope.HeaderSignature) }, envelope.ErrUnsigned},
			"two signatures": {func(h map[string][]string) {
				h[envelope.HeaderSignature] = append(h[envelope.HeaderSignature], h[envelope.HeaderSignature]...)
			}, envelope.ErrBadSignature},
			"an empty one":          {func(h map[string][]string) { h[envelope.HeaderSignature] = []string{""} }, envelope.ErrBadSignature},
			"one of another format": {func(h map[string][]string) { h[envelope.HeaderSignature] = []string{"v2 k1 AAAA"} }, envelope.ErrBadSignature},
			"one that is no base64": {func(h map[string][]string) { h[envelope.HeaderSignature] = []string{"v1 k1 ####"} }, envelope.ErrBadSignature},
			"an empty signature":    {func(h map[string][]string) { h[envelope.HeaderSignature] = []string{"v1 k1 "} }, envelope.ErrBadSignature},
			"an unknown key":        {func(h map[string][]string) { h[envelope.HeaderSignature] = []string{"v1 k9 AAAA"} }, envelope.ErrUnknownKey},
			"the name of another key": {func(h map[string][]string) {
				h[envelope.HeaderSignature] = []string{strings.Replace(h[envelope.HeaderSignature][0], " k1 ", " old ", 1)}
			}, envelope.ErrBadSignature},
		} {
			h := signed(k, subject, id, signedHeaders, body)
			c.change(h)
			if err := envelope.Verify(verifiers, subject, h, body); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("%s: Verify with %s: %v, want %v", kind, name, err, c.want)
			}
		}
	}
}

// What is between the parts cannot be moved from one to the next, in whatever
// order headers come.
func TestNoTwoMessagesHaveOneSignature(t *testing.T) {
	t.Parallel()
	k := newKey(t, envelope.KindHMAC, "k1")
	part := rapid.StringMatching(`[ab:,0-9]{0,4}`)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) (subject, id string, headers []envelope.Header, body []byte) {
			for _, name := range rapid.SliceOfNDistinct(part, 0, 3, rapid.ID[string]).Draw(t, label+" names") {
				headers = append(headers, envelope.Header{Name: "h" + name, Value: part.Draw(t, label+" value")})
			}
			return part.Draw(t, label+" subject"), part.Draw(t, label+" id"), headers, []byte(part.Draw(t, label+" body"))
		}
		subject, id, headers, body := draw("first")
		subject2, id2, headers2, body2 := draw("second")
		as := func(headers []envelope.Header) map[string]string {
			out := map[string]string{}
			for _, h := range headers {
				out[h.Name] = h.Value
			}
			return out
		}
		same := subject == subject2 && id == id2 && string(body) == string(body2) && maps.Equal(as(headers), as(headers2))
		if got := k.Sign(subject, id, headers, body) == k.Sign(subject2, id2, headers2, body2); got != same {
			t.Fatalf("signatures are the same: %v, messages: %v", got, same)
		}
		slices.Reverse(headers)
		if err := envelope.Verify([]envelope.Key{k}, subject, signed(k, subject, id, headers, body), body); err != nil {
			t.Fatal(err)
		}
	})
}

// Signs between the parts do not pass for the parts.
func TestWhatLooksLikeABoundaryIsNone(t *testing.T) {
	t.Parallel()
	k := newKey(t, envelope.KindHMAC, "k1")
	for _, c := range [][2]struct{ subject, id string }{
		{{"a,:b", "c"}, {"a", "b,:c"}},
		{{"a,1:b", "c"}, {"a", "b,1:c"}},
		{{"ab", "c"}, {"a", "bc"}},
	} {
		if k.Sign(c[0].subject, c[0].id, nil, nil) == k.Sign(c[1].subject, c[1].id, nil, nil) {
			t.Errorf("%q and %q have one signature", c[0], c[1])
		}
	}
}

// I10: a key file that is wrong is explained by line, and never shown.
func TestAKeyFileIsReadOrExplained(t *testing.T) {
	t.Parallel()
	const secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I=" // 32 bytes
	keys, err := envelope.ParseKeys([]byte("# of May\n\nk1 hmac-sha256 " + secret + "\r\nk2  ed25519\t" + secret + "\n"))
	if err != nil || len(keys) != 2 || keys[0].ID != "k1" || keys[1].ID != "k2" {
		t.Errorf("ParseKeys = %v, %v, want k1 and k2", keys, err)
	}
	for text, want := range map[string]string{
		"":                           "no key",
		"# k1 hmac-sha256 " + secret: "no key",
		secret:                       "line 1: want an id, a kind and base64",
		"k1 hmac " + secret:          "line 1: the kind is not",
		"k/1 hmac-sha256 " + secret:  "line 1: the id is not",
		"\nk1 hmac-sha256 ????":      "line 2: the key is not base64",
		"k1 hmac-sha256 c2hvcnQ=":    "line 1: the secret has 5 bytes; use 16 or more",
		"k1 ed25519 c2hvcnQ=":        "line 1: the seed has 5 bytes, want 32",
		"k1 ed25519-public c2hvcnQ=": "line 1: the public key has 5 bytes, want 32",
		"k1 hmac-sha256 " + secret + "\nk1 ed25519 " + secret: "line 2: the id is that of an earlier line",
	} {
		if _, err := envelope.ParseKeys([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("ParseKeys(%q): %v, want %q and no secret", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"k1 hmac-sha256 " + secret + "\nk2 hmac-sha256 " + secret: "2 keys",
		"k1 ed25519-public " + secret:                             "a public key does not sign",
	} {
		if _, err := envelope.ParseSigningKey([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSigningKey(%q): %v, want %q", text, err, want)
		}
	}
	for _, k := range keys {
		again, err := envelope.ParseSigningKey([]byte(k.Line()))
		if err != nil || again.Line() != k.Line() {
			t.Errorf("ParseSigningKey of the line of %v: %v, %v", k, again, err)
		}
		if text := fmt.Sprintf("%v %+v %s %#v", k, k, k, []envelope.Key{k}); strings.Contains(text, "secret") || strings.Contains(text, "115 101") {
			t.Errorf("a printed key shows its secret: %s", text)
		}
	}
}

// The reserve is what the relay leaves room for.
func TestASignatureKeepsWithinItsReserve(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{envelope.KindHMAC, envelope.KindEd25519} {
		k := newKey(t, kind, strings.Repeat("k", 32))
		if n := len(envelope.HeaderSignature) + len(": \r\n") + len(k.Sign("s", "id", nil, nil)); n > envelope.SignatureReserve {
			t.Errorf("a signature of %s takes %d bytes, more than the reserve of %d", kind, n, envelope.SignatureReserve)
		}
	}
}

func ExampleVerify() {
	key, _ := envelope.ParseSigningKey([]byte("k1 hmac-sha256 MDEyMzQ1Njc4OWFiY2RlZg==\n"))
	body := []byte(`{"amount": 5}`)
	headers := map[string][]string{
		"Nats-Msg-Id":          {"17"},
		"Walrelay-Signature":   {key.Sign("outbox.shop.placed", "17", nil, body)},
		"Nats-Expected-Stream": {"SHOP"},
	}
	keys, _ := envelope.ParseKeys([]byte("k1 hmac-sha256 MDEyMzQ1Njc4OWFiY2RlZg==\n"))
	fmt.Println(headers["Walrelay-Signature"][0])
	fmt.Println(envelope.Verify(keys, "outbox.shop.placed", headers, body))
	fmt.Println(envelope.Verify(keys, "outbox.shop.placed", headers, []byte(`{"amount": 500}`)))
	// Output:
	// v1 k1 tqIAW1iUp0DBSQCFxFCKJZ8n4hAMRqWwUrTCKThMWEI
	// <nil>
	// signature does not fit the message
}
