package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

func TestTheExampleEndsAsItSays(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatalf("run: %v; it said:\n%s", err, &out)
	}
	for _, want := range []string{
		"the customer has paid 2 times", "attempt 3: charge-of-order-2", "once more: charge-of-order-2", "charge-of-order-3, found",
		"card was declined", "0 charges", "to be reconciled: charge:order-5", "resolved by hand: line 7 of the statement",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, &out)
		}
	}
}
