package decode_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay/internal/decode"
)

const maxSeedBytes = 4096

// FuzzDecode reads its input as messages of one connection, each behind its
// length, since what a row means depends on the relations before it.
func FuzzDecode(f *testing.F) {
	for _, version := range versions {
		for _, s := range scenarios() {
			var all []byte
			for _, st := range readFixture(f, fixturePath(version, s.name)).steps {
				for _, m := range st.messages {
					// Hundreds of equal rows would only slow the mutations down.
					if len(all)+len(m) > maxSeedBytes {
						continue
					}
					all = binary.BigEndian.AppendUint16(all, uint16(len(m)))
					all = append(all, m...)
				}
			}
			f.Add(all)
		}
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		var d, exact decode.Decoder
		var got, want decode.Message
		for len(input) >= 2 {
			n := min(int(binary.BigEndian.Uint16(input)), len(input)-2)
			message := input[2 : 2+n]
			input = input[2+n:]

			// The same bytes, once at the end of their memory and once with
			// other bytes behind them, which must make no difference.
			tight := bytes.Clone(message)[:n:n]
			loose := append(bytes.Clone(message), bytes.Repeat([]byte{0x00, 't'}, 64)...)
			wantErr := exact.Decode(tight, &want)
			gotErr := d.Decode(loose[:n], &got)
			var de *decode.Error
			if gotErr != nil && (!errors.As(gotErr, &de) || de.At > n || gotErr.Error() == "") {
				t.Fatalf("Decode(%x) = %#v, want a *decode.Error within the message", message, gotErr)
			}
			if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
				t.Fatalf("Decode(%x) = %v with bytes behind it, %v without", message, gotErr, wantErr)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("Decode(%x) depends on the bytes behind it (-without +with):\n%s", message, cmp.Diff(want, got))
			}
			for _, v := range got.Tuple {
				checkWithin(t, loose[:n], v.Data)
			}
			checkWithin(t, loose[:n], got.Content)
			if got.Relation != nil && got.Kind != decode.KindDelete && got.Kind != decode.KindRelation && len(got.Tuple) != len(got.Relation.Columns) {
				t.Fatalf("Decode(%x) gives %d values for %d columns", message, len(got.Tuple), len(got.Relation.Columns))
			}
		}
	})
}

// checkWithin fails unless value, up to its capacity, lies in the message.
func checkWithin(t *testing.T, message, value []byte) {
	t.Helper()
	if value == nil || len(message) == 0 {
		return
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(message)))
	at := uintptr(unsafe.Pointer(unsafe.SliceData(value)))
	if at < first || at+uintptr(cap(value)) > first+uintptr(len(message)) {
		t.Fatalf("a value of %d bytes, capacity %d, does not lie in its message of %d bytes", len(value), cap(value), len(message))
	}
}
