package compose_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// An instruction of a Dockerfile.
type instruction struct{ name, rest string }

// dockerfile gives the instructions of each stage.
func dockerfile(t *testing.T) (stages [][]instruction) {
	t.Helper()
	text, err := os.ReadFile(root + "/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasSuffix(line, `\`) {
			t.Fatalf("Dockerfile: %q goes on in the next line, which this test cannot read", line)
		}
		name, rest, _ := strings.Cut(line, " ")
		if name == "FROM" {
			stages = append(stages, nil)
		}
		if len(stages) == 0 {
			t.Fatalf("Dockerfile: %q comes before FROM", line)
		}
		stages[len(stages)-1] = append(stages[len(stages)-1], instruction{name, rest})
	}
	return stages
}

// find gives what follows the name in the stage's only such instruction that
// holds the text.
func find(t *testing.T, stage []instruction, name, holds string) string {
	t.Helper()
	var found []string
	for _, i := range stage {
		if i.name == name && strings.Contains(i.rest, holds) {
			found = append(found, i.rest)
		}
	}
	if len(found) != 1 {
		t.Fatalf("Dockerfile: %d instructions %s … %s in a stage, want 1", len(found), name, holds)
	}
	return found[0]
}

// testVersion is what the program is told to be.
const testVersion = "v0.0.0-compose"

var program struct {
	sync.Mutex
	path string
}

// build builds the program by the Dockerfile's own command, once.
func build(t *testing.T) (path string) {
	t.Helper()
	program.Lock()
	defer program.Unlock()
	if program.path != "" {
		return program.path
	}
	const out = "/out/"
	line := find(t, dockerfile(t)[0], "RUN", "go build")
	dir := envtest.SharedDir(t)
	here := strings.ReplaceAll(line, out, dir+"/")
	if here == line {
		t.Fatalf("Dockerfile: %q does not build into %s", line, out)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", here)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "VERSION="+testVersion)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", here, err, text)
	}
	program.path = filepath.Join(dir, "walrelay")
	return program.path
}

func TestTheDockerfileBuildsAStaticProgramThatKnowsItsVersion(t *testing.T) {
	t.Parallel()
	path := build(t)
	text, err := exec.CommandContext(t.Context(), path, "version").Output()
	if err != nil || !strings.HasPrefix(string(text), "walrelay "+testVersion+" ") {
		t.Errorf("walrelay version = %q, %v, want it to name %s", text, err, testVersion)
	}
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program needs a dynamic linker, which an image from scratch does not have")
		}
	}
}

func TestTheImageHoldsTheProgramAndRunsItAsNobody(t *testing.T) {
	t.Parallel()
	stages := dockerfile(t)
	if len(stages) != 2 {
		t.Fatalf("%d stages, want 2", len(stages))
	}
	first, last := stages[0], stages[1]
	if got := find(t, last, "FROM", ""); got != "scratch" {
		t.Errorf("the image is made from %q, want scratch", got)
	}
	if user := find(t, last, "USER", ""); !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user) {
		t.Errorf("USER %s, want numbers other than 0: there is no list of users", user)
	}
	from, to, _ := strings.Cut(strings.TrimPrefix(find(t, last, "COPY", "walrelay"), "--from=build "), " ")
	if line := find(t, first, "RUN", "go build"); !strings.Contains(line, " -o "+from+" ") {
		t.Errorf("%s is copied, which %q does not make", from, line)
	}
	if got, want := find(t, last, "ENTRYPOINT", ""), `["`+to+`"]`; got != want {
		t.Errorf("ENTRYPOINT %s, want %s", got, want)
	}
	if health := shipped(t).Services["relay"].Health.Test; len(health) < 2 || health[1] != to {
		t.Errorf("the relay's health check %q does not call %s", health, to)
	}
	module, err := os.ReadFile(root + "/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)
	if want := "golang:" + string(match[1]) + " AS build"; find(t, first, "FROM", "") != want {
		t.Errorf("it is built FROM %s, want %s as in go.mod", find(t, first, "FROM", ""), want)
	}
}
