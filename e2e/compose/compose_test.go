package compose_test

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

// composeFile is the path of the file that ships.
func composeFile(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(root + "/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func shipped(t *testing.T) project {
	t.Helper()
	p, err := load(t, composeFile(t))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What is wrong with a file is an error; the other tests rely on that.
func TestNamesThatDoNotExistAreRefused(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(composeFile(t))
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string][2]string{
		"service": {"nats: {condition", "natz: {condition"},
		"key":     {"healthcheck:", "helthcheck:"},
		"volume":  {"- nats:/data", "- natz:/data"},
		"secret":  {"secrets: [nats_token]", "secrets: [nats_tokem]"},
	} {
		path := filepath.Join(t.TempDir(), "compose.yaml")
		changed := strings.Replace(string(text), change[0], change[1], 1)
		if changed == string(text) {
			t.Fatalf("compose.yaml does not hold %q", change[0])
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load(t, path); err == nil {
			t.Errorf("a misspelt %s was taken", what)
		}
	}
}

func TestNothingIsPublishedBeyondLoopback(t *testing.T) {
	t.Parallel()
	ports := 0
	for name, s := range shipped(t).Services {
		if s.NetworkMode != "" {
			t.Errorf("service %s: network mode %s; the project's own network is meant", name, s.NetworkMode)
		}
		for _, port := range s.Ports {
			ports++
			if ip, err := netip.ParseAddr(port.HostIP); err != nil || !ip.IsLoopback() {
				t.Errorf("service %s publishes port %s on %q, want 127.0.0.1", name, port.Published, port.HostIP)
			}
		}
	}
	if ports == 0 {
		t.Error("no port is published: is this the right file?")
	}
}

// compose-go does not look at the conditions.
func TestServicesWaitForWhatCanCome(t *testing.T) {
	t.Parallel()
	services := shipped(t).Services
	for name, s := range services {
		for other, d := range s.DependsOn {
			switch d.Condition {
			case "service_healthy":
				if h := services[other].Health; h == nil || len(h.Test) == 0 || h.Test[0] == "NONE" {
					t.Errorf("service %s waits until %s is healthy, which has no health check", name, other)
				}
			case "service_completed_successfully":
				if r := services[other].Restart; r != "no" {
					t.Errorf("service %s waits for the end of %s, which is restarted: %q", name, other, r)
				}
			default:
				t.Errorf("service %s waits for %s with condition %q, which says nothing of its work", name, other, d.Condition)
			}
		}
	}
	for _, name := range []string{"postgres", "nats", "relay"} {
		if services[name].Health == nil {
			t.Errorf("service %s has no health check", name)
		}
	}
}

func TestDataIsOnNamedVolumes(t *testing.T) {
	t.Parallel()
	p := shipped(t)
	used := map[string]bool{}
	for name, s := range p.Services {
		for _, v := range s.Volumes {
			switch v.Type {
			case "volume":
				if _, ok := p.Volumes[v.Source]; !ok {
					t.Errorf("service %s: %s is on no named volume", name, v.Target)
				}
				used[v.Source] = true
			case "bind":
				if _, err := os.Stat(v.Source); err != nil {
					t.Errorf("service %s: %v", name, err)
				}
			}
		}
	}
	if got, want := slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(p.Volumes)); !slices.Equal(got, want) {
		t.Errorf("volumes in use %v, want those that are declared, %v", got, want)
	}
	// From version 18 on the image keeps its data in a folder of its own below.
	for service, target := range map[string]string{"postgres": "/var/lib/postgresql", "nats": storeDir(t)} {
		if !slices.ContainsFunc(p.Services[service].Volumes, func(v struct{ Type, Source, Target string }) bool {
			return v.Type == "volume" && v.Target == target
		}) {
			t.Errorf("service %s: no named volume at %s", service, target)
		}
	}
}

// storeDir is where the broker keeps its streams.
func storeDir(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(root + "/deploy/compose/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`store_dir: (\S+)`).FindSubmatch(text)
	if match == nil {
		t.Fatal("deploy/compose/nats.conf names no store_dir")
	}
	return string(match[1])
}

// A tag that moves from one major version to the next breaks a volume.
func TestImagesHaveVersions(t *testing.T) {
	t.Parallel()
	for name, s := range shipped(t).Services {
		if s.Build == nil && !regexp.MustCompile(`^[\w/.-]+:v?\d`).MatchString(s.Image) {
			t.Errorf("service %s: image %q has no version", name, s.Image)
		}
	}
}

func TestTheConsumerGetsTheSettingsThatItReads(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile(root + "/examples/node/consumer.ts")
	if err != nil {
		t.Fatal(err)
	}
	reads := map[string]bool{"PGPASSWORD": true} // by its client of PostgreSQL
	for _, match := range regexp.MustCompile(`process\.env\.(\w+)`).FindAllSubmatch(program, -1) {
		reads[string(match[1])] = true
	}
	s := shipped(t).Services["consumer"]
	gets := map[string]bool{}
	for name := range s.Environment {
		gets[name] = true
	}
	for _, match := range regexp.MustCompile(`(\w+)=\$`).FindAllStringSubmatch(strings.Join(s.Command, " "), -1) {
		gets[match[1]] = true
	}
	if got, want := slices.Sorted(maps.Keys(gets)), slices.Sorted(maps.Keys(reads)); !slices.Equal(got, want) {
		t.Errorf("the consumer gets %v, and reads %v", got, want)
	}
}
