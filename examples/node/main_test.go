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
	if !strings.Contains(out.String(), "The same points") {
		t.Errorf("the output ends early:\n%s", &out)
	}
}

func TestAMissingNodeIsNamedWithTheFix(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := needNode(t.Context()); err == nil || !strings.Contains(err.Error(), "make deps") {
		t.Errorf("needNode() = %v, want an error that names make deps", err)
	}
}
