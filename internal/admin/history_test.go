package admin_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/internal/admin"
)

type history struct {
	Every  float64       `json:"every_seconds"`
	Points []admin.Point `json:"points"`
}

func read(t *testing.T, h http.Handler, path string) (got history) {
	t.Helper()
	code, body := get(t, h, path)
	if err := json.Unmarshal([]byte(body), &got); code != http.StatusOK || err != nil {
		t.Fatalf("%s = %d %v: %s", path, code, err, body)
	}
	return got
}

func TestTheHistoryHasTheLastHour(t *testing.T) {
	t.Parallel()
	st := relaying()
	start := st.At
	st.Latency = walrelay.LatencyStatus{Bounds: []float64{0.01, 0.1}, Counts: make([]uint64, 3)}
	past := admin.NewHistory(func() walrelay.Status { return st })
	h := admin.New(func() walrelay.Status { return st }, admin.Build{}, past)
	past.Take()
	if got := read(t, h, "/history"); len(got.Points) != 0 || got.Every != 10 {
		t.Errorf("/history = %+v at the start, want no point, and one every 10 s", got)
	}
	step := func(stored uint64, latencies ...uint64) {
		st.At = st.At.Add(10 * time.Second)
		st.SlotState.LookedAt = st.At
		st.Counters.Stored += stored
		st.Latency.Counts = append([]uint64{}, st.Latency.Counts...)
		for i, n := range latencies {
			st.Latency.Counts[i] += n
		}
		past.Take()
	}
	step(100, 90, 10)
	got := read(t, h, "/history").Points[0]
	if got.At != start.Add(10*time.Second).UnixMilli() || got.Rate != 10 || !got.Ready || *got.Lag != 0 || *got.Retained != 56 {
		t.Errorf("first point is %+v, want 10 events a second, ready, without lag", got)
	}
	if near := func(v *float64, want float64) bool { return v != nil && *v > want-1e-9 && *v < want+1e-9 }; !near(got.Median, 0.01*50/90) || !near(got.P99, 0.01+0.09*9/10) {
		t.Errorf("median and 99th percentile are %v and %v, want some 5.6 and 91 ms", *got.Median, *got.P99)
	}
	step(0)
	if got := read(t, h, "/history").Points[1]; got.Rate != 0 || got.Median != nil || got.P99 != nil {
		t.Errorf("a point without events is %+v, want no latency", got)
	}
	step(1, 0, 0, 1) // beyond the last bound
	if got := read(t, h, "/history").Points[2]; *got.Median != 0.1 {
		t.Errorf("latency beyond the last bound is shown as %v, want the bound", *got.Median)
	}
	st.LagSeconds, st.SlotState = nil, nil
	st.State = walrelay.StateWaiting
	st.At = st.At.Add(10 * time.Second)
	past.Take()
	all := read(t, h, "/history").Points
	if got := all[3]; got.Ready || got.Phase != walrelay.PhaseWaiting || got.Lag != nil || got.Retained != nil {
		t.Errorf("a point of what is not known is %+v, want it to say so", got)
	}
	if newer := read(t, h, "/history?after="+strconv.FormatInt(all[1].At, 10)).Points; len(newer) != 2 || newer[0].At != all[2].At {
		t.Errorf("%d points after the second of four, want 2", len(newer))
	}
	for range 1000 {
		st.At = st.At.Add(10 * time.Second)
		past.Take()
	}
	all = read(t, h, "/history").Points
	if n := len(all); n != 360 || all[n-1].At-all[0].At != 3590_000 {
		t.Errorf("%d points are kept, want those of an hour", n)
	}
}
