package testenv_test

import (
	"context"
	"errors"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// connect opens JetStream on a server, closed when the test ends.
func connect(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.ReconnectWait(20*time.Millisecond), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// store creates the stream KEPT, if need be, and stores a message there.
func store(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	if _, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "KEPT", Subjects: []string{"kept"}}); err != nil {
		t.Fatalf("create the stream: %v", err)
	}
	if _, err := js.Publish(t.Context(), "kept", []byte("message")); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

// stored is the number of messages in the stream KEPT.
func stored(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	var messages uint64
	envtest.Eventually(t, soon, func() error {
		s, err := js.Stream(t.Context(), "KEPT")
		if err != nil {
			return err
		}
		messages = s.CachedInfo().State.Msgs
		return nil
	})
	return messages
}

func TestAChildServerKeepsItsStreamsThroughStopAndKill(t *testing.T) {
	t.Parallel()
	n := envtest.NATS(t, testenv.NATSConfig{SyncAlways: true})
	js := connect(t, n.URL())
	for i, end := range []func(context.Context) error{n.Stop, n.Kill} {
		store(t, js)
		must(t, end(t.Context()))
		if got := n.Pid(); got != 0 {
			t.Errorf("after its end: Pid() = %d, want 0", got)
		}
		must(t, n.Start(t.Context()))
		if got, want := stored(t, js), uint64(i+1); got != want {
			t.Errorf("%d messages after start %d, want %d", got, i+1, want)
		}
	}
	if _, err := os.Stat(filepath.Join(n.StoreDir(), "$G", "streams", "KEPT")); err != nil {
		t.Errorf("StoreDir() = %s: %v", n.StoreDir(), err)
	}
}

// What `make test-matrix` asks for is what runs.
func TestTheNATSServerIsTheOneThatIsNamed(t *testing.T) {
	t.Parallel()
	want := server.VERSION
	if program := os.Getenv("WALRELAY_TEST_NATS"); program != "" {
		text, err := osexec.CommandContext(t.Context(), program, "--version").Output()
		if err != nil {
			t.Fatal(err)
		}
		_, want, _ = strings.Cut(strings.TrimSpace(string(text)), ": v")
		if want == server.VERSION {
			t.Errorf("%s is the version that is linked in", program)
		}
	}
	for kind, url := range map[string]string{
		"child":    envtest.NATS(t, testenv.NATSConfig{}).URL(),
		"embedded": envtest.EmbeddedNATS(t).URL(),
		"member":   envtest.NATSCluster(t, 3, testenv.NATSConfig{})[0].URL(),
	} {
		if got := connect(t, url).Conn().ConnectedServerVersion(); got != want {
			t.Errorf("version of a server of the kind %q = %s, want %s", kind, got, want)
		}
	}
}

func TestAPausedChildServerAnswersAfterResume(t *testing.T) {
	t.Parallel()
	n := envtest.NATS(t, testenv.NATSConfig{})
	js := connect(t, n.URL())
	store(t, js)
	must(t, n.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), while)
	defer cancel()
	if _, err := js.Publish(ctx, "kept", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("paused: Publish = %v, want no answer", err)
	}
	must(t, n.Resume())
	store(t, js)
}

func TestCredentialsAreAskedForAndAreInTheURL(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]testenv.NATSConfig{
		"password": {User: "relay", Password: "p@ss/word"},
		"token":    {Token: "s3cret"},
	} {
		child := envtest.NATS(t, cfg)
		embedded := envtest.EmbeddedNATS(t, cfg)
		for _, server := range []interface {
			URL() string
			Addr() string
		}{child, embedded} {
			store(t, connect(t, server.URL()))
			if nc, err := nats.Connect("nats://" + server.Addr()); err == nil {
				nc.Close()
				t.Errorf("%s: connected without", name)
			}
		}
	}
}

func TestAUsersConfigurationFileIsObeyed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte("server_name: own\nmax_payload: 2048\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[int64]testenv.NATSConfig{
		2048: {ConfigFile: file},
		4096: {ConfigFile: file, MaxPayload: 4096},
	} {
		js := connect(t, envtest.NATS(t, cfg).URL())
		if got := js.Conn().ConnectedServerName(); got != "own" {
			t.Errorf("name = %q, want own", got)
		}
		if got := js.Conn().MaxPayload(); got != want {
			t.Errorf("max_payload = %d, want %d", got, want)
		}
	}
}

func TestABadConfigurationFileFailsTheStartWithTheServersWords(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte("max_payload: many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := envtest.Env(t).StartNATS(t.Context(), testenv.NATSConfig{ConfigFile: file}); err == nil {
		t.Error("StartNATS = nil, want an error")
	} else {
		t.Log(err)
	}
}

func TestAnEmbeddedServerKeepsAStreamInItsFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for want := range uint64(2) {
		n, err := testenv.StartEmbeddedNATS(testenv.NATSConfig{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		js := connect(t, n.URL())
		store(t, js)
		if got := stored(t, js); got != want+1 {
			t.Errorf("%d messages, want %d", got, want+1)
		}
		js.Conn().Close()
		n.Close()
	}
}

func TestAClusterKeepsAStreamWithoutOneOfItsServers(t *testing.T) {
	t.Parallel()
	servers := envtest.NATSCluster(t, 3, testenv.NATSConfig{})
	js := connect(t, servers[0].URL()+","+servers[1].URL()+","+servers[2].URL())
	s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KEPT", Subjects: []string{"kept"}, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	leader := s.CachedInfo().Cluster.Leader
	for _, n := range servers {
		if n.Name() == leader {
			must(t, n.Kill(t.Context()))
		}
	}
	envtest.Eventually(t, 3*soon, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.Publish(ctx, "kept", nil)
		return err
	})
}
