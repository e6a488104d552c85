package compose_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mounted gives the file that a service sees at a path.
func mounted(t *testing.T, s service, target string) (path, text string) {
	t.Helper()
	for _, v := range s.Volumes {
		if v.Type == "bind" && v.Target == target {
			b, err := os.ReadFile(v.Source)
			if err != nil {
				t.Fatal(err)
			}
			return v.Source, string(b)
		}
	}
	t.Fatalf("no file is mounted at %s", target)
	return "", ""
}

// setting is the value behind a key of YAML, on a line of its own.
func setting(t *testing.T, text, key string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimLeft(line, " -"), key+": "); ok {
			return strings.Trim(strings.TrimSpace(value), `[]"`)
		}
	}
	t.Fatalf("no %s in:\n%s", key, text)
	return ""
}

func TestTheDashboardIsAProfileOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, s := range shipped(t).Services {
		want := name == "prometheus" || name == "grafana"
		if got := slices.Equal(s.Profiles, []string{"dashboard"}); got != want || !got && len(s.Profiles) > 0 {
			t.Errorf("service %s has the profiles %v", name, s.Profiles)
		}
	}
}

// Prometheus itself judges its configuration, with files of this machine in the
// places of those that are mounted.
func TestPrometheusAsksTheRelayWithItsToken(t *testing.T) {
	t.Parallel()
	services := shipped(t).Services
	s := services["prometheus"]
	config := strings.TrimPrefix(s.Command[0], "--config.file=")
	_, text := mounted(t, s, config)
	rules := setting(t, text, "rule_files")
	rulesHere, _ := mounted(t, s, rules)
	credentials := setting(t, text, "credentials_file")
	if secret := strings.TrimPrefix(credentials, "/run/secrets/"); !slices.ContainsFunc(s.Secrets, func(x struct{ Source string }) bool { return x.Source == secret }) ||
		services["relay"].Environment["WALRELAY_ADMIN_TOKEN_FILE"] != credentials {
		t.Errorf("Prometheus shows %s, which is not a secret of its own and the relay's token", credentials)
	}
	if target, want := setting(t, text, "targets"), "relay"+services["relay"].Environment["WALRELAY_ADMIN"]; target != want {
		t.Errorf("Prometheus asks %s, the relay listens on %s", target, want)
	}
	if job := setting(t, text, "job_name"); !strings.HasPrefix(job, "walrelay") {
		t.Errorf("job %s: the alerts look for jobs that begin with walrelay", job)
	}
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	here := strings.NewReplacer(credentials, token, rules, rulesHere).Replace(text)
	for path, content := range map[string]string{token: adminToken, filepath.Join(dir, "prometheus.yaml"): here} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "config", filepath.Join(dir, "prometheus.yaml")).CombinedOutput(); err != nil {
		t.Errorf("promtool check config: %v\n%s", err, out)
	}
}

func TestGrafanaFindsPrometheusAndTheDashboard(t *testing.T) {
	t.Parallel()
	services := shipped(t).Services
	s := services["grafana"]
	_, source := mounted(t, s, "/etc/grafana/provisioning/datasources/walrelay.yaml")
	if url := setting(t, source, "url"); url != "http://prometheus:9090" {
		t.Errorf("Grafana asks %s", url)
	}
	_, provider := mounted(t, s, "/etc/grafana/provisioning/dashboards/walrelay.yaml")
	if _, board := mounted(t, s, setting(t, provider, "path")+"/walrelay.json"); !strings.Contains(board, `"uid": "walrelay"`) {
		t.Error("the dashboard is not the one that compose.yaml links to")
	}
	if s.Environment["GF_AUTH_DISABLE_LOGIN_FORM"] != "true" || s.Environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] != "true" {
		t.Error("Grafana has an administrator with a well-known password")
	}
}

// scrapes asks for the metrics as Prometheus does.
func scrapes(t *testing.T, addr, token string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}
