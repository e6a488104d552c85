package walrelay_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// A watched is a relay in this process whose clock can be moved, with what it
// serves.
type watched struct {
	t     *testing.T
	ahead atomic.Int64 // of its clock
	http  http.Handler
	stop  func()
}

func watch(t *testing.T, cfg walrelay.Config) *watched {
	t.Helper()
	relay, err := walrelay.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{t: t, http: admin.New(relay.Status, admin.Build{}, admin.NewHistory(relay.Status))}
	walrelay.SetClock(relay, func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }, 200*time.Millisecond)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		done <- nil
	}
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *watched) get(path string) (code int, body string) {
	answer := httptest.NewRecorder()
	w.http.ServeHTTP(answer, httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, path, nil))
	return answer.Code, answer.Body.String()
}

// A scrape is what is demanded of /readyz and /metrics at one time.
type scrape struct {
	ready bool
	body  string             // part of what /readyz says
	lag   func(float64) bool // the SLO; nil: not known, and absent
	has   []string           // lines of /metrics
	lacks []string           // names of metrics that must not be there
}

func (w *watched) shows(want scrape) {
	w.t.Helper()
	envtest.Eventually(w.t, 2*patience, func() error {
		code, body := w.get("/readyz")
		if (code == http.StatusOK) != want.ready || !strings.Contains(body, want.body) {
			return fmt.Errorf("/readyz = %d %q, want ready %v and %q", code, body, want.ready, want.body)
		}
		if code, body := w.get("/healthz"); code != http.StatusOK {
			return fmt.Errorf("/healthz = %d %q, want 200 in every state", code, body)
		}
		_, metrics := w.get("/metrics")
		metrics = "\n" + metrics
		_, rest, known := strings.Cut(metrics, "\nwalrelay_lag_seconds ")
		if known != (want.lag != nil) {
			return fmt.Errorf("walrelay_lag_seconds is there: %v, want %v (%s)", known, want.lag != nil, body)
		}
		if known {
			var lag float64
			if _, err := fmt.Sscan(rest, &lag); err != nil || !want.lag(lag) {
				return fmt.Errorf("walrelay_lag_seconds is %v, %w", lag, err)
			}
		}
		for _, line := range want.has {
			if !strings.Contains(metrics, "\n"+line+"\n") {
				return fmt.Errorf("/metrics lacks %q", line)
			}
		}
		for _, name := range want.lacks {
			if strings.Contains(metrics, "\n"+name+" ") || strings.Contains(metrics, "\n"+name+"{") {
				return fmt.Errorf("/metrics has %s, which nobody knows now", name)
			}
		}
		return nil
	})
}

func none(lag float64) bool { return lag == 0 }

func beyond(least float64) func(float64) bool {
	return func(lag float64) bool { return lag >= least }
}

// ofSession are the metrics of what only a session knows.
func ofSession() []string {
	return []string{"walrelay_slot_active", "walrelay_slot_retained_wal_bytes", "walrelay_lag_bytes", "walrelay_behind_seconds", "walrelay_slot_wal_status", "walrelay_stream_messages"}
}

