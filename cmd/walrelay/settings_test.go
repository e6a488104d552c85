package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

const (
	somePostgres = "postgres://relay@127.0.0.1/shop"
	someNATS     = "nats://127.0.0.1:4222"
)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "walrelay.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// effective gives walrelay config's settings by name.
func effective(t *testing.T, args ...string) map[string]setting {
	t.Helper()
	code, stdout, stderr := call(append([]string{"config", "--json"}, args...)...)
	if code != exitDone {
		t.Fatalf("walrelay config = %d, want %d: %s", code, exitDone, stderr)
	}
	var all []setting
	if err := json.Unmarshal([]byte(stdout), &all); err != nil {
		t.Fatalf("walrelay config --json: %v", err)
	}
	found := map[string]setting{}
	for _, s := range all {
		found[s.Setting] = s
	}
	return found
}

func TestFlagsWinOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	path := file(t, "database-url: "+somePostgres+"\nnats: [nats://a:4222, nats://b:4222]\nwindow: 3\nack_timeout: 3s\nsilence: 3m\nslot:\n")
	t.Setenv("WALRELAY_CONFIG", path)
	t.Setenv("WALRELAY_WINDOW", "2")
	t.Setenv("WALRELAY_ACK_TIMEOUT", "2s")
	t.Setenv("WALRELAY_STREAM", "") // as if not set
	got := effective(t, "--window", "1", "--source=shop")
	for name, want := range map[string]setting{
		"window":       {Value: "1", Origin: fromFlag, Where: "--window"},
		"source":       {Value: "shop", Origin: fromFlag, Where: "--source"},
		"ack-timeout":  {Value: "2s", Origin: fromEnvironment, Where: "WALRELAY_ACK_TIMEOUT"},
		"silence":      {Value: "3m", Origin: fromFile, Where: "silence (walrelay.yaml:5)"},
		"nats":         {Value: "nats://a:4222,nats://b:4222", Origin: fromFile, Where: "nats (walrelay.yaml:2)"},
		"database-url": {Value: somePostgres, Origin: fromFile, Where: "database-url (walrelay.yaml:1)"},
		"stream":       {Value: "SHOP", Origin: fromDefault},
		"slot":         {Value: "shop", Origin: fromDefault},
		"log-level":    {Value: "info", Origin: fromDefault},
	} {
		want.Setting = name
		if diff := cmp.Diff(want, got[name]); diff != "" {
			t.Errorf("setting %s (-want +got):\n%s", name, diff)
		}
	}
}

