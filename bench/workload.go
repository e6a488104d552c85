package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A workload is one case: what waits in the outbox, and how it goes out.
type workload struct {
	Name string `json:"name"`
	// Rows wait, PerTx in a transaction, each with a payload of Size bytes,
	// of Aggregates aggregates in turn.
	Rows       int `json:"rows"`
	PerTx      int `json:"rows_per_transaction"`
	Size       int `json:"payload_bytes"`
	Aggregates int `json:"aggregates"`
	// Replicas is 1, or 3 for a cluster of three servers; SyncAlways lets them
	// flush each write to disk; Lanes writes to the stream as to a shared one.
	Replicas   int  `json:"replicas"`
	SyncAlways bool `json:"sync_always,omitempty"`
	Lanes      bool `json:"lanes,omitempty"`
	// Streams are as many that the rows go to in turn, by their event type.
	Streams int `json:"streams"`
	// Batches is the relay's setting of that name; empty means its default.
	Batches string `json:"batches,omitempty"`
	// RoundTrip is added on the way to NATS.
	RoundTrip time.Duration `json:"round_trip_ns,omitempty"`
	Rounds    int           `json:"rounds"`
	// Flushed has our PostgreSQL flush each commit to disk, and Vacuum has it
	// vacuum by itself.
	Flushed bool     `json:"flushed,omitempty"`
	Vacuum  bool     `json:"vacuum,omitempty"`
	Only    []string `json:"-"` // candidates; none means all
}

// problem says what cannot be measured.
func (w *workload) problem() error {
	switch {
	case w.Rows < 1, w.PerTx < 1, w.Size < 1, w.Rounds < 1, w.Aggregates < 1, w.Streams < 1:
		return fmt.Errorf("case %s: rows, tx, size, aggregates, streams and rounds must be at least 1", w.Name)
	case w.Streams > 1 && w.Lanes:
		return fmt.Errorf("case %s: lanes are measured with one stream, not %d", w.Name, w.Streams)
	case w.Replicas != 1 && w.Replicas != 3:
		return fmt.Errorf("case %s: replicas must be 1 or 3, not %d", w.Name, w.Replicas)
	}
	for _, name := range w.Only {
		if !slices.Contains(candidates(), name) {
			return fmt.Errorf("no candidate %q; there are %s", name, strings.Join(candidates(), ", "))
		}
		if w.Streams > 1 && name != reader && name != relay {
			return fmt.Errorf("case %s: %s knows one stream, not %d", w.Name, name, w.Streams)
		}
	}
	return nil
}

// streams gives the names of the streams of a source, and the event type that
// each of them takes.
func (w *workload) streams(source string) (names, types []string) {
	if w.Streams == 1 {
		return []string{strings.ToUpper(source)}, []string{"placed"}
	}
	for k := range w.Streams {
		names = append(names, fmt.Sprintf("%s_%d", strings.ToUpper(source), k))
		types = append(types, fmt.Sprintf("placed%d", k))
	}
	return names, types
}

func (w *workload) wants(name string) bool {
	if len(w.Only) == 0 {
		return w.Streams == 1 || name == reader || name == relay
	}
	return slices.Contains(w.Only, name)
}

// rows is how many of the backlog a candidate relays: the slowest would take
// minutes for all of them, and their speed does not depend on it.
func (w *workload) rows(candidate string) int {
	switch candidate {
	case poll:
		return min(w.Rows, 20_000)
	case single:
		return min(w.Rows, 10_000)
	default:
		return w.Rows
	}
}

// String describes the case in one line.
func (w *workload) String() string {
	text := fmt.Sprintf("%d rows of %d B, %d a transaction, %d aggregates, %d replica(s)", w.Rows, w.Size, w.PerTx, w.Aggregates, w.Replicas)
	if w.SyncAlways {
		text += ", sync_interval: always"
	}
	if w.Lanes {
		text += ", lanes"
	}
	if w.Streams > 1 {
		text += fmt.Sprintf(", %d streams", w.Streams)
	}
	if w.RoundTrip > 0 {
		text += fmt.Sprintf(", %v round trip to NATS", w.RoundTrip)
	}
	return text
}

// base is the case that the others differ from in one point each.
func base(name string, change ...func(*workload)) workload {
	w := workload{Name: name, Rows: 200_000, PerTx: 1000, Size: 256, Aggregates: 1000, Replicas: 1, Streams: 1, Rounds: 3}
	for _, f := range change {
		f(&w)
	}
	return w
}

// quick takes less than two minutes.
func quick() []workload {
	return []workload{
		base("backlog", func(w *workload) { w.Only = []string{publisher, proto, protoSame, relay, pollBatch, poll} }),
		base("one-row", func(w *workload) { w.PerTx, w.Rows, w.Only = 1, 60_000, []string{recv, proto, relay} }),
		base("synced", func(w *workload) { w.SyncAlways, w.Rows, w.Only = true, 60_000, []string{single, relay} }),
	}
}

// full is what docs/performance.md shows.
func full() []workload {
	main := []string{reader, proto, protoSame, relay}
	return []workload{
		base("backlog"),
		base("1 KiB", func(w *workload) { w.Size, w.Rows, w.Only = 1024, 100_000, main }),
		base("one-row", func(w *workload) {
			w.PerTx, w.Rows, w.Only = 1, 60_000, []string{reader, recv, proto, protoSame, relay}
		}),
		base("ten-row", func(w *workload) { w.PerTx, w.Rows, w.Only = 10, 100_000, main }),
		base("huge", func(w *workload) { w.PerTx, w.Rows, w.Only = 300_000, 300_000, main }),
		base("one aggregate", func(w *workload) { w.Aggregates, w.Rows, w.Only = 1, 100_000, main }),
		base("many aggregates", func(w *workload) { w.Aggregates, w.Rows, w.Only = 100_000, 100_000, main }),
		base("lanes", func(w *workload) { w.Lanes, w.Rows, w.Only = true, 100_000, main }),
		base("lanes, many aggregates", func(w *workload) { w.Lanes, w.Aggregates, w.Rows, w.Only = true, 100_000, 100_000, main }),
		base("three streams", func(w *workload) { w.Streams, w.Rows, w.Only = 3, 100_000, []string{reader, relay} }),
		base("synced", func(w *workload) { w.SyncAlways, w.Rows, w.Only = true, 60_000, []string{single, proto, relay} }),
		base("three replicas", func(w *workload) { w.Replicas, w.Rows, w.Only = 3, 60_000, []string{publisher, relay} }),
		base("20 ms", func(w *workload) { w.RoundTrip, w.Only = 20*time.Millisecond, []string{publisher, relay} }),
		base("small backlog", func(w *workload) { w.Rows, w.Only = 10_000, []string{relay} }),
		base("large backlog", func(w *workload) { w.Rows, w.Rounds, w.Only = 1_000_000, 1, []string{relay} }),
	}
}