// The SLO and the readiness in each state that an operator can meet, with real
// servers and a clock that is moved instead of waited for. I6, I10.
func TestA15TheSLOAndReadinessAreRightInEveryState(t *testing.T) {
	t.Parallel()
	server := envtest.Postgres(t, testenv.PGConfig{})
	broker := envtest.NATS(t, testenv.NATSConfig{})
	p := newPatient(t, server.URL("postgres"), true)
	nc, err := nats.Connect(broker.URL(), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if p.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	p.cfg.NATS, p.cfg.OnGap, p.cfg.AckTimeout = broker.URL(), walrelay.GapHalt, time.Second
	p.makeStream(func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1000, jetstream.DiscardNew })
	place := func(n int) {
		t.Helper()
		p.exec(fmt.Sprintf(`INSERT INTO walrelay.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'order', n::text, 'placed', '{}' FROM generate_series(1, %d) n`, n))
	}
	w := watch(t, p.cfg)

	// Idle for an hour, in a database that is busy with other things. // A14
	w.shows(scrape{ready: true, lag: none, has: []string{"walrelay_slot_active 1"}})
	w.ahead.Store(int64(time.Hour))
	p.exec("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000)) FROM generate_series(1, 100)")
	w.shows(scrape{ready: true, body: "ready: idle", lag: none, has: []string{
		"walrelay_behind_seconds 0", "walrelay_stalled 0", "walrelay_slot_active 1", `walrelay_slot_wal_status{status="reserved"} 1`,
		`walrelay_stream_fill_ratio{stream="POSTGRES"} 0`, "walrelay_commit_to_stored_seconds_count 0", "walrelay_dead_letters_open 0", "walrelay_gaps_open 0",
	}})
	w.ahead.Store(0)

	// Busy.
	place(500)
	w.shows(scrape{ready: true, body: "ready: delivering", lag: none, has: []string{
		`walrelay_events_total{outcome="stored"} 500`, "walrelay_commit_to_stored_seconds_count 500", "walrelay_stored_bytes_total 1000",
		"walrelay_transactions_total 1", `walrelay_publishes_total{outcome="acknowledged"} 500`, `walrelay_stream_fill_ratio{stream="POSTGRES"} 0.5`,
	}})

	// The walsender stands still: nothing says so but the server's end.
	walsender := 0
	if err := p.conn.QueryRow(t.Context(), "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1", p.name).Scan(&walsender); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(walsender, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	place(1)
	envtest.Eventually(t, patience, func() error {
		if _, metrics := w.get("/metrics"); strings.Contains(metrics, "walrelay_behind_seconds 0\n") {
			return errors.New("the server's new end was not seen")
		}
		return nil
	})
	w.ahead.Store(int64(5 * time.Minute))
	w.shows(scrape{ready: false, body: "stalled", lag: none, has: []string{"walrelay_stalled 1"}})
	if err := syscall.Kill(walsender, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.shows(scrape{ready: true, lag: none, has: []string{`walrelay_events_total{outcome="stored"} 501`, "walrelay_stalled 0"}})
	w.ahead.Store(0)

	// NATS down: the age of what waits grows with the clock. // A59
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	place(3)
	w.shows(scrape{ready: false, body: "no connection to NATS", lag: beyond(0.001), has: []string{"walrelay_nats_connected 0"}, lacks: []string{"walrelay_stream_messages"}})
	w.ahead.Store(int64(10 * time.Minute))
	w.shows(scrape{ready: false, body: "waiting", lag: beyond(600), has: []string{"walrelay_stalled 0"}})
	w.ahead.Store(0)
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.shows(scrape{ready: true, lag: none, has: []string{`walrelay_events_total{outcome="stored"} 504`, "walrelay_commit_to_stored_seconds_count 504"}})
	// Three events have waited for a broker that was stopped and started.
	_, metrics := w.get("/metrics")
	_, rest, _ := strings.Cut(metrics, "\nwalrelay_commit_to_stored_seconds_sum ")
	var sum float64
	if _, err := fmt.Sscan(rest, &sum); err != nil || sum < 0.1 || sum > 600 {
		t.Errorf("walrelay_commit_to_stored_seconds_sum is %v, %v, want some seconds: what the events have waited", sum, err)
	}

	// A standby knows nothing of the slot, and says that it delivers nothing.
	second := watch(t, p.cfg)
	second.shows(scrape{ready: false, body: "standby: slot", has: []string{`walrelay_state{state="standby"} 1`}, lacks: ofSession()})
	second.stop()
	w.shows(scrape{ready: true, lag: none})

	// PostgreSQL down: what is owed is not known, and nothing is frozen.
	if err := server.Stop(t.Context(), testenv.Immediate); err != nil {
		t.Fatal(err)
	}
	w.shows(scrape{ready: false, body: "waiting", lacks: ofSession()})
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.shows(scrape{ready: true, lag: none, has: []string{"walrelay_slot_active 1"}})
	w.stop()

	// The slot lost its WAL while no relay ran.
	if p.conn, err = pgx.Connect(t.Context(), p.cfg.DatabaseURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.conn.Close(context.Background()) })
	place(1)
	p.exec("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()",
		"SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 40)", "SELECT pg_switch_wal()", "CHECKPOINT")
	late := watch(t, p.cfg)
	late.shows(scrape{ready: false, body: "halted: slot", has: []string{`walrelay_state{state="halted"} 1`}, lacks: ofSession()})
}
