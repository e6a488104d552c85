package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/fixture"
)

// reportVariable names a file to which the verdict goes as JSON, for who runs
// drill after drill; logsVariable a folder for the logs of a drill that failed.
const (
	reportVariable = "DRILL_REPORT"
	logsVariable   = "DRILL_LOGS"
)

// A verdict is what a drill found.
type verdict struct {
	Seed       uint64   `json:"seed"`
	Plan       string   `json:"plan"`
	Injected   []string `json:"injected"` // faults with their times
	Committed  int      `json:"committed"`
	Lost       int      `json:"lost"`
	Twice      int      `json:"twice"`
	OutOfOrder int      `json:"out_of_order"`
	Faults     []string `json:"faults"` // what is against the promise
	Failed     bool     `json:"failed"`
	Seconds    float64  `json:"seconds"`

	mu    sync.Mutex
	began time.Time
}

// since is the time since the drill's first fault.
func (v *verdict) since() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.began.IsZero() {
		v.began = time.Now()
	}
	return time.Since(v.began)
}

func (v *verdict) injected(name string, from time.Duration) {
	to := v.since()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.Injected = append(v.Injected, fmt.Sprintf("%s %.1f-%.1fs", name, from.Seconds(), to.Seconds()))
}

func (v *verdict) fault(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.Faults = append(v.Faults, fmt.Sprintf(format, args...))
}

// judge has the checker compare, and looks who wrote.
func (v *verdict) judge(s *stage) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
	defer cancel()
	w := s.now()
	truth, err := w.Truth(ctx)
	if err != nil {
		s.t.Fatalf("read what is to be compared: %v", err)
	}
	a := fixture.Compare(truth)
	v.Committed, v.Lost, v.Twice, v.OutOfOrder = a.Committed, len(a.Lost), len(a.Twice), len(a.OutOfOrder)
	if s.promoted() {
		v.leaveOut(ctx, s, a)
	}
	if len(s.ofCopy) > 0 {
		slipped(ctx, s, a)
	}
	if a.Faults() > 0 {
		v.fault("the checker found faults: %s", a)
	}
	if a.Committed == 0 {
		v.fault("nothing was committed: the drill drilled nothing")
	}
	v.writers(ctx, s)
	if !s.plan.loses() {
		v.gaps(ctx, s)
	}
}

// gaps demands that none was found where none was made. What is stored in the
// wrong order and found out is sent again, which the account alone would excuse.
func (v *verdict) gaps(ctx context.Context, s *stage) {
	var found string
	err := s.now().Pool.QueryRow(ctx, `SELECT coalesce(string_agg(to_jsonb(g)::text, ', '), '') FROM walrelay.gap g`).Scan(&found)
	if err != nil {
		s.t.Fatalf("read the gaps: %v", err)
	}
	if found != "" {
		v.fault("I3: nothing was lost, and yet there are gaps: %s", found)
	}
}

// leaveOut takes those events out of the account that the promoted database
// never had, if exactly those are listed.
func (v *verdict) leaveOut(ctx context.Context, s *stage, a *fixture.Account) {
	listed, err := phantoms(ctx, s.now())
	if err != nil {
		s.t.Fatalf("read what is listed: %v", err)
	}
	a.Invented = slices.DeleteFunc(a.Invented, func(line string) bool {
		return slices.ContainsFunc(listed, func(id string) bool { return strings.Contains(line, id) })
	})
}

// slipped takes those events out of the account that a copy of the database had
// and that are in lanes alone.
func slipped(ctx context.Context, s *stage, a *fixture.Account) {
	messages, err := s.now().Messages(ctx)
	if err != nil {
		s.t.Fatalf("read the streams: %v", err)
	}
	where := map[string]string{}
	for _, m := range messages {
		where[m.Event.ID] += m.Stream
	}
	a.Invented = slices.DeleteFunc(a.Invented, func(line string) bool {
		return slices.ContainsFunc(s.ofCopy, func(id string) bool { return where[id] == lanes && strings.Contains(line, id) })
	})
}

