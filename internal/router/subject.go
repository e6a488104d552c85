package router

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxSubject is the longest subject in bytes. The server closes the connection
// at a protocol line of 4096 bytes, in which the subject shares the place with
// the reply subject, and the client does not come back from that.
const MaxSubject = 1024

// quoted is at most how much of a name or subject is shown to the operator.
const quoted = 80

// checkSubject says what is wrong with a subject; no reason means nothing. It
// does not rely on the client's own check, which lets through empty tokens,
// wildcards and control characters.
func checkSubject(s string) (Reason, string) {
	if s == "" {
		return ReasonInvalidSubject, "it is empty"
	}
	if len(s) > MaxSubject {
		return ReasonSubjectTooLong, fmt.Sprintf("it has %d bytes, more than %d", len(s), MaxSubject)
	}
	ascii := true
	token := 0 // bytes of the token so far
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '.':
			if token == 0 {
				return ReasonInvalidSubject, fmt.Sprintf("it has an empty token at byte %d", i)
			}
			token = 0
			continue
		case c == '*' || c == '>':
			return ReasonInvalidSubject, fmt.Sprintf("it has the wildcard %q at byte %d", c, i)
		case c == '"':
			return ReasonInvalidSubject, fmt.Sprintf("it has a quotation mark at byte %d", i)
		case c <= ' ' || c == 0x7F:
			return ReasonInvalidSubject, fmt.Sprintf("it has a blank or control character at byte %d", i)
		}
		ascii = ascii && c < utf8.RuneSelf
		token++
	}
	if token == 0 {
		return ReasonInvalidSubject, "its last token is empty"
	}
	if !ascii {
		if at := unprintable(s); at >= 0 {
			return ReasonInvalidSubject, fmt.Sprintf("it has an unprintable character at byte %d", at)
		}
	}
	if reservedSubject(s) {
		return ReasonReservedSubject, "its first token belongs to the server or to a client's replies"
	}
	return "", ""
}

// reservedSubject says whether a subject talks to the server ($JS.API purges
// and deletes streams) or lands among replies: _INBOX of any client, _WALRELAY
// of the relay, _R_ and _GR_ of the server's gateways.
func reservedSubject(s string) bool {
	if s[0] != '$' && s[0] != '_' {
		return false
	}
	first, _, _ := strings.Cut(s, ".")
	return first[0] == '$' || hasPrefixFold(first, "_INBOX") || hasPrefixFold(first, "_WALRELAY") ||
		first == "_R_" || first == "_GR_"
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func unprintable(s string) int {
	for i, c := range s {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return i
		}
	}
	return -1
}

// clip shows the beginning of what a row says, quoted.
func clip(s string) string {
	if len(s) <= quoted {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q and %d bytes more", s[:quoted], len(s)-quoted)
}
