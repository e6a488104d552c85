package admin_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m) }

func handler(st walrelay.Status) http.Handler {
	status := func() walrelay.Status { return st }
	return admin.New(status, admin.Build{Version: "v1.2.3", Revision: "abc", GoVersion: "go1.26"}, admin.NewHistory(status))
}

func get(t *testing.T, h http.Handler, path string) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func flowing() walrelay.StreamStatus {
	return walrelay.StreamStatus{Name: "SHOP", Mechanism: "chain", MarkMet: true, State: "flowing", Flowing: true, LastSequence: 7}
}

func relaying() walrelay.Status {
	zero, bytes := 0.0, int64(0)
	now := time.Now()
	return walrelay.Status{
		At: now, Source: "shop", Slot: "shop", Publication: "shop", State: walrelay.StateRelaying, Since: time.Unix(1_700_000_000, 0),
		LagSeconds: &zero, LagBytes: &bytes, Streams: []walrelay.StreamStatus{flowing()}, NATS: walrelay.NATSStatus{Connected: true},
		SlotState:   &walrelay.SlotStatus{Active: true, WALStatus: "reserved", RetainedBytes: 56, LookedAt: now.Add(-10 * time.Second)},
		DeadLetters: &walrelay.DeadLetters{LookedAt: now},
	}
}

