package decode_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/internal/decode"
)

func TestByteaTextBecomesItsBytes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`\x`:         "",
		`\x00ff5c`:   "\x00\xff\\",
		`\xDEADbeef`: "\xde\xad\xbe\xef",
	} {
		got, err := decode.AppendBytea([]byte("head:"), []byte(in))
		if err != nil || string(got) != "head:"+want {
			t.Errorf("AppendBytea(head:, %s) = %q, %v, want %q", in, got, err, "head:"+want)
		}
	}
}

func TestAnyOtherTextIsNoBytea(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", `\`, "x", `x00`, `\x0`, `\x000`, `\xzz`, `\x00zz`, `\X00`, `\000\377`, "plain", `\x00 1`} {
		got, err := decode.AppendBytea([]byte("head:"), []byte(in))
		if err == nil || string(got) != "head:" {
			t.Errorf("AppendBytea(head:, %q) = %q, %v, want head: and an error", in, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "zz") {
			t.Errorf("error shows the value: %v", err)
		}
	}
}

func TestByteaSurvivesTheWay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOf(rapid.Byte()).Draw(t, "raw")
		got, err := decode.AppendBytea(nil, []byte(`\x`+hex.EncodeToString(raw)))
		if err != nil || string(got) != string(raw) {
			t.Fatalf("AppendBytea = %x, %v, want %x", got, err, raw)
		}
	})
}
