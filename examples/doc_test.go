package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What a reader copies from the documentation has to compile.
func TestCodeInTheDocumentationCompiles(t *testing.T) {
	t.Parallel()
	// Snippets leave their imports out; these are the ones they may need.
	packages := map[string]string{
		"context": "context", "os": "os", "time": "time", "pgx": "github.com/jackc/pgx/v5", "pgxpool": "github.com/jackc/pgx/v5/pgxpool",
		"jetstream": "github.com/nats-io/nats.go/jetstream", "inbox": "github.com/walrelay/walrelay/inbox",
		"outbox": "github.com/walrelay/walrelay/outbox", "idempotency": "github.com/walrelay/walrelay/idempotency",
	}
	snippet := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	n, dir := 0, t.TempDir()
	for _, name := range []string{"README.md", "docs/consumers.md"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		found := snippet.FindAllSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s has no code", name)
		}
		for _, match := range found {
			code := string(match[1])
			var source strings.Builder
			fmt.Fprintf(&source, "package snippet\n\nimport (\n")
			for identifier, path := range packages {
				if regexp.MustCompile(`\b` + identifier + `\.[A-Z]`).MatchString(code) {
					fmt.Fprintf(&source, "\t%q\n", path)
				}
			}
			fmt.Fprintf(&source, ")\n\n%s", code)
			n++
			folder := filepath.Join(dir, fmt.Sprintf("snippet%d", n))
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, "snippet.go"), []byte(source.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			// Imports are those of the module that the command runs in.
			cmd := exec.CommandContext(t.Context(), "go", "vet", filepath.Join(folder, "snippet.go"))
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: go vet: %v\n%s\n%s", name, err, text, source.String())
			}
		}
	}
}
