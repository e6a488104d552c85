package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/walrelay/walrelay"
)

// A Report is the answer of /status.
type Report struct {
	walrelay.Status
	// Ready says whether events are delivered, or would be if there were any;
	// NotReady says why not. Phase is the same in a word, and PhaseSince since
	// when it holds, zero while events are delivered.
	Ready      bool           `json:"ready"`
	NotReady   string         `json:"not_ready,omitempty"`
	Phase      walrelay.Phase `json:"phase"`
	PhaseSince time.Time      `json:"phase_since,omitzero"`
	// Parts are the stations of an event, and Advice what wants a person's
	// attention, the worst first.
	Parts  []Part   `json:"parts"`
	Advice []Advice `json:"advice,omitempty"`
}

// NewReport adds the verdict to a status.
func NewReport(st walrelay.Status) Report {
	why := st.NotReady()
	phase, since := st.PhaseSince()
	return Report{Status: st, Ready: why == "", NotReady: why, Phase: phase, PhaseSince: since, Parts: parts(&st), Advice: advise(&st)}
}

// New gives the handler. status is called once a request, and past is what
// /history tells; whoever made it lets it run.
func New(status func() walrelay.Status, build Build, past *History) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", newPage())
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		header(w, "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(NewReport(status())) // an error: the client has gone
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, "alive\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := NewReport(status())
		if !r.Ready {
			text(w, http.StatusServiceUnavailable, fmt.Sprintf("not ready: %s\n", r.NotReady))
			return
		}
		text(w, http.StatusOK, fmt.Sprintf("ready: %s\n", r.Phase))
	})
	mux.Handle("GET /history", past)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry(status, build), promhttp.HandlerOpts{}))
	return mux
}

func text(w http.ResponseWriter, code int, body string) {
	header(w, "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body) // an error: the client has gone
}

// header keeps answers out of caches: they are true for a moment.
func header(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}
