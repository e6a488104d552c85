package walrelay_test

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/walrelay/walrelay"

// A listed package is what `go list` says of one.
type listed struct {
	name    string // path within the module, "." for the root
	doc     string
	imports []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}}|{{.Doc}}|{{join .Imports " "}}`, "./...")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, complaint.Bytes())
	}
	var list []listed
	for line := range strings.Lines(string(text)) {
		importPath, rest, _ := strings.Cut(line, "|")
		// The doc is a sentence and may hold the separator.
		at := strings.LastIndex(rest, "|")
		if at < 0 {
			t.Fatalf("go list printed %q", line)
		}
		list = append(list, listed{name: local(importPath), doc: rest[:at], imports: strings.Fields(rest[at+1:])})
	}
	return list
}

// local is the path within the module, empty for what is of another.
func local(importPath string) string {
	if importPath == module {
		return "."
	}
	name, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return name
}

// matches tells whether a name is one of the patterns: a package, or "x/..."
// for x and all below it.
func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		parent, all := strings.CutSuffix(pattern, "/...")
		return name == parent || all && strings.HasPrefix(name, parent+"/")
	})
}

// Dependencies point downwards only. Each package may import of ours what is
// listed with it; the first pattern that matches counts.
func TestPackagesImportOnlyWhatIsBelowThem(t *testing.T) {
	t.Parallel()
	parts := []string{"envelope", "internal/decode"}
	rules := []struct {
		packages []string
		may      []string
	}{
		{[]string{"envelope", "migrations", "internal/causation", "internal/receipt", "internal/libpq", "internal/quiet", "internal/testenv/pgbin"}, nil},
		{[]string{"internal/decode"}, []string{"envelope"}},
		{[]string{"internal/router"}, parts},
		// They do not know each other; a session joins them.
		{[]string{"internal/slot", "internal/publish", "internal/witness", "internal/job", "internal/deadletter", "internal/dedup"}, parts},
		{[]string{"internal/reconcile", "internal/retention"}, append([]string{"internal/witness", "internal/router"}, parts...)},
		{[]string{"outbox", "inbox", "idempotency"}, []string{"envelope", "migrations", "internal/causation", "internal/quiet", "internal/receipt"}},
		{[]string{"walrelaytest"}, []string{"envelope", "migrations", "outbox", "inbox", "idempotency"}},
		{[]string{"."}, []string{
			"envelope", "migrations", "internal/decode", "internal/router", "internal/slot", "internal/publish", "internal/witness",
			"internal/job", "internal/deadletter", "internal/dedup", "internal/reconcile", "internal/retention", "internal/libpq", "internal/quiet",
		}},
		{[]string{"internal/admin"}, []string{".", "envelope"}},
		{[]string{"internal/testenv", "internal/testenv/install"}, []string{"internal/testenv/pgbin"}},
		{[]string{"internal/testenv/envtest"}, []string{"internal/testenv"}},
		{[]string{"cmd/..."}, []string{
			".", "envelope", "migrations", "outbox", "inbox", "idempotency", "internal/admin", "internal/decode", "internal/deadletter",
			"internal/dedup", "internal/job", "internal/libpq", "internal/publish", "internal/receipt", "internal/reconcile", "internal/retention", "internal/router",
			"internal/slot", "internal/testenv", "internal/witness",
		}},
		{[]string{"e2e/...", "bench/...", "examples/..."}, []string{
			".", "envelope", "migrations", "outbox", "inbox", "idempotency", "walrelaytest", "internal/...", "e2e/...", "bench/...", "examples/...",
		}},
	}
	for _, p := range packages(t) {
		at := slices.IndexFunc(rules, func(r struct{ packages, may []string }) bool { return matches(p.name, r.packages) })
		if at < 0 {
			t.Errorf("package %s: no rule says what it may import; add one here", p.name)
			continue
		}
		for _, imported := range p.imports {
			if name := local(imported); name != "" && !matches(name, rules[at].may) {
				t.Errorf("package %s imports %s, which is not below it", p.name, name)
			}
		}
	}
}

// What users link brings none of the relay's own tools along.
func TestHeavyLibrariesStayAtTheEdge(t *testing.T) {
	t.Parallel()
	homes := map[string][]string{
		"github.com/nats-io/nats-server":     {"cmd/...", "internal/testenv"},
		"github.com/prometheus":              {"cmd/...", "internal/admin"},
		"github.com/alecthomas/kong":         {"cmd/...", "bench/..."},
		"gopkg.in/yaml.v3":                   {"cmd/..."},
		"testing":                            {"walrelaytest", "internal/testenv/envtest", "e2e/fixture"},
		"github.com/pressly/goose":           {"cmd/...", "migrations"},
		"github.com/compose-spec/compose-go": nil,
		// What users link has OpenTelemetry's API alone.
		"go.opentelemetry.io/otel/exporters": {"cmd/..."},
		"go.opentelemetry.io/otel/sdk":       {"cmd/..."},
	}
	for _, p := range packages(t) {
		for _, imported := range p.imports {
			for library, packages := range homes {
				if (imported == library || strings.HasPrefix(imported, library+"/")) && !matches(p.name, packages) {
					t.Errorf("package %s imports %s, which only %v may", p.name, imported, packages)
				}
			}
		}
	}
}

// decode and router get values and return values.
func TestPurePackagesDoNoInputOrOutput(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if p.name != "internal/decode" && p.name != "internal/router" {
			continue
		}
		for _, imported := range p.imports {
			first, _, _ := strings.Cut(imported, "/")
			switch {
			case local(imported) != "":
			case strings.Contains(first, "."):
				t.Errorf("package %s imports %s; it needs the standard library only", p.name, imported)
			case first == "net" && imported != "net/url", first == "os", first == "log", first == "sync", first == "database", imported == "context":
				t.Errorf("package %s imports %s; it has no socket, file, clock, logger or goroutine", p.name, imported)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if p.doc == "" {
			t.Errorf("package %s has no doc comment", p.name)
		}
	}
}

// A file that names a developer's folder works on one machine.
func TestNoFileNamesAFolderOfOneMachine(t *testing.T) {
	t.Parallel()
	folder := regexp.MustCompile(`(^|[\s"'` + "`" + `=(:])/(root|work|home|Users)/[\w.]+`)
	for _, name := range files(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) >= 0 {
			continue // not text
		}
		number := 0
		for line := range bytes.Lines(text) {
			number++
			if found := folder.Find(line); found != nil {
				t.Errorf("%s:%d names %s", name, number, bytes.TrimSpace(found))
			}
		}
	}
}

// files lists the repository's files that are ours: all but the working files
// of git and what is built.
func files(t *testing.T) []string {
	t.Helper()
	var list []string
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			name := path.Join(dir, entry.Name())
			switch {
			case entry.IsDir() && !slices.Contains([]string{".git", "bin", "data", "node_modules"}, name):
				walk(name)
			case entry.Type().IsRegular():
				list = append(list, name)
			}
		}
	}
	walk(".")
	return list
}
