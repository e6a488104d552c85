package walrelay

import (
	"sync/atomic"
	"time"
)

// latencyBounds are the upper bounds of the histogram, in seconds: from what a
// relay beside both servers needs to an outage over night.
var latencyBounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200}

// LatencyStatus counts the live events that were stored since the process
// started by the time from their commit to their acknowledgement: the database's
// clock against the relay's.
type LatencyStatus struct {
	// Bounds are the upper bounds of the buckets in seconds. Counts has one
	// more, of what took longer; each event is in one bucket.
	Bounds []float64 `json:"bounds_seconds"`
	Counts []uint64  `json:"counts"`
	Sum    float64   `json:"sum_seconds"` // of all events together
}

// Count is how many events were counted.
func (l *LatencyStatus) Count() (n uint64) {
	for _, c := range l.Counts {
		n += c
	}
	return n
}

// latencies is the histogram. It has no lock: a publisher tells it once for each
// run of events of one transaction, and what is read may lack the run that is
// being told.
type latencies struct {
	counts [len(latencyBounds) + 1]atomic.Uint64
	micros atomic.Int64
}

// add counts n events that took so long. A clock that is behind the database's
// makes it 0.
func (l *latencies) add(age time.Duration, n int) {
	age = max(age, 0)
	i, seconds := 0, age.Seconds()
	for i < len(latencyBounds) && seconds > latencyBounds[i] { // nearly all events are in the first ones
		i++
	}
	l.counts[i].Add(uint64(n)) //nolint:gosec // a count
	l.micros.Add(age.Microseconds() * int64(n))
}

func (l *latencies) read() LatencyStatus {
	s := LatencyStatus{Bounds: latencyBounds[:], Counts: make([]uint64, len(l.counts)), Sum: float64(l.micros.Load()) / 1e6}
	for i := range l.counts {
		s.Counts[i] = l.counts[i].Load()
	}
	return s
}
