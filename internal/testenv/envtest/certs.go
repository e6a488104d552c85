package envtest

import (
	"testing"

	"github.com/walrelay/walrelay/internal/testenv"
)

// CA makes a certificate authority for this test.
func CA(tb testing.TB, name string) *testenv.CA {
	tb.Helper()
	ca, err := Env(tb).NewCA(name)
	if err != nil {
		tb.Fatalf("make a certificate authority: %v", err)
	}
	return ca
}

// Issue is for the methods of a CA: it fails the test if they do.
func Issue(tb testing.TB) func(testenv.Pair, error) testenv.Pair {
	tb.Helper()
	return func(pair testenv.Pair, err error) testenv.Pair {
		tb.Helper()
		if err != nil {
			tb.Fatalf("make a certificate: %v", err)
		}
		return pair
	}
}
