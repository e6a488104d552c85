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
	if !strings.Contains(out.String(), "The same numbers") {
		t.Errorf("the output ends early:\n%s", &out)
	}
}
