package envelope

import (
	"fmt"
	"unicode/utf8"
)

// Every escape on the wire is the percent-encoding of RFC 3986 with upper-case
// digits: %2E is a dot. The forms differ only in which bytes they leave as
// they are. Each encodes the percent sign itself, so that distinct values have
// distinct forms and [Unescape] reads them all.

// Token gives s as one token of a subject: letters, digits, underscore and
// hyphen stay, every other byte becomes %XX, dots too. It is what {token(x)}
// in a subject template writes. The empty string has no token.
func Token(s string) string { return string(AppendToken(nil, s)) }

// AppendToken appends [Token] of s to b.
func AppendToken(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; tokenByte(c) {
			b = append(b, c)
		} else {
			b = appendPercent(b, c)
		}
	}
	return b
}

// Tokens gives s as one or more tokens of a subject. Like [Token], but a dot
// stays where it separates two tokens; at either end and beside another dot,
// where it would make an empty one, it is %2E. It is what {x} in a subject
// template writes: a consumer of event type t listens on Tokens(t).
func Tokens(s string) string { return string(AppendTokens(nil, s)) }

// AppendTokens appends [Tokens] of s to b.
func AppendTokens(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case tokenByte(c):
			b = append(b, c)
		case c == '.' && i > 0 && s[i-1] != '.' && i+1 < len(s) && s[i+1] != '.':
			b = append(b, c)
		default:
			b = appendPercent(b, c)
		}
	}
	return b
}

// Value gives s as the value of one of walrelay's own headers. Only what a
// client or server would change on the way is escaped: control characters,
// the percent sign, and a blank at either end.
func Value(s string) string { return string(AppendValue(nil, s)) }

// AppendValue appends [Value] of s to b.
func AppendValue(b []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		if c < 0x20 || c == 0x7F || c == '%' || c == ' ' && (i == 0 || i == len(s)-1) {
			b = appendPercent(b, c)
		} else {
			b = append(b, c)
		}
	}
	return b
}

// Verbatim says whether a header value arrives as it is: valid UTF-8 with no
// control character and no blank at either end. Clients trim values and turn
// line breaks into blanks without a word.
func Verbatim(s string) bool {
	if s == "" {
		return true
	}
	if s[0] == ' ' || s[len(s)-1] == ' ' {
		return false
	}
	ascii := true
	for i := range len(s) {
		c := s[i]
		if c < 0x20 || c == 0x7F {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return ascii || utf8.ValidString(s)
}

// Unescape reads a value that [Token], [Tokens], [Value] or the id part of
// [MsgID] wrote. It fails where a percent sign is not followed by two
// hexadecimal digits.
func Unescape(s string) (string, error) {
	plain := 0
	for plain < len(s) && s[plain] != '%' {
		plain++
	}
	if plain == len(s) {
		return s, nil
	}
	b := make([]byte, plain, len(s))
	copy(b, s)
	for i := plain; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) || unhex(s[i+1]) < 0 || unhex(s[i+2]) < 0 {
			return "", fmt.Errorf("byte %d: a percent sign must be followed by two hexadecimal digits", i)
		}
		b = append(b, byte(unhex(s[i+1])<<4|unhex(s[i+2]))) //nolint:gosec // two hexadecimal digits are a byte
		i += 2
	}
	return string(b), nil
}

func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

func appendPercent(b []byte, c byte) []byte {
	const digits = "0123456789ABCDEF"
	return append(b, '%', digits[c>>4], digits[c&0xF])
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
