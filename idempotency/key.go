package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// longestKey is the longest key that Key gives, in bytes: what the stricter
// providers take.
const longestKey = 255

// Key names a fact: what is done, then what it is done for, such as
// Key("receipt-mail", orderID) for receipt-mail:42. Distinct parts never give
// the same key: all but letters, digits and - _ . is percent-encoded, so that
// every key is fit for a header. A key that would be longer than 255 bytes ends
// in the SHA-256 of the whole instead.
//
// Never put in what differs between attempts, such as the time of sending.
func Key(fact string, parts ...string) string {
	var b strings.Builder
	escape(&b, fact)
	for _, part := range parts {
		b.WriteByte(':')
		escape(&b, part)
	}
	key := b.String()
	if len(key) <= longestKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	// No escaped part has an equals sign, so that this is no other key.
	tail := "=" + hex.EncodeToString(sum[:])
	return key[:longestKey-len(tail)] + tail
}

func escape(b *strings.Builder, s string) {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&0xF])
		}
	}
}

// WebhookKey names an inbound webhook that brings no id of its own: by its
// source, such as the provider and the account, by its content, and by when it
// happened. A repeat whose JSON has other blanks, another order of keys or
// another spelling of a number has the same key.
//
// timestamp is the provider's, of the event and not of the delivery; it keeps
// two facts of the same content apart. Zero where there is none.
//
// A body that is no JSON, or whose canonical form would lose something (a
// number of more digits than a double holds, a repeated name), is taken byte
// for byte: two facts must not have one key.
func WebhookKey(source string, body []byte, timestamp time.Time) string {
	form := "json"
	content, exact, err := canonical(body)
	if err != nil || !exact {
		form, content = "bytes", body
	}
	at := ""
	if !timestamp.IsZero() {
		at = timestamp.UTC().Format("20060102T150405.999999999Z")
	}
	sum := sha256.Sum256(content)
	return Key("webhook", source, at, form, hex.EncodeToString(sum[:]))
}
