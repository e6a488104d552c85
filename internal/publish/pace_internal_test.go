package publish

import (
	"testing"
	"time"
)

func TestTheWindowGrowsWhereTheWayTakesLongerThanTheWork(t *testing.T) {
	t.Parallel()
	timed := func(p *pace, n, depth int, took time.Duration) {
		for i := range n {
			p.sent(uint64(i), depth)
			p.answered(uint64(i), 0, depth-1, p.at.Add(took))
		}
	}
	for name, c := range map[string]struct {
		window          int
		roundTrip, took time.Duration
		depth           int
		want            int
	}{
		"near":              {roundTrip: 100 * time.Microsecond, took: 6 * time.Millisecond, depth: 1024, want: windowFirst},
		"far":               {roundTrip: 20 * time.Millisecond, took: 22 * time.Millisecond, depth: 1024, want: 2 * windowFirst},
		"far and busy":      {roundTrip: 20 * time.Millisecond, took: 45 * time.Millisecond, depth: 1024, want: windowFirst},
		"far, little to do": {roundTrip: 20 * time.Millisecond, took: 22 * time.Millisecond, depth: 100, want: windowFirst},
		"given":             {window: 500, roundTrip: 20 * time.Millisecond, took: 22 * time.Millisecond, depth: 500, want: 500},
		"not measured":      {took: time.Millisecond, depth: 1024, want: windowFirst},
	} {
		p := newPace(c.window)
		p.measured(c.roundTrip)
		timed(&p, 1, c.depth, c.took)
		if p.window != c.want {
			t.Errorf("%s: a window of %d, want %d", name, p.window, c.want)
		}
	}
	p := newPace(0)
	p.measured(20 * time.Millisecond)
	timed(&p, 100, windowMost, 21*time.Millisecond)
	if p.window != windowMost {
		t.Errorf("the window grew to %d, want it to end at %d", p.window, windowMost)
	}
}

func TestAServerThatIsSlowForEachMessageIsRecognised(t *testing.T) {
	t.Parallel()
	const synced, plain, behind = 130 * time.Microsecond, 8 * time.Microsecond, 1000
	answers := func(p *pace, n, behind int, waited time.Duration) (slow bool) {
		for range n {
			slow = p.answered(0, waited, behind, time.Now()) == foundSlow || slow
		}
		return slow
	}
	p := newPace(0)
	p.measured(time.Millisecond)
	enough := int(slowFor/synced) + 1
	if answers(&p, enough-1, behind, synced) {
		t.Error("recognised too early")
	}
	if !answers(&p, 1, behind, synced) {
		t.Error("not recognised")
	}
	if answers(&p, 10*slowRun, behind, plain) {
		t.Error("a server is not forgiven for what it was")
	}
	// As one that answers all at once.
	bursts := func(n int, pause time.Duration) (slow bool) {
		for range n {
			slow = answers(&p, 1, behind, pause) || answers(&p, slowRun/2, behind, plain) || slow
		}
		return slow
	}
	if bursts(1, behind*synced) {
		t.Error("recognised by one burst")
	}
	if !bursts(2, behind*synced) {
		t.Error("not recognised by its bursts")
	}
	for _, far := range []struct {
		bursts int
		pause  time.Duration
	}{{2, 140 * time.Millisecond}, {100, 30 * time.Millisecond}} {
		p.measured(20 * time.Millisecond)
		if bursts(far.bursts, far.pause) {
			t.Errorf("a long way, %d pauses of %v, is taken for a slow server", far.bursts, far.pause)
		}
	}
	p.measured(time.Millisecond)
	if bursts(1, slowFor-50*time.Millisecond) || answers(&p, 10*slowRun, behind, plain) {
		t.Error("a server that stood still once is taken for slow")
	}
	// The way there is no work, and a few messages tell nothing.
	for name, c := range map[string]struct {
		behind    int
		roundTrip time.Duration
	}{"far": {behind: 100, roundTrip: 20 * time.Millisecond}, "few": {behind: slowBehind - 1, roundTrip: time.Millisecond}} {
		p := newPace(0)
		p.measured(c.roundTrip)
		if answers(&p, 10*slowRun, c.behind, synced) {
			t.Errorf("%s: taken for slow", name)
		}
	}
}
