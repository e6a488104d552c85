package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// deployed says what the settings in a file come to; the paths that it names
// are moved below a folder that has them.
func deployed(t *testing.T, config string, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range regexp.MustCompile(`/etc/walrelay/[^\s&]+`).FindAllString(config, -1) {
		file := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		text := []byte("0123456789abcdef0123\n")
		if strings.HasSuffix(file, ".crt") {
			var err error
			if text, err = os.ReadFile(envtest.CA(t, "ours").File()); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "walrelay.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(config, "/etc/walrelay/", dir+"/etc/walrelay/")), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, complaint bytes.Buffer
	if code := run(append([]string{"config", "--config", file}, more...), &out, &complaint); code != 0 {
		t.Fatalf("the settings that ship cannot be used: %d: %s", code, complaint.String())
	}
	return out.String()
}

func TestTheUnitOfSystemdIsHardenedAndStartsARelay(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/systemd/walrelay.service")
	if err != nil {
		t.Fatal(err)
	}
	section, unit := "", map[string][]string{}
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok || !slices.Contains([]string{"Unit", "Service", "Install"}, section) {
				t.Errorf("line %d is no setting of a section: %s", i+1, line)
			}
			unit[key] = append(unit[key], value)
		}
	}
	one := func(key string) string { return strings.Join(unit[key], " | ") }
	command := strings.Fields(one("ExecStart"))
	if len(command) < 4 || command[1] != "run" || command[2] != "--config" {
		t.Fatalf("ExecStart is %q, want run with a file of settings", command)
	}
	deployed(t, "database_url: postgres://relay@db/shop\nnats: nats://nats:4222\n", command[4:]...)
	for key, want := range map[string]string{
		"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes", "PrivateDevices": "yes", "CapabilityBoundingSet": "",
		"RestrictNamespaces": "yes", "MemoryDenyWriteExecute": "yes", "SystemCallFilter": "@system-service | ~@privileged @resources", "User": "walrelay",
		"Restart": "always", "RestartPreventExitStatus": strconv.Itoa(exitUsage), "LimitCORE": "0", "UMask": "0077",
	} {
		if got, ok := unit[key]; !ok || one(key) != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	stop, err := time.ParseDuration(one("TimeoutStopSec"))
	if err != nil || stop < 20*time.Second+togetherWithin {
		t.Errorf("TimeoutStopSec is %v (%v), less than drain_timeout", stop, err)
	}
	// Where systemd is, it is asked itself.
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "walrelay.service")
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte(command[0]), []byte(self)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program, "verify", "--man=no", file).CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
}

// A manifest is as much of Kubernetes' objects as the test looks at.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Replicas int
		Selector any
		Ports    []struct {
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Grace        int   `yaml:"terminationGracePeriodSeconds"`
				ServiceLinks *bool `yaml:"enableServiceLinks"`
				Security     struct {
					NonRoot bool `yaml:"runAsNonRoot"`
					User    int  `yaml:"runAsUser"`
				} `yaml:"securityContext"`
				Containers []struct {
					Args  []string
					Ports []struct {
						Name string
						Port int `yaml:"containerPort"`
					}
					Liveness  probe `yaml:"livenessProbe"`
					Readiness probe `yaml:"readinessProbe"`
					Startup   probe `yaml:"startupProbe"`
					Security  struct {
						ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
						Escalation   *bool `yaml:"allowPrivilegeEscalation"`
						Capabilities struct{ Drop []string }
					} `yaml:"securityContext"`
					Mounts []mount `yaml:"volumeMounts"`
				}
				Volumes []struct{ Name string }
			}
		}
	}
}

type mount struct {
	Name      string
	MountPath string `yaml:"mountPath"`
	SubPath   string `yaml:"subPath"`
}

type probe struct {
	HTTP struct{ Path, Port string } `yaml:"httpGet"`
}

func TestTheManifestsOfKubernetesFitTheProgram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/kubernetes/walrelay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]manifest{}
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m manifest
		if err := decoder.Decode(&m); err != nil {
			break
		}
		objects[m.Kind] = m
	}
	for _, kind := range []string{"ServiceAccount", "ConfigMap", "Deployment", "Service", "NetworkPolicy"} {
		if objects[kind].Metadata.Name != "walrelay" {
			t.Errorf("there is no %s walrelay", kind)
		}
	}
	config := objects["ConfigMap"].Data["walrelay.yaml"]
	pod := objects["Deployment"].Spec.Template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers, want 1", len(pod.Containers))
	}
	c := pod.Containers[0]
	if !slices.Equal(c.Args, []string{"run", "--config", "/etc/walrelay/walrelay.yaml"}) {
		t.Errorf("args are %q", c.Args)
	}
	settings := deployed(t, config)

	// What the probes ask is answered.
	status := func() walrelay.Status { return walrelay.Status{} }
	handler := admin.New(status, admin.Build{}, admin.NewHistory(status))
	for name, p := range map[string]probe{"liveness": c.Liveness, "readiness": c.Readiness, "startup": c.Startup} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, p.HTTP.Path, nil))
		if p.HTTP.Path == "" || p.HTTP.Port != "admin" || answer.Code == http.StatusNotFound {
			t.Errorf("the %s probe asks for %q at port %q: %d", name, p.HTTP.Path, p.HTTP.Port, answer.Code)
		}
	}
	if c.Liveness.HTTP.Path != "/healthz" || c.Readiness.HTTP.Path != "/readyz" {
		t.Errorf("liveness asks for %s, readiness for %s: an outage of a server must not restart the relay", c.Liveness.HTTP.Path, c.Readiness.HTTP.Path)
	}
	port := fmt.Sprint(c.Ports[0].Port)
	if service := objects["Service"].Spec.Ports[0]; c.Ports[0].Name != "admin" || service.TargetPort != "admin" || fmt.Sprint(service.Port) != port ||
		!regexp.MustCompile(`admin\s.*0\.0\.0\.0:`+port).MatchString(settings) {
		t.Errorf("the ports differ: container %+v, service %+v, settings\n%s", c.Ports, service, settings)
	}
	if pod.Grace < 20+int(togetherWithin.Seconds())+1 {
		t.Errorf("the grace period of %d s is less than drain_timeout", pod.Grace)
	}
	// Kubernetes makes WALRELAY_SERVICE_HOST of the service's name, and a
	// variable that is not known is an error.
	if pod.ServiceLinks == nil || *pod.ServiceLinks {
		t.Error("enableServiceLinks is not false")
	}
	if s := c.Security; !pod.Security.NonRoot || pod.Security.User != 65532 || !s.ReadOnly || s.Escalation == nil || *s.Escalation || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("the container may do more than it needs: %+v, %+v", pod.Security, s)
	}
	// Each file that the settings name is mounted, and a secret without subPath.
	for _, path := range regexp.MustCompile(`/etc/walrelay/[^\s&]+`).FindAllString(config, -1) {
		if !slices.ContainsFunc(c.Mounts, func(m mount) bool { return strings.HasPrefix(path, m.MountPath) }) {
			t.Errorf("nothing is mounted at %s", path)
		}
	}
	for _, m := range c.Mounts {
		if !slices.ContainsFunc(pod.Volumes, func(v struct{ Name string }) bool { return v.Name == m.Name }) || m.Name == "secrets" && m.SubPath != "" {
			t.Errorf("mount %+v has no volume, or is one that never changes", m)
		}
	}
}
