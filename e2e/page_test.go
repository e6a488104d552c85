package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// What an operator sees of a real relay: idle, busy, with NATS stopped, and when
// that is over; the page is never loaded again. I10.
func TestA15TheStatusPageFollowsARelayThroughAnOutage(t *testing.T) {
	t.Parallel()
	broker := envtest.NATS(t, testenv.NATSConfig{})
	w := fixture.New(t, fixture.Config{NATS: broker, Flags: []string{"--admin", "127.0.0.1:0", "--ack-timeout", "1s"}})
	relay := w.Start()
	addr := adminOf(t, relay.Text)
	awaitReadiness(t, addr, http.StatusOK, "idle")
	tab, err := envtest.Browser(t).Open(t.Context(), "http://"+addr+"/", testenv.Screen{Width: 1280, Height: 900})
	if err != nil {
		t.Fatal(err)
	}
	says := func(phase string, parts ...string) {
		t.Helper()
		envtest.Eventually(t, fixture.Patience, func() error {
			var text string
			err := tab.Run(t.Context(), `document.documentElement.dataset.rendered + ' ' + document.body.innerText + ' ' + document.querySelector('#way svg')?.getAttribute('aria-label')`, &text)
			if err != nil || !strings.HasPrefix(text, phase+" ") {
				return fmt.Errorf("the page shows %.40q, want %s; %w", text, phase, err)
			}
			for _, part := range parts {
				if !strings.Contains(text, part) {
					return fmt.Errorf("the page lacks %q:\n%s", part, text)
				}
			}
			return nil
		})
	}
	says("idle", "Idle: everything is in place", "PostgreSQL: slot is held; walrelay: idle; JetStream: ready")
	envtest.Picture(t, tab, "idle")

	load := w.Load(fixture.LoadConfig{Writers: 2})
	says("delivering", "Events are delivered", "JetStream: stores events")
	envtest.Picture(t, tab, "busy")
	load.Stop()

	stopped := time.Now()
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Place(3)
	says("waiting", "Waiting: events stay safe in PostgreSQL", "no connection to NATS", "JetStream: no connection", "walrelay doctor --source "+w.Source)
	envtest.Picture(t, tab, "nats-stopped")
	// However often it tries, which changes the stream's state: it has waited
	// since then.
	var since time.Time
	envtest.Eventually(t, fixture.Patience, func() error {
		r := report(t, addr)
		since = r.PhaseSince
		if st := r.Streams[0]; since.Before(stopped) || st.Since.Sub(since) < time.Second {
			return fmt.Errorf("phase %s since %v, stream %s since %v; NATS was stopped at %v", r.Phase, since, st.State, st.Since, stopped)
		}
		return nil
	})
	says("waiting", "waiting since "+since.Local().Format("15:04:05")+";")
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	says("delivering", "Events are delivered")
	for _, c := range tab.Complaints() {
		t.Errorf("the browser complains: %s", c)
	}
	w.Settle(fixture.Patience)
}

// `make demo-page`.
func TestTheDemoServesAStatusPageUntilItIsStopped(t *testing.T) {
	t.Parallel()
	demo := launch(t, nil, "demo", "--page")
	url := ""
	envtest.Eventually(t, 2*fixture.Patience, func() error {
		m := regexp.MustCompile(`The status page: (http://\S+)`).FindStringSubmatch(demo.text())
		if m == nil {
			return errors.New("the demo names no page")
		}
		url = m[1]
		return nil
	})
	ask := func(path string) (string, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			return "", err
		}
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			return "", err
		}
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	for path, part := range map[string]string{"": "The way of an event", "readyz": "ready: delivering"} {
		envtest.Eventually(t, fixture.Patience, func() error {
			if text, err := ask(path); err != nil || !strings.Contains(text, part) {
				return fmt.Errorf("/%s lacks %q: %.200s; %w", path, part, text, err)
			}
			return nil
		})
	}
	if err := demo.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-demo.gone
	if code := demo.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("walrelay demo --page = %d after Ctrl-C, want 0", code)
	}
}
