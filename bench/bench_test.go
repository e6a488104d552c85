package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "candidate" {
		if err := candidate(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	envtest.Main(m)
}

// left lists what of the bench's own is there.
func left(t *testing.T, at given) []string {
	t.Helper()
	db, err := pgx.Connect(t.Context(), at.database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // a look
	rows, err := db.Query(t.Context(), `SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'walrelay%'
		UNION ALL SELECT relname FROM pg_class WHERE relname LIKE 'walrelay%'
		UNION ALL SELECT pubname FROM pg_publication UNION ALL SELECT slot_name FROM pg_replication_slots`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(at.nats)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for name := range js.StreamNames(t.Context()).Name() {
		names = append(names, name)
	}
	return names
}

func TestGivenServersAreLeftAsTheyWere(t *testing.T) {
	t.Parallel()
	at := given{database: envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"track_commit_timestamp": "on"}}).URL("postgres"), nats: envtest.NATS(t, testenv.NATSConfig{}).URL()}
	small := func(w *workload) {
		w.Rows, w.PerTx, w.Rounds, w.Only = 300, 7, 1, []string{reader, proto, relay, pollBatch, poll}
	}
	out := t.TempDir()
	if err := run(t.Context(), options{at: at, out: out, w: base("small", small), latency: "50", lasts: time.Second}); err != nil {
		t.Fatal(err)
	}
	if found := left(t, at); len(found) > 0 {
		t.Errorf("left behind: %v", found)
	}
	text, err := os.ReadFile(filepath.Join(out, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil || len(r.Cases) != 1 || len(r.Cases[0].Candidates) != 5 {
		t.Fatalf("results %+v: %v", r, err)
	}
	for _, s := range r.Cases[0].Candidates {
		if s.Rate <= 0 || s.Relay <= 0 || s.CPU <= 0 {
			t.Errorf("candidate %+v has no figures", s)
		}
	}
	var timed []string
	for _, l := range r.Latency {
		if l.P50 > 0 && l.P99 >= l.P50 && l.Most >= l.P99 && l.Commits == 50 {
			timed = append(timed, l.Candidate)
		}
	}
	if want := []string{proto, relay, handled}; !slices.Equal(timed, want) {
		t.Errorf("latencies %+v, want sensible ones of %q", r.Latency, want)
	}
	three := func(w *workload) { w.Rows, w.PerTx, w.Rounds, w.Streams = 100, 7, 1, 3 }
	if err := run(t.Context(), options{at: at, w: base("three", three)}); err != nil {
		t.Errorf("three streams: %v", err)
	}
	if err := run(t.Context(), options{at: at, out: out, costs: 10, steady: time.Second}); err != nil {
		t.Fatal(err)
	}
	if found := left(t, at); len(found) > 0 {
		t.Errorf("left behind by costs and steady load: %v", found)
	}
	if text, err = os.ReadFile(filepath.Join(out, "results.json")); err != nil {
		t.Fatal(err)
	}
	var more report
	if err := json.Unmarshal(text, &more); err != nil || len(more.Costs) != 6 || len(more.Steady) < 2 || len(more.Cases) > 0 {
		t.Fatalf("results %+v: %v", more, err)
	}
	for _, c := range more.Costs {
		if c.Rate <= 0 || c.WAL <= 0 || c.Plain <= 0 {
			t.Errorf("cost %+v has no figures", c)
		}
	}
	if last := more.Steady[len(more.Steady)-1]; last.Rows == 0 || last.TableMB <= 0 || last.IndexMB <= 0 {
		t.Errorf("sample %+v has no figures", last)
	}

	// What is there already is not touched.
	db, err := pgx.Connect(t.Context(), at.database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // the server goes
	if _, err := db.Exec(t.Context(), `CREATE SCHEMA walrelay_bench`); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), options{at: at, w: base("small", small)}); err == nil || !strings.Contains(err.Error(), "schema walrelay_bench") {
		t.Errorf("run beside a schema of that name: %v", err)
	}
	if found := left(t, at); len(found) != 1 {
		t.Errorf("left: %v, want the schema that was there", found)
	}
	if err := run(t.Context(), options{at: at, w: base("synced", func(w *workload) { w.SyncAlways = true })}); err == nil {
		t.Error("a case that needs servers of its own ran on given ones")
	}
}

func TestWorseRatiosFailTheComparison(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "expected.json")
	if err := os.WriteFile(file, []byte(`{"noise": 0.3, "ratios": {"backlog": {"poll": 10}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for ratio, fails := range map[float64]bool{6.9: true, 7.1: false, 12: false} {
		r := report{Cases: []outcome{{Case: base("backlog"), Candidates: []summary{{Name: poll, Relay: ratio}}}}}
		if err := r.compare(file, &strings.Builder{}); (err != nil) != fails {
			t.Errorf("a ratio of %v where 10 is expected: %v", ratio, err)
		}
	}
	r := report{Cases: []outcome{{Case: base("other"), Candidates: []summary{{Name: poll, Relay: 1}}}}}
	if err := r.compare(file, &strings.Builder{}); err == nil {
		t.Error("a run with none of the cases passes")
	}
}
