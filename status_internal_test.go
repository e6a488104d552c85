package walrelay

import (
	"testing"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

func TestTheAgeIsThatOfTheOldestTransactionThatIsNotSettled(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	second := func(n float64) time.Time { return start.Add(time.Duration(n * float64(time.Second))) }
	type step struct {
		received envelope.LSN // a transaction that begins
		at       float64
		settled  envelope.LSN // or what may be confirmed
		want     float64      // commit time of the oldest; -1 for none
	}
	for name, steps := range map[string][]step{
		"one by one":                      {{received: 10, at: 0, want: 0}, {received: 20, at: 5, want: 0}, {settled: 15, want: 5}, {settled: 25, want: -1}},
		"an LSN below the commit":         {{received: 10, at: 0, want: 0}, {settled: 10, want: 0}, {settled: 11, want: -1}},
		"one second is one span":          {{received: 10, at: 0, want: 0}, {received: 20, at: 0.9, want: 0}, {settled: 15, want: 0}, {settled: 21, want: -1}},
		"a span does not hide a late one": {{received: 10, at: 0, want: 0}, {received: 20, at: 0.5, want: 0}, {received: 30, at: 60, want: 0}, {settled: 21, want: 60}},
		"sent again after a session":      {{received: 10, at: 0, want: 0}, {received: 20, at: 5, want: 0}, {received: 10, at: 0, want: 0}, {received: 20, at: 5, want: 0}, {settled: 15, want: 5}},
		"sent again from further back":    {{received: 20, at: 5, want: 5}, {received: 10, at: 0, want: 0}, {received: 20, at: 5, want: 0}, {settled: 15, want: 5}, {settled: 25, want: -1}},
		"nothing received yet":            {{settled: 99, want: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var a ages
			for i, s := range steps {
				if s.received > 0 {
					a.received(s.received, second(s.at))
				} else {
					a.settle(s.settled)
				}
				at, some := a.oldest()
				if some != (s.want >= 0) || some && !at.Equal(second(s.want)) {
					t.Fatalf("oldest() after step %d = %v, %v, want second %v", i+1, at, some, s.want)
				}
			}
		})
	}
}

func TestAgesKeepOneSpanASecond(t *testing.T) {
	t.Parallel()
	var a ages
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 100_000 {
		a.received(envelope.LSN(i+1), start.Add(time.Duration(i)*time.Millisecond))
	}
	if n := len(a.spans); n != 100 {
		t.Errorf("100 seconds of transactions take %d spans, want 100", n)
	}
}
