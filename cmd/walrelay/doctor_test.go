package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// Ports that nobody listens on.
var nowhere = []string{"--database-url", "postgres://relay:geheim@127.0.0.1:1/shop?sslmode=disable", "--nats", "nats://relay:geheim@127.0.0.1:1"}

func TestDoctorWithoutServersNamesBothAndExitsWithOne(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := call(append([]string{"doctor", "--json"}, nowhere...)...)
	var report walrelay.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("doctor --json: %v\n%s", err, stdout)
	}
	failed := map[string]walrelay.Check{}
	for _, c := range report.Checks {
		if c.Verdict == walrelay.VerdictFail {
			failed[c.Area+" "+c.Name] = c
		}
	}
	for _, name := range []string{"PostgreSQL SQL connection", "PostgreSQL replication connection", "NATS connection"} {
		if c, ok := failed[name]; !ok || !strings.Contains(c.Why, "127.0.0.1:1") || c.Fix == "" {
			t.Errorf("check %q = %+v, want it failed, with the address and a fix", name, c)
		}
	}
	if code != exitFailed || stderr != "" || len(failed) != 4 { // and the stream, of which nobody knows
		t.Errorf("code %d, stderr %q, %d failed; want %d, nothing, 4\n%s", code, stderr, len(failed), exitFailed, stdout)
	}
	if strings.Contains(stdout, "geheim") {
		t.Errorf("doctor shows a password:\n%s", stdout)
	}
}

func TestDoctorWithAWrongConfigurationExitsWithTwo(t *testing.T) {
	t.Parallel()
	code, _, stderr := call("doctor", "--stream", "a b")
	if code != exitUsage || len(problems(stderr)) != 4 {
		t.Errorf("code %d, want %d and four problems:\n%s", code, exitUsage, stderr)
	}
}

func TestDoctorPrintsWhyAndFixOfWhatIsNotWell(t *testing.T) {
	t.Parallel()
	report := walrelay.Report{Checks: []walrelay.Check{
		{Area: "PostgreSQL", Name: "wal_level", Value: "replica", Verdict: walrelay.VerdictFail, Why: "it is replica", Fix: "ALTER SYSTEM"},
		{Area: "PostgreSQL", Name: "version", Value: "15.18", Verdict: walrelay.VerdictOK, Why: "floor"},
		{Area: "NATS", Name: "x", Value: "1", Verdict: walrelay.VerdictWarn, Why: "less safe"},
		{Area: "NATS", Name: strings.Repeat("long", 20), Value: "2", Verdict: walrelay.VerdictUnknown},
	}}
	const want = `PostgreSQL
  FAIL  wal_level  replica
        why: it is replica
        fix: ALTER SYSTEM
  ok    version    15.18

NATS
  WARN  x          1
        why: less safe
  ?     longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglong  2

1 failed, 1 warnings, 1 not known, 1 ok
`
	var b strings.Builder
	if err := printReport(&b, report, false); err != nil || b.String() != want {
		t.Errorf("printReport() = %v\n%s\nwant\n%s", err, b.String(), want)
	}
	b.Reset()
	if err := printReport(&b, report, true); err != nil || !strings.Contains(b.String(), "why: floor") {
		t.Errorf("printReport(verbose) = %v\n%s\nwant it to say why of all", err, b.String())
	}
}

// A37.
func TestDoctorLooksAtWhoMayAskTheRelay(t *testing.T) {
	t.Parallel()
	pair := envtest.Issue(t)(envtest.CA(t, "walrelay tests").Server("127.0.0.1"))
	for name, c := range map[string]struct {
		l       listener
		check   string
		verdict walrelay.Verdict
		says    string
	}{
		"off":                  {listener{Admin: "off"}, "address", walrelay.VerdictWarn, "no alert is possible"},
		"loopback":             {listener{Admin: "127.0.0.1:1"}, "address", walrelay.VerdictOK, "this machine only"},
		"a token in the clear": {listener{Admin: ":1", AdminTokenFile: "/dev/null"}, "address", walrelay.VerdictWarn, "in the clear"},
		"TLS":                  {listener{Admin: ":1", AdminTokenFile: "/dev/null", AdminTLSCert: pair.CertFile, AdminTLSKey: pair.KeyFile}, "address", walrelay.VerdictOK, "encrypted"},
		"an hour to the end":   {listener{Admin: "127.0.0.1:1", AdminTLSCert: pair.CertFile, AdminTLSKey: pair.KeyFile}, "certificate", walrelay.VerdictWarn, "after that nobody can ask"},
		"no certificate":       {listener{Admin: "127.0.0.1:1", AdminTLSCert: "/dev/null", AdminTLSKey: "/dev/null"}, "certificate", walrelay.VerdictFail, "PEM"},
		"nobody listens there": {listener{Admin: "127.0.0.1:1"}, "relay", walrelay.VerdictUnknown, "none answers"},
	} {
		found := false
		for _, check := range c.l.examine(t.Context(), "shop", time.Now()) {
			if check.Name != c.check {
				continue
			}
			found = true
			if text := check.Value + check.Why + check.Fix; check.Verdict != c.verdict || !strings.Contains(text, c.says) {
				t.Errorf("%s: %+v, want %s and %q", name, check, c.verdict, c.says)
			}
		}
		if !found {
			t.Errorf("%s: nothing is said of the %s", name, c.check)
		}
	}
}
