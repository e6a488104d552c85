package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) {
	// What the machine sets is not what a test sets.
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix) && !foreign(name) || strings.HasPrefix(name, "PG") && name != "PG_CACHE" {
			_ = os.Unsetenv(name)
		}
	}
	envtest.Main(m)
}

// call runs the command in this process.
func call(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

// problems are the lines of stderr that name one.
func problems(stderr string) []string {
	var lines []string
	for line := range strings.Lines(stderr) {
		if text, ok := strings.CutPrefix(line, "walrelay: "); ok {
			lines = append(lines, strings.TrimSpace(text))
		}
	}
	return lines
}
