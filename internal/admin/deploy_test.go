package admin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	root      = "../../"
	rulesFile = root + "deploy/prometheus/alerts.yaml"
	rulesTest = root + "deploy/prometheus/alerts_test.yaml"
	dashboard = root + "deploy/grafana/walrelay.json"
	runbook   = root + "docs/runbook.md"
)

func file(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// promtool is Prometheus' own judge.
func promtool(t *testing.T, input string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is not installed; run `make deps`, or install the package prometheus")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(input)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, text)
	}
}

func TestPromtoolAcceptsMetricsAndRules(t *testing.T) {
	t.Parallel()
	_, metrics := get(t, handler(known()), "/metrics")
	promtool(t, metrics, "check", "metrics")
	promtool(t, "", "check", "rules", "--lint-fatal", rulesFile)
	promtool(t, "", "test", "rules", rulesTest)
}

// exported are the names of our metrics with the names of their labels, of a
// status in which everything is known.
func exported(t *testing.T) map[string]map[string]bool {
	t.Helper()
	_, body := get(t, handler(known()), "/metrics")
	all := map[string]map[string]bool{}
	for line := range strings.SplitSeq(body, "\n") {
		m := regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? `).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		labels := map[string]bool{"job": true, "instance": true} // of the scrape
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = true
		}
		all[m[1]] = labels
	}
	return all
}

// What is written about metrics must be about those that there are.
func TestMetricsThatAreNamedAreExported(t *testing.T) {
	t.Parallel()
	metrics := exported(t)
	names, selectors := regexp.MustCompile(`\bwalrelay_[a-z][a-z_0-9]*`), regexp.MustCompile(`\b(walrelay_[a-z_0-9]+)\{([^}]*)\}`)
	for _, path := range []string{rulesFile, rulesTest, dashboard, runbook, root + "docs/configuration.md", root + "CHANGELOG.md"} {
		text := file(t, path)
		found := names.FindAllString(text, -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", path)
		}
		for _, name := range found {
			if metrics[name] == nil && metrics[name+"_bucket"] == nil {
				t.Errorf("%s names %s, which /metrics does not have", path, name)
			}
		}
		for _, s := range selectors.FindAllStringSubmatch(text, -1) {
			for _, label := range regexp.MustCompile(`(\w+)\s*=`).FindAllStringSubmatch(s[2], -1) {
				if metrics[s[1]] != nil && !metrics[s[1]][label[1]] {
					t.Errorf("%s asks for label %s of %s, which has none", path, label[1], s[1])
				}
			}
		}
	}
}

// anchors are the headings of a page, as links name them.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		text := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(text, " ", "-")] = true
	}
	return all
}

// A person who is woken finds what to do, and nothing there is about an alert
// that is no more.
func TestEachAlertLeadsToItsSectionOfTheRunbook(t *testing.T) {
	t.Parallel()
	page := file(t, runbook)
	_, after, _ := strings.Cut(page, "\n# The alerts\n")
	section, _, some := strings.Cut(after, "\n# ")
	if !some {
		t.Fatal("the runbook has no part about the alerts")
	}
	var described []string
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(section, -1) {
		described = append(described, m[1])
	}
	var alerts []string
	for _, rule := range strings.Split(file(t, rulesFile), "- alert: ")[1:] {
		name, rest, _ := strings.Cut(rule, "\n")
		alerts = append(alerts, name)
		if want := "runbook_url: https://github.com/walrelay/walrelay/blob/main/docs/runbook.md#" + strings.ToLower(name) + "\n"; !strings.Contains(rest, want) {
			t.Errorf("alert %s lacks %s", name, want)
		}
		for _, field := range []string{"for: ", "severity: ", "summary: ", "description: "} {
			if !strings.Contains(rest, field) {
				t.Errorf("alert %s lacks %s", name, field)
			}
		}
	}
	if !slices.Equal(alerts, described) {
		t.Errorf("the alerts are\n%v\nand the runbook has sections for\n%v", alerts, described)
	}
	tested := file(t, rulesTest)
	for _, name := range alerts {
		if !strings.Contains(tested, `ALERTS{alertname="`+name+`"`) {
			t.Errorf("no test sees alert %s fire", name)
		}
	}
	known := anchors(page)
	for _, m := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(page, -1) {
		if !known[m[1]] {
			t.Errorf("the runbook links to #%s, which is no heading of it", m[1])
		}
	}
}

// A board is what matters of a dashboard.
type board struct {
	UID    string `json:"uid"`
	Panels []struct {
		ID    int    `json:"id"`
		Type  string `json:"type"`
		Title string `json:"title"`
		Grid  struct {
			X, Y, W, H int
		} `json:"gridPos"`
		Targets []struct{ Expr string } `json:"targets"`
	} `json:"panels"`
}

func TestTheDashboardsQueriesCanBeRunAndItsPanelsDoNotOverlap(t *testing.T) {
	t.Parallel()
	var b board
	if err := json.Unmarshal([]byte(file(t, dashboard)), &b); err != nil || b.UID != "walrelay" {
		t.Fatalf("read the dashboard: %v, uid %q", err, b.UID)
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	var rules bytes.Buffer
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	asked := map[string]bool{}
	queries := 0
	for _, p := range b.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q has an id that another one has", p.Title)
		}
		ids[p.ID] = true
		if p.Grid.X+p.Grid.W > 24 {
			t.Errorf("panel %q is beyond the right border", p.Title)
		}
		for x := p.Grid.X; x < p.Grid.X+p.Grid.W; x++ {
			for y := p.Grid.Y; y < p.Grid.Y+p.Grid.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("panels %q and %q overlap", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		for _, q := range p.Targets {
			queries++
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*").Replace(q.Expr)
			fmt.Fprintf(&rules, "  - record: panel:%d:q%d\n    expr: %s\n", p.ID, queries, quote(expr))
			for _, name := range regexp.MustCompile(`walrelay_[a-z_]+`).FindAllString(expr, -1) {
				asked[name] = true
			}
		}
	}
	if queries < 30 {
		t.Errorf("%d queries: is this the dashboard?", queries)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(path, rules.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "rules", path)
	// Nobody looks for what no panel shows.
	shown := func(name string) bool { return asked[name] }
	for _, name := range slices.Sorted(maps.Keys(exported(t))) {
		if !strings.HasPrefix(name, "walrelay_") || slices.Contains(unshown(), name) || shown(name) {
			continue
		}
		t.Errorf("metric %s is on no panel of the dashboard", name)
	}
}

// unshown are the metrics that the dashboard has no panel for.
func unshown() []string {
	return []string{
		"walrelay_build_info", "walrelay_stream_info", "walrelay_commit_to_stored_seconds_sum", "walrelay_commit_to_stored_seconds_count",
		"walrelay_in_flight_bytes", "walrelay_slot_active", "walrelay_slot_looked_at_timestamp_seconds",
		"walrelay_state_since_timestamp_seconds", "walrelay_stalled", "walrelay_stream_flowing", "walrelay_stream_last_sequence", "walrelay_stream_mark_met",
		"walrelay_stream_refuses_when_full", "walrelay_stream_stored_timestamp_seconds",
	}
}

// quote makes a string of YAML.
func quote(s string) string {
	text, _ := json.Marshal(s) //nolint:errchkjson // a string
	return string(text)
}

func TestTheRunbookHasEachExitCode(t *testing.T) {
	t.Parallel()
	codes := func(text, pattern string) []string {
		var all []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		return all
	}
	_, section, _ := strings.Cut(file(t, runbook), "# Exit codes\n")
	section, _, _ = strings.Cut(section, "\n# ")
	want := codes(file(t, root+"cmd/walrelay/main.go"), `(?m)^\texit\w+ += (\d+)`)
	if got := codes(section, `(?m)^\| (\d+) \|`); len(want) < 4 || !slices.Equal(got, want) {
		t.Errorf("the runbook has the exit codes %v, the command %v", got, want)
	}
}
