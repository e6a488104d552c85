package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/walrelay/walrelay"
)

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
		State: walrelay.StateStarting, Since: time.Unix(1_700_000_000, 0), Streams: []walrelay.StreamStatus{{Name: "SHOP", Mechanism: "chain", State: "idle"}},
	}), "/metrics")
	start := []string{
		`walrelay_build_info{goversion="go1.26",revision="abc",version="v1.2.3"} 1`,
		`walrelay_commit_to_stored_seconds_bucket{le="+Inf"} 0`,
		"walrelay_commit_to_stored_seconds_sum 0",
		"walrelay_commit_to_stored_seconds_count 0",
		`walrelay_events_total{outcome="dead_letter"} 0`,
		`walrelay_events_total{outcome="passed"} 0`,
		`walrelay_events_total{outcome="skipped"} 0`,
		`walrelay_events_total{outcome="stored"} 0`,
		`walrelay_gaps_total{kind="displaced"} 0`,
		`walrelay_gaps_total{kind="new-stream"} 0`,
		`walrelay_gaps_total{kind="phantom"} 0`,
		`walrelay_gaps_total{kind="slot"} 0`,
		`walrelay_gaps_total{kind="stream"} 0`,
		`walrelay_gaps_total{kind="unseen"} 0`,
		`walrelay_healed_events_total 0`,
		`walrelay_ignored_changes_total{kind="delete"} 0`,
		`walrelay_ignored_changes_total{kind="not_outbox"} 0`,
		`walrelay_ignored_changes_total{kind="truncate"} 0`,
		`walrelay_ignored_changes_total{kind="update"} 0`,
		`walrelay_in_flight_bytes{stream="SHOP"} 0`,
		`walrelay_in_flight_messages{stream="SHOP"} 0`,
		`walrelay_late_events_total 0`,
		`walrelay_nats_connected 0`,
		`walrelay_nats_reconnects_total 0`,
		`walrelay_publishes_total{outcome="acknowledged"} 0`,
		`walrelay_publishes_total{outcome="duplicate"} 0`,
		`walrelay_publishes_total{outcome="found"} 0`,
		`walrelay_publishes_total{outcome="refused"} 0`,
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
		`walrelay_stalled 0`,
		`walrelay_state{state="halted"} 0`,
		`walrelay_state{state="relaying"} 0`,
		`walrelay_state{state="standby"} 0`,
		`walrelay_state{state="starting"} 1`,
		`walrelay_state{state="stopped"} 0`,
		`walrelay_state{state="stopping"} 0`,
		`walrelay_state{state="waiting"} 0`,
		`walrelay_state_since_timestamp_seconds 1.7e+09`,
		`walrelay_stored_bytes_total 0`,
		`walrelay_stream_flowing{stream="SHOP"} 0`,
		`walrelay_stream_info{mechanism="chain",stream="SHOP"} 1`,
		`walrelay_stream_mark_met{stream="SHOP"} 0`,
		`walrelay_transactions_total 0`,
	}
	if diff := cmp.Diff(start, ours(body)); diff != "" {
		t.Errorf("metrics at the start (-want +got):\n%s", diff)
	}

	st := known()
	_, body = get(t, handler(st), "/metrics")
	for _, want := range []string{
		"walrelay_lag_seconds 1.5", "walrelay_behind_seconds 2.5", "walrelay_stalled 1", "walrelay_gaps_total{kind=\"slot\"} 4",
		"walrelay_healed_events_total 9", "walrelay_late_events_total 7", `walrelay_events_total{outcome="stored"} 5`, `walrelay_events_total{outcome="dead_letter"} 3`,
		`walrelay_retries_total{class="timeout"} 2`, "walrelay_resyncs_total 1", `walrelay_publishes_total{outcome="found"} 6`, "walrelay_stored_bytes_total 500",
		`walrelay_stream_last_sequence{stream="SHOP"} 7`, `walrelay_stream_stored_timestamp_seconds{stream="SHOP"} 1.700000002e+09`,
		`walrelay_commit_to_stored_seconds_bucket{le="0.01"} 2`, `walrelay_commit_to_stored_seconds_bucket{le="0.1"} 5`,
		`walrelay_commit_to_stored_seconds_bucket{le="+Inf"} 6`, "walrelay_commit_to_stored_seconds_sum 3.25", "walrelay_commit_to_stored_seconds_count 6",
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	for _, want := range asked() {
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

// known is a status in which everything is.
func known() walrelay.Status {
	st := relaying()
	safe, age, lag, seconds, behind := int64(1000), int64(77), int64(12), 1.5, 2.5
	st.SlotState.SafeBytes, st.SlotState.CatalogXminAge, st.LagBytes, st.LagSeconds, st.BehindSeconds = &safe, &age, &lag, &seconds, &behind
	st.StalledSince = st.At.Add(-time.Minute)
	st.DeadLetters.Open, st.DeadLetters.ByReason = 3, map[string]int{"too_large": 2, "id in use": 1}
	st.Gaps = &walrelay.GapsStatus{LookedAt: st.At, Open: []walrelay.GapStatus{{Kind: "slot"}, {Kind: "stream"}, {Kind: "slot"}}}
	st.Jobs = make([]walrelay.JobStatus, 1)
	st.Retention = &walrelay.RetentionStatus{LookedAt: st.At, Deleted: 8, Dropped: 2, Seconds: 0.5, BacklogSeconds: 60, PartitionsUntil: time.Unix(1_700_000_003, 0)}
	st.Streams[0].StoredAt = time.Unix(1_700_000_002, 0)
	st.Streams[0].Fill = &walrelay.FillStatus{LookedAt: st.At, Messages: 5, Bytes: 800, MaxMessages: 50, MaxBytes: 1000}
	st.Counters = walrelay.Counters{
		Stored: 5, Refused: 3, Healed: 9, Late: 7, StoredBytes: 500, GapsByKind: map[string]uint64{"slot": 4},
		Retries: walrelay.Retries{Timeouts: 2, Resyncs: 1}, Answers: walrelay.Answers{Found: 6},
	}
	st.Latency = walrelay.LatencyStatus{Bounds: []float64{0.01, 0.1}, Counts: []uint64{2, 3, 1}, Sum: 3.25}
	return st
}

// asked are the metrics of what a server was asked for.
func asked() []string {
	return []string{
		"walrelay_lag_bytes 12", "walrelay_slot_active 1", "walrelay_slot_retained_wal_bytes 56", "walrelay_slot_safe_wal_bytes 1000",
		"walrelay_slot_catalog_xmin_age_transactions 77", `walrelay_slot_wal_status{status="reserved"} 1`, `walrelay_slot_wal_status{status="lost"} 0`,
		"walrelay_dead_letters_open 3", `walrelay_dead_letters_open_by_reason{reason="id in use"} 1`, "walrelay_gaps_open 3",
		`walrelay_gaps_open_by_kind{kind="slot"} 2`, "walrelay_jobs_open 1", "walrelay_retention_backlog_seconds 60",
		"walrelay_retention_duration_seconds 0.5", "walrelay_partitions_until_timestamp_seconds 1.700000003e+09", `walrelay_stream_fill_ratio{stream="SHOP"} 0.8`, `walrelay_stream_messages{stream="SHOP"} 5`,
		`walrelay_stream_bytes{stream="SHOP"} 800`, `walrelay_stream_refuses_when_full{stream="SHOP"} 0`,
	}
}

// I10: what a server said an hour ago is not shown as if it were true.
func TestA14WhatIsOldIsAbsentRatherThanFrozen(t *testing.T) {
	t.Parallel()
	st := known()
	st.At = st.At.Add(time.Hour)
	_, body := get(t, handler(st), "/metrics")
	for _, old := range asked() {
		name, _, _ := strings.Cut(old, " ")
		if strings.Contains(body, "\n"+name+" ") {
			t.Errorf("/metrics has %s an hour after the servers were asked last", name)
		}
	}
	if !strings.Contains(body, "walrelay_retention_deleted_rows_total 8\n") {
		t.Error("/metrics lacks a counter, which cannot become old")
	}
}

func TestReasonsWithoutEndBecomeFewLabels(t *testing.T) {
	t.Parallel()
	st := known()
	st.DeadLetters.ByReason = map[string]int{}
	for i := range 100 {
		st.DeadLetters.ByReason[fmt.Sprint("reason ", i)] = i + 1
	}
	_, body := get(t, handler(st), "/metrics")
	const name = "walrelay_dead_letters_open_by_reason{"
	if n := strings.Count(body, "\n"+name); n != 21 {
		t.Errorf("/metrics has %d reasons, want 20 and other", n)
	}
	for _, want := range []string{name + `reason="reason 99"} 100`, name + `reason="reason 80"} 81`, name + `reason="other"} 3240`} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("/metrics lacks %q", want)
		}
	}
}
