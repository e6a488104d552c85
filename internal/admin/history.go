package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/walrelay/walrelay"
)

const (
	// historyEvery is how far apart the points of the history are, and
	// historyPoints how many are kept: an hour of them.
	historyEvery  = 10 * time.Second
	historyPoints = int(time.Hour / historyEvery)
)

// A Point is what happened in the time up to At.
type Point struct {
	At    int64          `json:"at"` // milliseconds since 1970
	Phase walrelay.Phase `json:"phase"`
	Ready bool           `json:"ready"`
	// Rate is how many events were stored a second.
	Rate float64 `json:"rate"`
	// Median and P99 are of the time from commit to stored, in seconds; nil
	// where nothing was stored. They are guessed from buckets.
	Median *float64 `json:"median"`
	P99    *float64 `json:"p99"`
	// Lag is the age of the oldest event that is not stored; nil where it is
	// not known.
	Lag *float64 `json:"lag"`
	// Retained is the WAL that the slot keeps; nil where it is not known.
	Retained *int64 `json:"retained"`
}

// A History remembers the last hour. It lives as long as the process.
type History struct {
	status func() walrelay.Status

	mu     sync.Mutex
	points []Point // oldest first
	last   walrelay.Status
}

// NewHistory has no point yet. Run makes them.
func NewHistory(status func() walrelay.Status) *History {
	return &History{status: status}
}

// Run takes a point every ten seconds until ctx ends.
func (h *History) Run(ctx context.Context) {
	tick := time.NewTicker(historyEvery)
	defer tick.Stop()
	h.Take()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.Take()
		}
	}
}

// Take takes a point now. The first one only marks where the next begins.
func (h *History) Take() {
	st := h.status()
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.last
	h.last = st
	passed := st.At.Sub(before.At).Seconds()
	if before.At.IsZero() || passed <= 0 {
		return
	}
	p := Point{At: st.At.UnixMilli(), Phase: st.Phase(), Ready: st.NotReady() == "", Lag: st.LagSeconds}
	p.Rate = float64(st.Counters.Stored-before.Counters.Stored) / passed
	if s := st.SlotState; s != nil && fresh(&st, s.LookedAt) {
		p.Retained = &s.RetainedBytes
	}
	p.Median, p.P99 = quantile(&before.Latency, &st.Latency, 0.5), quantile(&before.Latency, &st.Latency, 0.99)
	if len(h.points) == historyPoints {
		h.points = append(h.points[:0], h.points[1:]...)
	}
	h.points = append(h.points, p)
}

// after gives the points behind a time in milliseconds since 1970.
func (h *History) after(at int64) []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearchFunc(h.points, at+1, func(p Point, at int64) int { return int(p.At - at) })
	return append([]Point{}, h.points[i:]...)
}

// ServeHTTP answers /history, and /history?after=MILLISECONDS with what is
// newer.
func (h *History) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64) // 0: all
	header(w, "application/json")
	_ = json.NewEncoder(w).Encode(struct { // an error: the client has gone
		Every  float64 `json:"every_seconds"`
		Points []Point `json:"points"`
	}{historyEvery.Seconds(), h.after(after)})
}

// quantile guesses the time below which the share q of the events lies that were
// stored between two moments; nil if there are none.
func quantile(from, to *walrelay.LatencyStatus, q float64) *float64 {
	counts := slices.Clone(to.Counts)
	total := 0.0
	for i := range counts {
		if i < len(from.Counts) {
			counts[i] -= from.Counts[i]
		}
		total += float64(counts[i])
	}
	if total == 0 {
		return nil
	}
	below, rank := 0.0, q*total
	for i, n := range counts {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		if i >= len(to.Bounds) {
			break
		}
		low := 0.0
		if i > 0 {
			low = to.Bounds[i-1]
		}
		v := low + (to.Bounds[i]-low)*(rank-below)/float64(n)
		return &v
	}
	v := to.Bounds[len(to.Bounds)-1] // and more
	return &v
}
