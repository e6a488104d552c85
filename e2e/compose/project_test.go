package compose_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
)

const root = "../.." // of the repository

// A project is what compose-go reads of a compose file, as far as it matters
// here.
type project struct {
	Services map[string]service
	Volumes  map[string]struct{}
}

type service struct {
	Image       string
	Build       *struct{ Context, Dockerfile string }
	Command     []string
	Entrypoint  []string
	Environment map[string]string
	NetworkMode string `json:"network_mode"`
	Restart     string
	Profiles    []string
	Secrets     []struct{ Source string }
	Ports       []struct {
		HostIP    string `json:"host_ip"`
		Published string
		Target    int
	}
	Volumes   []struct{ Type, Source, Target string }
	DependsOn map[string]struct{ Condition string } `json:"depends_on"`
	Health    *struct{ Test []string }              `json:"healthcheck"`
}

// load reads compose.yaml as Docker Compose does: with its schema, its merges
// and its checks of names.
func load(t *testing.T, file string) (project, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", ".", file)
	cmd.Dir = root + "/tools/compose"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as all that no race detector looks at
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	text, err := cmd.Output()
	if err != nil {
		return project{}, &loadError{err, complaint.String()}
	}
	var p project
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatalf("read what compose-go printed: %v\n%s", err, text)
	}
	return p, nil
}

type loadError struct {
	err       error
	complaint string
}

func (e *loadError) Error() string { return e.err.Error() + ": " + e.complaint }
