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
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func handler(st walrelay.Status) http.Handler {
	return admin.New(func() walrelay.Status { return st }, admin.Build{Version: "v1.2.3", Revision: "abc", GoVersion: "go1.26"})
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
	return walrelay.Status{
		Source: "shop", Slot: "shop", Publication: "shop", State: walrelay.StateRelaying, Since: time.Unix(1_700_000_000, 0),
		LagSeconds: &zero, LagBytes: &bytes, Streams: []walrelay.StreamStatus{flowing()}, NATS: walrelay.NATSStatus{Connected: true},
		SlotState:   &walrelay.SlotStatus{Active: true, WALStatus: "reserved", RetainedBytes: 56, LookedAt: time.Unix(1_700_000_001, 0)},
		DeadLetters: &walrelay.DeadLetters{},
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
	}{
		"with everything fine and no event for an hour": {func(*walrelay.Status) {}, ""},
		"with events in flight":                         {func(s *walrelay.Status) { s.Streams[0].InFlight = 5; s.Streams[0].UnacknowledgedSince = time.Now() }, ""},
		"just started":                                  {func(s *walrelay.Status) { s.State = walrelay.StateStarting; s.Streams[0].Flowing = false }, "starting"},
		"NATS away while relaying":                      {func(s *walrelay.Status) { s.Streams[0] = away }, `stream "SHOP": waiting: no connection to NATS: dial refused`},
		"one of two streams deleted":                    {func(s *walrelay.Status) { s.Streams = append(s.Streams, missing) }, `stream "OTHER": waiting: stream "OTHER" does not exist`},
		"slot dropped":                                  {func(s *walrelay.Status) { s.State, s.Reason = walrelay.StateHalted, `slot "shop" is missing` }, `halted: slot "shop" is missing`},
		"PostgreSQL away":                               {func(s *walrelay.Status) { s.State, s.Reason = walrelay.StateWaiting, "open a SQL connection: refused" }, "waiting: open a SQL connection: refused"},
		"standby":                                       {func(s *walrelay.Status) { s.State, s.Reason = walrelay.StateStandby, `slot "shop" is held by pid 7` }, `standby: slot "shop" is held by pid 7`},
		"stopping":                                      {func(s *walrelay.Status) { s.State, s.Reason = walrelay.StateStopping, "waiting for what is in flight" }, "stopping: waiting for what is in flight"},
		"stopped":                                       {func(s *walrelay.Status) { s.State = walrelay.StateStopped }, "stopped"},
		"NATS away at the start": {func(s *walrelay.Status) {
			s.State, s.Reason = walrelay.StateWaiting, "waiting for the end of the streams"
			s.Streams[0] = away
		}, `waiting: waiting for the end of the streams; stream "SHOP": no connection to NATS: dial refused`},
		"both servers away": {func(s *walrelay.Status) {
			s.State, s.Reason = walrelay.StateWaiting, "open a SQL connection: refused"
			s.NATS = walrelay.NATSStatus{LastError: "nats: Authorization Violation"}
		}, "waiting: open a SQL connection: refused; no connection to NATS: nats: Authorization Violation"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := relaying()
			c.change(&st)
			h := handler(st)
			wantCode, wantBody, wantReady := http.StatusOK, "ready\n", "walrelay_ready 1\n"
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

// ours are the lines of our metrics, without help and type.
func ours(body string) []string {
	var lines []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "walrelay_") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestA43MetricsAreThereFromTheStartAndWhatIsNotKnownIsAbsent(t *testing.T) {
	t.Parallel()
	_, body := get(t, handler(walrelay.Status{
		State: walrelay.StateStarting, Since: time.Unix(1_700_000_000, 0), Streams: []walrelay.StreamStatus{{Name: "SHOP", State: "idle"}},
	}), "/metrics")
	start := []string{
		`walrelay_build_info{goversion="go1.26",revision="abc",version="v1.2.3"} 1`,
		`walrelay_events_total{outcome="dead_letter"} 0`,
		`walrelay_events_total{outcome="passed"} 0`,
		`walrelay_events_total{outcome="skipped"} 0`,
		`walrelay_events_total{outcome="stored"} 0`,
		`walrelay_gaps_total 0`,
		`walrelay_healed_events_total 0`,
		`walrelay_ignored_changes_total{kind="delete"} 0`,
		`walrelay_ignored_changes_total{kind="not_outbox"} 0`,
		`walrelay_ignored_changes_total{kind="truncate"} 0`,
		`walrelay_ignored_changes_total{kind="update"} 0`,
		`walrelay_in_flight_bytes{stream="SHOP"} 0`,
		`walrelay_in_flight_messages{stream="SHOP"} 0`,
		`walrelay_nats_connected 0`,
		`walrelay_nats_reconnects_total 0`,
		`walrelay_queued_messages{stream="SHOP"} 0`,
		`walrelay_ready 0`,
		`walrelay_resyncs_total 0`,
		`walrelay_retention_deleted_rows_total 0`,
		`walrelay_retention_dropped_partitions_total 0`,
		`walrelay_retries_total{class="denied"} 0`,
		`walrelay_retries_total{class="disconnect"} 0`,
		`walrelay_retries_total{class="environment"} 0`,
		`walrelay_retries_total{class="no_responders"} 0`,
		`walrelay_retries_total{class="timeout"} 0`,
		`walrelay_retries_total{class="wrong_sequence"} 0`,
		`walrelay_rows_total 0`,
		`walrelay_sessions_total 0`,
		`walrelay_state{state="halted"} 0`,
		`walrelay_state{state="relaying"} 0`,
		`walrelay_state{state="standby"} 0`,
		`walrelay_state{state="starting"} 1`,
		`walrelay_state{state="stopped"} 0`,
		`walrelay_state{state="stopping"} 0`,
		`walrelay_state{state="waiting"} 0`,
		`walrelay_state_since_timestamp_seconds 1.7e+09`,
		`walrelay_stream_flowing{stream="SHOP"} 0`,
		`walrelay_stream_mark_met{stream="SHOP"} 0`,
		`walrelay_transactions_total 0`,
	}
	if diff := cmp.Diff(start, ours(body)); diff != "" {
		t.Errorf("metrics at the start (-want +got):\n%s", diff)
	}

	st := relaying()
	safe, age, lag, seconds := int64(1000), int64(77), int64(12), 1.5
	st.SlotState.SafeBytes, st.SlotState.CatalogXminAge, st.LagBytes, st.LagSeconds = &safe, &age, &lag, &seconds
	st.DeadLetters.Open = 3
	st.Gaps, st.Jobs = &walrelay.GapsStatus{Open: make([]walrelay.GapStatus, 2)}, make([]walrelay.JobStatus, 1)
	st.Streams[0].StoredAt = time.Unix(1_700_000_002, 0)
	st.Counters = walrelay.Counters{Stored: 5, Refused: 3, Gaps: 4, Healed: 9, Retries: walrelay.Retries{Timeouts: 2, Resyncs: 1}}
	_, body = get(t, handler(st), "/metrics")
	for _, want := range []string{
		"walrelay_lag_seconds 1.5", "walrelay_lag_bytes 12", "walrelay_slot_active 1", "walrelay_slot_retained_wal_bytes 56",
		"walrelay_slot_safe_wal_bytes 1000", "walrelay_slot_catalog_xmin_age_transactions 77", "walrelay_dead_letters_open 3",
		"walrelay_gaps_open 2", "walrelay_gaps_total 4", "walrelay_healed_events_total 9", "walrelay_jobs_open 1",
		`walrelay_events_total{outcome="stored"} 5`, `walrelay_events_total{outcome="dead_letter"} 3`, `walrelay_retries_total{class="timeout"} 2`,
		"walrelay_resyncs_total 1", `walrelay_stream_last_sequence{stream="SHOP"} 7`, `walrelay_stream_stored_timestamp_seconds{stream="SHOP"} 1.700000002e+09`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "walrelay_") {
			t.Errorf("metric %s: %s", p.Metric, p.Text)
		}
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
		admin.Serve(ctx, addr, handler(relaying()), log)
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
