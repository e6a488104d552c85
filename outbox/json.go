package outbox

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// jsonProblem says why PostgreSQL would refuse a text as JSON. jsonb takes no
// escape that it cannot store as text: NUL, and half a surrogate pair.
func jsonProblem(raw []byte, jsonb bool) string {
	if !json.Valid(raw) {
		return "is not JSON; write JSON, or use a column of type text or bytea"
	}
	if !utf8.Valid(raw) {
		return "is not UTF-8; encode it"
	}
	if !jsonb {
		return ""
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' { // in valid JSON only within a string
			continue
		}
		i++
		if raw[i] != 'u' {
			continue
		}
		unit := hex4(raw[i+1:])
		i += 4
		switch {
		case unit == 0:
			return `has the character \u0000, which jsonb cannot store; remove it or encode the string`
		case unit >= 0xDC00 && unit < 0xE000:
			return "has half a surrogate pair, which jsonb cannot store; write the character itself"
		case unit >= 0xD800 && unit < 0xDC00:
			if i+6 >= len(raw) || raw[i+1] != '\\' || raw[i+2] != 'u' || hex4(raw[i+3:])>>10 != 0xDC00>>10 {
				return "has half a surrogate pair, which jsonb cannot store; write the character itself"
			}
			i += 6
		}
	}
	return ""
}

// hex4 reads the four digits of an escape in valid JSON.
func hex4(b []byte) uint64 {
	v, err := strconv.ParseUint(string(b[:4]), 16, 16)
	if err != nil {
		return 0
	}
	return v
}

// jsonbBlanks is by how many bytes jsonb's text differs from raw: it writes a
// blank after each colon and comma, and no other outside of strings. Numbers
// and repeated keys are left out: this is for a limit, not for a promise.
func jsonbBlanks(raw []byte) int {
	n, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == ':' || c == ',':
			n++
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			n--
		}
	}
	return n
}
