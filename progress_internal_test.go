package walrelay

import (
	"testing"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// I10.
func TestStandingStillIsTheServersEndMovingOnWithoutUs(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	type step struct {
		at       int          // seconds
		end      envelope.LSN // what is seen of the server
		received uint64       // or where the session stands
		stored   uint64
		done     envelope.LSN
		behind   int // seconds for which there is WAL to do; -1 for none
		still    int // the second since when nothing has moved; -1 for not
	}
	for name, steps := range map[string][]step{
		"nothing to do":             {{at: 0, done: 1000, behind: -1, still: -1}, {at: 10, end: 1000, behind: -1, still: -1}, {at: 3600, end: 1000, behind: -1, still: -1}},
		"only a page's header more": {{at: 0, done: 1000, behind: -1, still: -1}, {at: 10, end: 1040, behind: -1, still: -1}, {at: 3600, end: 1040, behind: -1, still: -1}},
		"a slot that sends nothing": {
			{at: 0, done: 1000, behind: -1, still: -1},
			{at: 10, end: 9000, behind: 0, still: 10},
			{at: 69, end: 9000, behind: 59, still: 10},
			{at: 80, done: 9000, behind: -1, still: -1},
		},
		"a large transaction on its way": {
			{at: 0, done: 1000, behind: -1, still: -1},
			{at: 10, end: 9000, behind: 0, still: 10},
			{at: 100, done: 1000, stored: 5, behind: 90, still: 100},
			{at: 170, end: 9999, behind: 160, still: 100},
			{at: 171, done: 1000, stored: 6, behind: 161, still: 171},
		},
		"something received": {{at: 0, done: 1000, behind: -1, still: -1}, {at: 10, end: 9000, behind: 0, still: 10}, {at: 70, done: 1000, received: 7, behind: 60, still: 70}},
		"the next oldest":    {{at: 0, done: 1000, behind: -1, still: -1}, {at: 10, end: 2000, behind: 0, still: 10}, {at: 20, end: 3000, behind: 10, still: 10}, {at: 30, done: 2000, behind: 10, still: 30}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p progress
			for i, s := range steps {
				now := start.Add(time.Duration(s.at) * time.Second)
				if s.end > 0 {
					p.seen(s.end, now)
				} else {
					p.note(s.received, s.stored, s.done, now)
				}
				since, still := p.behind()
				if since.IsZero() != (s.behind < 0) || s.behind >= 0 && now.Sub(since) != time.Duration(s.behind)*time.Second {
					t.Errorf("step %d: behind since %v at %v, want for %d s", i+1, since, now, s.behind)
				}
				if still.IsZero() != (s.still < 0) || s.still >= 0 && still.Sub(start) != time.Duration(s.still)*time.Second {
					t.Errorf("step %d: still since %v, want second %d", i+1, still, s.still)
				}
			}
		})
	}
}

// I7.
func TestEndsThatAreSeenAreBoundedAndTheOldestStays(t *testing.T) {
	t.Parallel()
	var p progress
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 10_000 {
		p.seen(envelope.LSN(1000+i), start.Add(time.Duration(i)*time.Second))
	}
	if since, _ := p.behind(); !since.Equal(start) || len(p.ends) > mostEnds {
		t.Errorf("%d ends are kept, the oldest of %v; want at most %d and %v", len(p.ends), since, mostEnds, start)
	}
}

func TestLatenciesFallIntoTheBucketOfTheirBound(t *testing.T) {
	t.Parallel()
	var l latencies
	l.add(time.Millisecond, 2)
	l.add(1001*time.Microsecond, 3)
	l.add(-time.Second, 1) // the database's clock is ahead
	l.add(24*time.Hour, 1)
	got := l.read()
	if got.Counts[0] != 3 || got.Counts[1] != 3 || got.Counts[len(got.Counts)-1] != 1 || got.Count() != 7 {
		t.Errorf("counts = %v, want 3 up to 1 ms, 3 up to 2.5 ms, 1 beyond the last bound", got.Counts)
	}
	if want := 0.002 + 0.003003 + 86400; got.Sum < want-1e-6 || got.Sum > want+1e-6 {
		t.Errorf("sum = %v, want %v", got.Sum, want)
	}
}

func BenchmarkLatencies(b *testing.B) {
	var l latencies
	for b.Loop() {
		l.add(3*time.Millisecond, 1)
	}
}
