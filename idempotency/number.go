package idempotency

import (
	"math"
	"strconv"
	"strings"
)

func (w *writer) number(b []byte) ([]byte, error) {
	n := 0
	for n < len(w.text) && strings.IndexByte("+-.0123456789eE", w.text[n]) >= 0 {
		n++
	}
	literal := w.text[:n]
	w.text = w.text[n:]
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil {
		return nil, errTooLarge
	}
	start := len(b)
	b = appendNumber(b, f)
	if w.exact && !sameDecimal(literal, string(b[start:])) {
		w.exact = false
	}
	return b, nil
}

// appendNumber appends a finite double as ECMAScript's Number.toString prints
// it, which RFC 8785 prescribes: the shortest digits that give the same double,
// with an exponent below 1e-6 and from 1e21.
func appendNumber(b []byte, f float64) []byte {
	if f == 0 {
		return append(b, '0') // minus zero too
	}
	if abs := math.Abs(f); abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, f, 'e', -1, 64)
	// Go writes at least two digits of an exponent: e-07.
	if n := len(b); b[n-2] == '0' && (b[n-3] == '-' || b[n-3] == '+') {
		b = append(b[:n-2], b[n-1])
	}
	return b
}

// sameDecimal says whether two literals are the same number, digit by digit.
func sameDecimal(a, b string) bool {
	digitsA, exponentA, okA := decimal(a)
	digitsB, exponentB, okB := decimal(b)
	return okA && okB && digitsA == digitsB && exponentA == exponentB
}

// decimal gives a JSON number as its sign and digits, without zeros at either
// end, and the power of ten of the last of them.
func decimal(s string) (digits string, exponent int, ok bool) {
	mantissa, power, has := strings.Cut(strings.ToLower(s), "e")
	if has {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil {
			return "", 0, false
		}
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return "", 0, true
	}
	trimmed := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(trimmed) - len(fraction)
	if negative {
		trimmed = "-" + trimmed
	}
	return trimmed, exponent, true
}
