package idempotency_test

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/idempotency"
)

func TestCanonicalJSONIsThatOfRFC8785(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		// The examples of the RFC, sections 3.2.2 and 3.2.3.
		`{ "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
		   "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false] }`: `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",
		  "\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`: `{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`,
		` [ ] `:                       `[]`,
		` { } `:                       `{}`,
		`{"a":{"c":[],"b":[{}]}}`:     `{"a":{"b":[{}],"c":[]}}`,
		`"\b\f\n\r\t\u007f\u2028<>&"`: "\"\\b\\f\\n\\r\\t\u007f\u2028<>&\"",
		`-0`:                          `0`,
		`-0.0e5`:                      `0`,
		`1e-400`:                      `0`,
		` true `:                      `true`,
		`[1 , 2]`:                     `[1,2]`,
	} {
		got, err := idempotency.CanonicalJSON([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("CanonicalJSON(%s)\n got %s, %v\nwant %s", in, got, err, want)
		}
	}
}

func TestNumbersArePrintedAsECMAScriptDoes(t *testing.T) {
	t.Parallel()
	for bits, want := range map[uint64]string{ // RFC 8785, appendix B
		0x0000000000000000: "0",
		0x8000000000000000: "0",
		0x0000000000000001: "5e-324",
		0x8000000000000001: "-5e-324",
		0x7fefffffffffffff: "1.7976931348623157e+308",
		0xffefffffffffffff: "-1.7976931348623157e+308",
		0x4340000000000000: "9007199254740992",
		0xc340000000000000: "-9007199254740992",
		0x4430000000000000: "295147905179352830000",
		0x44b52d02c7e14af5: "9.999999999999997e+22",
		0x44b52d02c7e14af6: "1e+23",
		0x44b52d02c7e14af7: "1.0000000000000001e+23",
		0x444b1ae4d6e2ef4e: "999999999999999700000",
		0x444b1ae4d6e2ef4f: "999999999999999900000",
		0x444b1ae4d6e2ef50: "1e+21",
		0x3eb0c6f7a0b5ed8c: "9.999999999999997e-7",
		0x3eb0c6f7a0b5ed8d: "0.000001",
		0x41b3de4355555553: "333333333.3333332",
		0x41b3de4355555554: "333333333.33333325",
		0x41b3de4355555555: "333333333.3333333",
		0x41b3de4355555556: "333333333.3333334",
		0x41b3de4355555557: "333333333.33333343",
		0xbecbf647612f3696: "-0.0000033333333333333333",
		0x43143ff3c1cb0959: "1424953923781206.2",
	} {
		in := strconv.FormatFloat(math.Float64frombits(bits), 'e', 17, 64)
		got, err := idempotency.CanonicalJSON([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%016x: CanonicalJSON(%s) = %s, %v, want %s", bits, in, got, err, want)
		}
	}
}

func TestWhatIJSONForbidsIsAnError(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		``, `{`, `{"a":1}x`, `nul`, "\"\xff\"", `[1,]`, `01`, "\"\x01\"",
		`{"a":1,"a":2}`, `{"a":1,"\u0061":1}`, `"\ud83d"`, `"\ude00"`, `"\ud83dx"`, `"\ud83d\u0041"`, `{"\ud83d":1}`, `1e309`, `-1e309`,
	} {
		if got, err := idempotency.CanonicalJSON([]byte(in)); err == nil {
			t.Errorf("CanonicalJSON(%q) = %s, want an error", in, got)
		}
	}
}

func TestCanonicalJSONMeansTheSameAndIsItsOwnForm(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in, err := json.Marshal(value(3).Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		var spaced bytes.Buffer
		if err := json.Indent(&spaced, in, " ", "\t"); err != nil {
			t.Fatal(err)
		}
		once, err := idempotency.CanonicalJSON(spaced.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		twice, err := idempotency.CanonicalJSON(once)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("again = %s, %v, want %s", twice, err, once)
		}
		var a, b any
		if err := json.Unmarshal(in, &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(once, &b); err != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("%s means something else than %s (%v)", once, in, err)
		}
	})
}

// value generates what JSON can hold.
func value(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.String().AsAny(), rapid.Float64Range(-1e300, 1e300).AsAny(), rapid.Int64().AsAny(),
	}
	if depth > 0 {
		inner := rapid.Deferred(func() *rapid.Generator[any] { return value(depth - 1) })
		leaves = append(leaves, rapid.SliceOfN(inner, 0, 4).AsAny(), rapid.MapOfN(rapid.String(), inner, 0, 4).AsAny())
	}
	return rapid.OneOf(leaves...)
}

func FuzzCanonicalJSONNeverPanics(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0,"\ud83d\ude00",null]}`, `[`, `"\u`, `1e+`, strings.Repeat("[", 20)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := idempotency.CanonicalJSON(in)
		if err == nil && !json.Valid(got) {
			t.Errorf("CanonicalJSON(%q) = %q is not JSON", in, got)
		}
		if err == nil && !json.Valid(in) {
			t.Errorf("CanonicalJSON(%q) takes what is not JSON", in)
		}
	})
}
