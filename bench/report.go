package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// A report is what one run found, with what it depends on.
type report struct {
	Machine machine   `json:"machine"`
	Command string    `json:"command"`
	At      time.Time `json:"at"`
	Cases   []outcome `json:"cases"`
	Latency []latency `json:"latency,omitempty"`
	Costs   []cost    `json:"costs,omitempty"`
	Steady  []sample  `json:"steady,omitempty"`
}

type machine struct {
	CPUs     int               `json:"cpus"`
	Model    string            `json:"model"`
	Load     string            `json:"load_average"`
	System   string            `json:"system"`
	Go       string            `json:"go"`
	Versions map[string]string `json:"versions"`
}

// An outcome is a case with its candidates.
type outcome struct {
	Case       workload  `json:"case"`
	Candidates []summary `json:"candidates"`
}

func newReport() *report {
	return &report{Machine: thisMachine(), Command: "go run ./bench " + strings.Join(os.Args[1:], " "), At: time.Now().UTC().Truncate(time.Second)}
}

func thisMachine() machine {
	m := machine{CPUs: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Versions: map[string]string{}}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(text), "model name"); ok {
			line, _, _ := strings.Cut(rest, "\n")
			m.Model = strings.Trim(line, "\t :")
		}
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(text))[:3], " ")
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if strings.HasPrefix(dep.Path, "github.com/nats-io/nats") {
				m.Versions[dep.Path] = dep.Version
			}
		}
	}
	return m
}

func (r *report) add(w workload, results []result) {
	r.Cases = append(r.Cases, outcome{Case: w, Candidates: summaries(results)})
}

// write leaves the results and their plot in a folder.
func (r *report) write(folder string) error {
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return fmt.Errorf("make the folder of the results: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	for name, content := range map[string][]byte{"results.json": append(text, '\n'), "results.svg": []byte(plot(r.Cases))} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
		say("wrote %s", filepath.Join(folder, name))
	}
	return nil
}

// expected are the ratios of earlier, of the relay's rate to a candidate's.
type expected struct {
	// Noise is how much lower than before a ratio may be: 0.3 lets 1.0 fall
	// to 0.7.
	Noise  float64                       `json:"noise"`
	Ratios map[string]map[string]float64 `json:"ratios"` // by case and candidate
}

// compare fails where a ratio is worse than before, beyond the noise.
func (r *report) compare(file string, w io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read what was measured before: %w", err)
	}
	var before expected
	if err := json.Unmarshal(text, &before); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	fmt.Fprintf(w, "\n%-16s %-12s %8s %8s\n", "relay to", "", "before", "now")
	worse, seen := 0, 0
	for _, c := range r.Cases {
		for _, s := range c.Candidates {
			was, ok := before.Ratios[c.Case.Name][s.Name]
			if !ok {
				continue
			}
			seen++
			verdict := ""
			if s.Relay < was*(1-before.Noise) {
				worse++
				verdict = "  worse"
			}
			fmt.Fprintf(w, "%-16s %-12s %8.2f %8.2f%s\n", c.Case.Name, s.Name, was, s.Relay, verdict)
		}
	}
	switch {
	case seen == 0:
		return fmt.Errorf("%s has no ratio of a case that was run", file)
	case worse > 0:
		return fmt.Errorf("%d of %d ratios are lower than those of %s by more than %.0f %%", worse, seen, file, before.Noise*100)
	}
	return nil
}
