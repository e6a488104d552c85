package faults_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
	"github.com/walrelay/walrelay/envelope"
)

// honestFor is how long a relay may call itself ready while nothing moves and
// there is something to move. It has to be more than the relay's own patience:
// a server is silent for 5 s, an acknowledgement late after 1 s, a statement
// after 20 s.
const honestFor = 25 * time.Second

// A witness looks all along whether a relay calls itself ready that delivers
// nothing (I10). What it compares is what anybody sees: the answer of /readyz,
// the end of the write-ahead log, the slot's confirmed LSN, the streams' ends.
type witness struct {
	s *stage

	mu    sync.Mutex
	lies  []string
	looks int // with an answer "ready"
}

// A standstill is a stretch of time in which nothing moved.
type standstill struct {
	since    time.Time
	waits    envelope.LSN // what was written when it began
	progress string
}

func (o *witness) watch(ctx context.Context) {
	var now *standstill
	for ; ctx.Err() == nil; rest(ctx, 200*time.Millisecond) {
		now = o.look(ctx, now)
	}
}

// look looks once and gives the standstill that goes on; nil for none.
func (o *witness) look(ctx context.Context, last *standstill) *standstill {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	w := o.s.now()
	if !o.s.ready(ctx) {
		return nil
	}
	o.mu.Lock()
	o.looks++
	o.mu.Unlock()
	confirmed, err := w.Confirmed(ctx)
	if err != nil {
		return nil
	}
	var end string
	if err := w.Pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		return nil
	}
	written, err := envelope.ParseLSN(end)
	seq, seqErr := w.LastSeq(ctx)
	if err != nil || seqErr != nil {
		return nil
	}
	progress := fmt.Sprintf("confirmed LSN %s, last sequence %d", confirmed, seq)
	if last == nil || last.progress != progress || confirmed >= last.waits {
		return &standstill{since: time.Now(), waits: written, progress: progress}
	}
	if d := time.Since(last.since); d > honestFor {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.lies = append(o.lies, fmt.Sprintf("ready for %s while nothing moved: %s, and %s had been written", d.Round(time.Second), progress, last.waits))
		return nil
	}
	return last
}

func (o *witness) found() (lies []string, looks int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lies, o.looks
}

var served = regexp.MustCompile(`"admin":"([0-9.:]+)"`)

// ready says whether any relay calls itself ready.
func (s *stage) ready(ctx context.Context) bool {
	s.mu.Lock()
	relays := append([]*fixture.Relay(nil), s.relays...)
	s.mu.Unlock()
	for _, r := range relays {
		if !r.Running() {
			continue
		}
		if m := served.FindStringSubmatch(r.Text()); m != nil && readyAt(ctx, m[1]) {
			return true
		}
	}
	return false
}

func readyAt(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return false
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode == http.StatusOK
}