func TestThreeMistakesGiveThreeMessagesAndExitCode2(t *testing.T) {
	t.Setenv("WALRELAY_DATABASE_URL", somePostgres)
	path := file(t, "widnow: 5\nnats: "+someNATS+"\n")
	code, _, stderr := call("run", "--config", path, "--ack-timeout", "5 s", "--slot", "Not-A-Slot")
	want := []string{
		`--ack-timeout: use a duration such as 10s or 1m30s, not "5 s"`,
		`widnow (walrelay.yaml:1) is not known; the nearest is window`,
		`--slot="Not-A-Slot": use 1 to 63 lower-case letters, digits or _, as PostgreSQL demands of slots`,
	}
	if code != exitUsage {
		t.Errorf("walrelay run = %d, want %d", code, exitUsage)
	}
	if diff := cmp.Diff(want, problems(stderr)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestMistakesNameTheSettingAsItWasGivenAndTheFix(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		file string
		args []string
		want string
	}{
		"unknown flag":           {args: []string{"--nast", someNATS, "--nats", someNATS}, want: "--nast is not known; the nearest is --nats"},
		"another verb's flag":    {args: []string{"--watch"}, want: "--watch is not a flag of walrelay run; walrelay run --help lists those that are"},
		"its beginning alone":    {args: []string{"--database"}, want: "--database is not a flag of walrelay run; walrelay run --help lists those that are; is --database-url meant?"},
		"a key's beginning":      {file: "database: postgres://h/d", want: `database (walrelay.yaml:1): use true or false, not "postgres://h/d"; is database_url meant?`},
		"a variable's beginning": {env: map[string]string{"WALRELAY_DATABASE": "postgres://h/d"}, want: `WALRELAY_DATABASE: use true or false, not "postgres://h/d"; is WALRELAY_DATABASE_URL meant?`},
		"unknown variable":       {env: map[string]string{"WALRELAY_DATABSE_URL": "x"}, want: "WALRELAY_DATABSE_URL is not known; the nearest is WALRELAY_DATABASE_URL"},
		"variable of small case": {env: map[string]string{"WALRELAY_window": "5"}, want: "WALRELAY_window is not known; the nearest is WALRELAY_WINDOW"},
		"unknown key":            {file: "in_flight_byte: 5", want: "in_flight_byte (walrelay.yaml:1) is not known; the nearest is in_flight_bytes"},
		"key twice":              {file: "log_level: info\nlog-level: warn", want: "log-level (walrelay.yaml:2): is there already in line 1"},
		"mapping":                {file: "nats: {url: x}", want: "nats (walrelay.yaml:1): use a plain value"},
		"file in a file":         {file: "config: x", want: "config (walrelay.yaml:1): a file cannot name another one"},
		"number of the file":     {file: "window: many", want: `window (walrelay.yaml:1): use a whole number, not "many"`},
		"number of a variable":   {env: map[string]string{"WALRELAY_WINDOW": "1e3"}, want: `WALRELAY_WINDOW: use a whole number, not "1e3"`},
		"bounds of a variable":   {env: map[string]string{"WALRELAY_WINDOW": "100000"}, want: `WALRELAY_WINDOW="100000": use 1 to 65536 messages, or 0 for what the round trip needs`},
		"level":                  {args: []string{"--log-level=loud"}, want: `--log-level: use debug, info, warn or error, not "loud"`},
		"enum":                   {env: map[string]string{"WALRELAY_LOG_FORMAT": "xml"}, want: `WALRELAY_LOG_FORMAT: use one of auto, text, json, not "xml"`},
		"switch":                 {env: map[string]string{"WALRELAY_JSON": "maybe"}, want: `WALRELAY_JSON: use true or false, not "maybe"`},
		"admin":                  {args: []string{"--admin", "9640"}, want: `--admin="9640": use an address such as 127.0.0.1:9640, or off`},
		"admin for everybody": {
			args: []string{"--admin", "0.0.0.0:9640"},
			want: `--admin="0.0.0.0:9640": is not on loopback: set --admin-token-file, or --admin-tls-client-ca with --admin-tls-cert and --admin-tls-key, so that not everybody may ask`,
		},
		"admin on all addresses": {
			args: []string{"--admin", ":9640", "--admin-tls-client-ca", os.DevNull},
			want: `--admin-tls-client-ca: needs --admin-tls-cert and --admin-tls-key: without TLS nobody shows a certificate`,
		},
		"admin token that is empty": {
			args: []string{"--admin-token-file", os.DevNull},
			want: `--admin="127.0.0.1:9640": the admin token in /dev/null has 0 characters; use 16 to 4096, such as those of: openssl rand -hex 24`,
		},
		"admin key without certificate": {args: []string{"--admin-tls-key", os.DevNull}, want: `--admin-tls-cert: and --admin-tls-key go together; set both`},
		"NATS scheme":                   {args: []string{"--nats", "http://h"}, want: "--nats: server 1 of the list has the scheme http; use nats, tls, ws or wss"},
		"NATS user twice":               {args: []string{"--nats", "nats://u:p@h", "--nats-creds", os.DevNull}, want: "--nats: is told of a user in --nats and --nats-creds; use one of them"},
		"user without password":         {args: []string{"--nats-user", "u"}, want: "--nats-user: and --nats-password-file go together; set both"},
		"certificate without key":       {args: []string{"--nats-cert", os.DevNull}, want: "--nats-cert: and --nats-key go together; set both"},
		"file that is not there": {
			args: []string{"--database-password-file", "/nowhere/secret"},
			want: `--database-password-file="/nowhere/secret": cannot be read: no such file or directory; name a file that this user may read`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("WALRELAY_DATABASE_URL", somePostgres)
			t.Setenv("WALRELAY_NATS", someNATS)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			args := []string{"run"}
			if c.file != "" {
				args = append(args, "--config", file(t, c.file))
			}
			code, _, stderr := call(append(args, c.args...)...)
			if code != exitUsage {
				t.Errorf("walrelay run = %d, want %d", code, exitUsage)
			}
			if diff := cmp.Diff([]string{c.want}, problems(stderr)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAFileThatCannotBeReadAsYAMLIsNamedWithoutItsContent(t *testing.T) {
	for _, text := range []string{"nats: [\n  'geheim", "- geheim", "nats: *geheim", "nats: \"\\geheim\"", "\tnats: geheim", "geheim"} {
		code, _, stderr := call("run", "--config", file(t, text))
		if code != exitUsage || !strings.Contains(stderr, "--config: ") {
			t.Errorf("walrelay run with file %q = %d, want %d and the name of the setting: %s", text, code, exitUsage, stderr)
		}
		if strings.Contains(stderr, "geheim") {
			t.Errorf("the message for file %q repeats it: %s", text, stderr)
		}
	}
}

func TestAMissingFileOfSettingsIsAMistake(t *testing.T) {
	code, _, stderr := call("config", "--config", "/nowhere/walrelay.yaml", "--database-url", somePostgres, "--nats", someNATS)
	want := []string{"--config: open /nowhere/walrelay.yaml: no such file or directory"}
	if diff := cmp.Diff(want, problems(stderr)); code != exitUsage || diff != "" {
		t.Errorf("walrelay config = %d (-want +got):\n%s", code, diff)
	}
}

func TestVerbsWithoutSettingsDoNotCareForThoseOfOthers(t *testing.T) {
	t.Setenv("WALRELAY_WINDOW", "many")
	t.Setenv("WALRELAY_NO_SUCH", "x")
	if code, stdout, stderr := call("version"); code != exitDone || !strings.HasPrefix(stdout, "walrelay ") {
		t.Errorf("walrelay version = %d, %q, %q, want %d", code, stdout, stderr, exitDone)
	}
	if code, stdout, _ := call("run", "--help"); code != exitDone || !strings.Contains(stdout, "$WALRELAY_DATABASE_URL") {
		t.Errorf("walrelay run --help = %d, want %d and the names of variables: %s", code, exitDone, stdout)
	}
}

// Settings are shared by file and environment, so a name must mean the same
// kind of value in every verb. One does not: migrate --consumer says which
// side, --consumer NAME of other verbs says whose.
func TestAFlagOfOneNameHasOneTypeInEveryVerb(t *testing.T) {
	t.Parallel()
	parser, err := kong.New(&cli{})
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	var visit func(*kong.Node)
	visit = func(n *kong.Node) {
		for _, f := range n.Flags {
			kind := f.Target.Type().String()
			if other, ok := types[f.Name]; ok && other != kind && f.Name != "consumer" {
				t.Errorf("--%s of %s is a %s, elsewhere a %s", f.Name, n.FullPath(), kind, other)
			}
			types[f.Name] = kind
		}
		for _, child := range n.Children {
			visit(child)
		}
	}
	visit(parser.Model.Node)
}

func TestTheTableOfSettingsIsUpToDate(t *testing.T) {
	code, want, stderr := call("config", "--markdown")
	if code != exitDone {
		t.Fatalf("walrelay config --markdown = %d: %s", code, stderr)
	}
	got, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/configuration.md is not what walrelay config --markdown writes (-want +got):\n%s", diff)
	}
}

func TestTheNearestNameTakesTheFewestEdits(t *testing.T) {
	t.Parallel()
	words := []string{"nats", "nats-ca", "window", "silence", "source", "slot", "stream"}
	for given, want := range map[string]string{
		"nast": "nats", "nat": "nats", "widnow": "window", "streem": "stream", "sorce": "source", "slots": "slot", "nats-c": "nats-ca", "": "nats",
	} {
		if got := nearest(given, words); got != want {
			t.Errorf("nearest(%q) = %q, want %q", given, got, want)
		}
	}
}
