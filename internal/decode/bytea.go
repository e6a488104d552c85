package decode

import (
	"encoding/hex"
	"errors"
	"slices"
)

// errBytea never quotes the text: it is somebody's payload.
var errBytea = errors.New(`bytea value is not \x and pairs of hexadecimal digits; the session must set bytea_output = hex`)

// AppendBytea appends to dst the bytes whose text under bytea_output = hex is
// text. For any other text it returns dst as it was, and an error.
func AppendBytea(dst, text []byte) ([]byte, error) {
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' || len(text)%2 != 0 {
		return dst, errBytea
	}
	text = text[2:]
	out := slices.Grow(dst, len(text)/2)
	out = out[:len(dst)+len(text)/2]
	if _, err := hex.Decode(out[len(dst):], text); err != nil {
		// The cause names the byte that is no digit, which is payload.
		return dst, errBytea
	}
	return out, nil
}
