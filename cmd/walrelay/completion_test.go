package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func completionScript(t *testing.T, shell string) string {
	t.Helper()
	var out, complaint bytes.Buffer
	if code := run([]string{"completion", shell}, &out, &complaint); code != 0 {
		t.Fatalf("walrelay completion %s = %d: %s", shell, code, complaint.String())
	}
	return out.String()
}

// Bash itself is asked what it would offer.
func TestBashCompletesVerbsFlagsAndValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := filepath.Join(dir, "walrelay.bash")
	if err := os.WriteFile(script, []byte(completionScript(t, "bash")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		words    string // as bash splits them; the last one is at hand
		want     []string
		complete bool // want is all
	}{
		{"walrelay ''", []string{"run", "migrate", "deadletters", "completion", "--config"}, false},
		{"walrelay re", []string{"replay", "resume"}, true},
		{"walrelay deadletters ''", []string{"list", "show", "requeue", "discard", "accept"}, false},
		{"walrelay deadletters list --sou", []string{"--source"}, true},
		{"walrelay run --on-p", []string{"--on-poison"}, true},
		{"walrelay run --on-poison ''", []string{"dead-letter", "park", "halt"}, true},
		{"walrelay run --on-poison = ''", []string{"dead-letter", "park", "halt"}, true},
		{"walrelay run --on-poison =", []string{"dead-letter", "park", "halt"}, true},
		{"walrelay run --on-poison = p", []string{"park"}, true},
		{"walrelay run --source ''", nil, true},
		{"walrelay run --source run --on-gap h", []string{"heal", "halt"}, true},
		{"walrelay run --backfill --on-ga", []string{"--on-gap"}, true},
		{"walrelay --config x run --on-ga", []string{"--on-gap"}, true},
		{"walrelay run --nats-creds se", []string{"seed.creds"}, true},
		{"walrelay run --database-url postgres : //deadletters --on-ga", []string{"--on-gap"}, true},
		{"walrelay completion z", []string{"zsh"}, true},
		{"walrelay demo-part", nil, true},
		{"walrelay status --on-poison", nil, true},
	} {
		if err := os.WriteFile(filepath.Join(dir, "seed.creds"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-c", fmt.Sprintf(`set -eu; source "$1"; COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _walrelay || true; printf '%%s\n' "${COMPREPLY[@]}"`, c.words), "bash", script)
		cmd.Dir = dir
		var complaint bytes.Buffer
		cmd.Stderr = &complaint
		out, err := cmd.Output()
		if err != nil || complaint.Len() > 0 {
			t.Fatalf("bash completes %s: %v: %s", c.words, err, complaint.String())
		}
		got := strings.Fields(string(out))
		if c.complete && !slices.Equal(got, c.want) {
			t.Errorf("bash completes %s with %q, want %q", c.words, got, c.want)
		}
		for _, want := range c.want {
			if !slices.Contains(got, want) {
				t.Errorf("bash completes %s with %q, want %q among them", c.words, got, want)
			}
		}
	}
}

// The other shells get the same words; nothing in a help text breaks their
// quotes.
func TestZshAndFishKnowAllVerbsAndFlags(t *testing.T) {
	t.Parallel()
	for shell, form := range map[string]struct{ verb, flag string }{
		"zsh":  {" '%s:", " '--%s:"},
		"fish": {" -a %s -d '", " -l %s -d '"},
	} {
		script := completionScript(t, shell)
		for _, verb := range []string{"run", "migrate", "completion", "requeue", "accept"} {
			if !strings.Contains(script, fmt.Sprintf(form.verb, verb)) {
				t.Errorf("the script for %s lacks verb %s", shell, verb)
			}
		}
		for _, flag := range []string{"database-url", "on-poison", "nats-creds", "sign-key-file", "config", "yes"} {
			if !strings.Contains(script, fmt.Sprintf(form.flag, flag)) {
				t.Errorf("the script for %s lacks flag --%s", shell, flag)
			}
		}
		if strings.Contains(script, "demo-part") {
			t.Errorf("the script for %s shows what is hidden", shell)
		}
		for i, line := range strings.Split(script, "\n") {
			if !strings.HasPrefix(line, "#") && strings.Count(line, "'")%2 != 0 {
				t.Errorf("line %d of the script for %s has an open quote: %s", i+1, shell, line)
			}
		}
	}
}
