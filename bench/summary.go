package main

import (
	"fmt"
	"io"
	"slices"
)

// A measurement is one run of one candidate.
type measurement struct {
	rate   float64 // events a second, from the start of the process to the last event
	cpu    float64 // microseconds of the candidate's CPU an event
	server float64 // microseconds of PostgreSQL's and NATS' CPU an event
	rss    float64 // peak resident memory, MB
}

type result struct {
	Name string
	runs []measurement
}

func (r *result) add(m measurement) { r.runs = append(r.runs, m) }

func (r *result) column(get func(measurement) float64) []float64 {
	var all []float64
	for _, m := range r.runs {
		all = append(all, get(m))
	}
	slices.Sort(all)
	return all
}

func median(sorted []float64) float64 {
	if len(sorted)%2 == 1 {
		return sorted[len(sorted)/2]
	}
	return (sorted[len(sorted)/2-1] + sorted[len(sorted)/2]) / 2
}

type summary struct {
	Name       string  `json:"name"`
	Rate       float64 `json:"events_per_second"`
	Lowest     float64 `json:"lowest"`
	Highest    float64 `json:"highest"`
	CPU        float64 `json:"cpu_us_per_event"`
	ServersCPU float64 `json:"servers_cpu_us_per_event"`
	PeakMB     float64 `json:"peak_rss_mb"`
	// Relay is the relay's rate divided by this one's: the median over the
	// rounds, each of which has both.
	Relay float64 `json:"relay_ratio,omitempty"`
}

func summaries(results []result) []summary {
	var own *result
	for i := range results {
		if results[i].Name == relay {
			own = &results[i]
		}
	}
	var all []summary
	for _, r := range results {
		rates := r.column(func(m measurement) float64 { return m.rate })
		s := summary{
			Name: r.Name, Rate: median(rates), Lowest: rates[0], Highest: rates[len(rates)-1],
			CPU:        median(r.column(func(m measurement) float64 { return m.cpu })),
			ServersCPU: median(r.column(func(m measurement) float64 { return m.server })),
		}
		rss := r.column(func(m measurement) float64 { return m.rss })
		s.PeakMB = rss[len(rss)-1]
		if own != nil {
			var ratios []float64
			for i := range r.runs {
				ratios = append(ratios, own.runs[i].rate/r.runs[i].rate)
			}
			slices.Sort(ratios)
			s.Relay = median(ratios)
		}
		all = append(all, s)
	}
	return all
}

func printTable(w io.Writer, all []summary) {
	fmt.Fprintf(w, "%-12s %10s %10s %10s %8s %8s %8s %12s\n", "candidate", "events/s", "lowest", "highest", "self us", "servers", "peak MB", "relay/this")
	for _, s := range all {
		fmt.Fprintf(w, "%-12s %10.0f %10.0f %10.0f %8.2f %8.2f %8.0f %12.2f\n",
			s.Name, s.Rate, s.Lowest, s.Highest, s.CPU, s.ServersCPU, s.PeakMB, s.Relay)
	}
}