// writers demands that a session writes nothing once a later one has begun to.
func (v *verdict) writers(ctx context.Context, s *stage) {
	var n int
	err := s.now().Pool.QueryRow(ctx, `SELECT coalesce(sum(times - 1), 0) FROM (SELECT count(*) AS times FROM
		(SELECT pid, pid <> lag(pid, 1, 0) OVER (ORDER BY ord) AS begins FROM e2e.writing) AS w WHERE begins GROUP BY pid) AS writers`).Scan(&n)
	if err != nil {
		s.t.Fatalf("read who wrote: %v", err)
	}
	if n > 0 {
		v.fault("I2: sessions wrote %d times after a later session had begun to", n)
	}
}

// report prints the verdict in a line.
func (v *verdict) report(t *testing.T, took time.Duration) {
	t.Helper()
	v.Failed, v.Seconds = t.Failed(), took.Seconds()
	if v.Failed && len(v.Faults) == 0 {
		v.Faults = []string{"it did not settle, see its output"}
	}
	t.Logf("%s", v)
	if path := os.Getenv(reportVariable); path != "" {
		text, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Errorf("write the verdict: %v", err)
		}
	}
	if v.Failed && os.Getenv(reportVariable) == "" {
		t.Logf("repeat it: WALRELAY_SEED=%d go test -race -count=1 -run '^%s$' ./e2e/faults", v.Seed, strings.ReplaceAll(t.Name(), "/", "$/^"))
	}
}

func (v *verdict) String() string {
	word := "all is well"
	if v.Failed {
		word = "FAILED: " + strings.Join(v.Faults, "; ")
	}
	return fmt.Sprintf("seed %d, %s, faults at [%s], %.0f s, %d events committed: %s",
		v.Seed, v.Plan, strings.Join(v.Injected, ", "), v.Seconds, v.Committed, word)
}

// keepLogs copies the logs of a drill that failed to where they stay.
func (s *stage) keepLogs() {
	if !s.t.Failed() {
		return
	}
	dir := os.Getenv(logsVariable)
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "walrelay-drill-"); err != nil {
			s.t.Errorf("make a folder for the logs: %v", err)
			return
		}
	}
	keep := func(name, path string) {
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			s.t.Errorf("keep a log: %v", err)
		}
	}
	s.mu.Lock()
	for i, r := range s.relays {
		keep(fmt.Sprintf("relay-%d.log", i+1), r.LogFile())
	}
	s.mu.Unlock()
	keep("postgres.log", s.primary.LogFile())
	if s.standby != nil {
		keep("standby.log", s.standby.LogFile())
	}
	if s.broker != nil {
		keep("nats.log", s.broker.LogFile())
	}
	for _, n := range s.nodes {
		keep(n.Name()+".log", n.LogFile())
	}
	s.keepTables(dir)
	s.t.Logf("logs are in %s", dir)
}

// keepTables writes down what the database keeps of the relay, and the streams.
func (s *stage) keepTables(dir string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	w := s.now()
	for _, table := range []string{"witness", "epoch", "proven", "gap", "job", "dead_letter"} {
		var text string
		err := w.Pool.QueryRow(ctx, `SELECT coalesce(string_agg(to_jsonb(t)::text, E'\n'), '') FROM walrelay.`+table+` t`).Scan(&text)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, table+".json"), []byte(text), 0o600)
		}
		if err != nil {
			s.t.Logf("keep table %s: %v", table, err)
		}
	}
	messages, err := w.Messages(ctx)
	if err != nil {
		s.t.Logf("keep the streams: %v", err)
		return
	}
	var b strings.Builder
	for i := range messages {
		m := &messages[i]
		fmt.Fprintf(&b, "%s %d %s %s origin=%q mark=%s late=%v\n", m.Stream, m.Seq, m.Event.ID, m.Position, m.Event.Origin, m.Event.Mark, m.Event.Late)
	}
	if err := os.WriteFile(filepath.Join(dir, "streams.txt"), []byte(b.String()), 0o600); err != nil {
		s.t.Logf("keep the streams: %v", err)
	}
}