// I10.
func TestA15OnlyARelayThatDeliversIsReady(t *testing.T) {
	t.Parallel()
	away := flowing()
	away.State, away.Flowing, away.Reason = "waiting", false, "no connection to NATS: dial refused"
	missing := flowing()
	missing.Name, missing.State, missing.Flowing, missing.Reason = "OTHER", "waiting", false, `stream "OTHER" does not exist`
	for name, c := range map[string]struct {
		change func(*walrelay.Status)
		want   string // "" is ready
		phase  walrelay.Phase
	}{
		"with everything fine and no event for an hour": {func(s *walrelay.Status) { s.Streams[0].StoredAt = s.At.Add(-time.Hour) }, "", "idle"},
		"with events in flight":                         {func(s *walrelay.Status) { s.Streams[0].InFlight = 5; s.Streams[0].UnacknowledgedSince = time.Now() }, "", "delivering"},
		"with an event stored a second ago":             {func(s *walrelay.Status) { s.Streams[0].StoredAt = s.At.Add(-time.Second) }, "", "delivering"},
		"with nothing moving": {
			func(s *walrelay.Status) { s.StalledSince = s.At.Add(-90 * time.Second) },
			`stalled: nothing was received, stored or confirmed for 1m30s, though there is something to do; look at what the walsender of slot "shop" does in pg_stat_activity`, "stalled",
		},
		"with PostgreSQL waiting for its standby": {
			func(s *walrelay.Status) {
				s.Withheld, s.WithheldSince = `PostgreSQL sends nothing, and there is no physical slot "sb"`, s.At.Add(-time.Minute)
			},
			`waiting: PostgreSQL sends nothing, and there is no physical slot "sb"`, "waiting",
		},
		"just started":               {func(s *walrelay.Status) { s.State = walrelay.StateStarting; s.Streams[0].Flowing = false }, "starting", "starting"},
		"NATS away while relaying":   {func(s *walrelay.Status) { s.Streams[0] = away }, `stream "SHOP": waiting: no connection to NATS: dial refused`, "waiting"},
		"one of two streams deleted": {func(s *walrelay.Status) { s.Streams = append(s.Streams, missing) }, `stream "OTHER": waiting: stream "OTHER" does not exist`, "waiting"},
		"slot dropped":               {func(s *walrelay.Status) { s.State, s.Reason = walrelay.StateHalted, `slot "shop" is missing` }, `halted: slot "shop" is missing`, "halted"},
		"PostgreSQL away":            {func(s *walrelay.Status) { s.State, s.Reason = walrelay.StateWaiting, "open a SQL connection: refused" }, "waiting: open a SQL connection: refused", "waiting"},
		"standby":                    {func(s *walrelay.Status) { s.State, s.Reason = walrelay.StateStandby, `slot "shop" is held by pid 7` }, `standby: slot "shop" is held by pid 7`, "standby"},
		"stopping":                   {func(s *walrelay.Status) { s.State, s.Reason = walrelay.StateStopping, "waiting for what is in flight" }, "stopping: waiting for what is in flight", "stopping"},
		"stopped":                    {func(s *walrelay.Status) { s.State = walrelay.StateStopped }, "stopped", "stopped"},
		"NATS away at the start": {func(s *walrelay.Status) {
			s.State, s.Reason = walrelay.StateWaiting, "waiting for the end of the streams"
			s.Streams[0] = away
		}, `waiting: waiting for the end of the streams; stream "SHOP": no connection to NATS: dial refused`, "waiting"},
		"both servers away": {func(s *walrelay.Status) {
			s.State, s.Reason = walrelay.StateWaiting, "open a SQL connection: refused"
			s.NATS = walrelay.NATSStatus{LastError: "nats: Authorization Violation"}
		}, "waiting: open a SQL connection: refused; no connection to NATS: nats: Authorization Violation", "waiting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := relaying()
			c.change(&st)
			h := handler(st)
			wantCode, wantBody, wantReady := http.StatusOK, "ready: "+string(c.phase)+"\n", "walrelay_ready 1\n"
			if c.want != "" {
				wantCode, wantBody, wantReady = http.StatusServiceUnavailable, "not ready: "+c.want+"\n", "walrelay_ready 0\n"
			}
			if code, body := get(t, h, "/readyz"); code != wantCode || body != wantBody {
				t.Errorf("/readyz = %d %q, want %d %q", code, body, wantCode, wantBody)
			}
			if code, _ := get(t, h, "/healthz"); code != http.StatusOK {
				t.Errorf("/healthz = %d, want 200 in every state", code)
			}
			if code, body := get(t, h, "/metrics"); code != http.StatusOK || !strings.Contains(body, wantReady) ||
				!strings.Contains(body, `walrelay_state{state="`+string(st.State)+`"} 1`) {
				t.Errorf("/metrics = %d, want 200, %q and the state %s:\n%s", code, wantReady, st.State, body)
			}
			var report admin.Report
			code, body := get(t, h, "/status")
			if err := json.Unmarshal([]byte(body), &report); code != http.StatusOK || err != nil {
				t.Fatalf("/status = %d, %v", code, err)
			}
			if report.Phase != c.phase {
				t.Errorf("phase is %q, want %q", report.Phase, c.phase)
			}
			if diff := cmp.Diff(admin.NewReport(st), report, cmp.Comparer(time.Time.Equal)); diff != "" {
				t.Errorf("/status (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNothingElseIsServedAndNothingCanBeChanged(t *testing.T) {
	t.Parallel()
	h := handler(relaying())
	if code, body := get(t, h, "/"); code != http.StatusOK || !strings.Contains(body, "/readyz") {
		t.Errorf("/ = %d %q, want a list of the paths", code, body)
	}
	if code, _ := get(t, h, "/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("/debug/pprof/ = %d, want 404", code)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/status", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST /status = %d, want 405", w.Code)
	}
}

func TestAnAddressInUseIsTriedAgainUntilTheEnd(t *testing.T) {
	t.Parallel()
	var config net.ListenConfig
	taken, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := taken.Addr().String()
	read, write := io.Pipe()
	log := slog.New(slog.NewJSONHandler(write, nil))
	lines := make(chan string, 16)
	go func() {
		decoder := json.NewDecoder(read)
		for {
			var line struct{ Level, Msg string }
			if decoder.Decode(&line) != nil {
				close(lines)
				return
			}
			lines <- line.Level + " " + line.Msg
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		admin.Serve(ctx, admin.Access{Addr: addr}, handler(relaying()), log)
	}()
	if line := <-lines; !strings.HasPrefix(line, "WARN status and metrics cannot be served") {
		t.Errorf("first line of the log is %q, want a warning", line)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if line := <-lines; !strings.HasPrefix(line, "INFO status and metrics are served") {
		t.Errorf("second line of the log is %q, want that it is served", line)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("/readyz = %d, %v, want 200", response.StatusCode, err)
	}
	cancel()
	<-done
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
		_ = conn.Close()
		t.Error("somebody still listens after Serve has returned")
	}
}
