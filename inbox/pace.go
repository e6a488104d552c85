package inbox

import "time"

// A pace says how many messages to hold: what is soon done, so that neither
// workers wait for messages nor messages for workers that others could have.
type pace struct {
	least, most int

	since time.Time
	seen  int     // events done by then
	rate  float64 // events a second, of late
}

const (
	// paceEvery is how often the rate is looked at.
	paceEvery = 50 * time.Millisecond
	// paceAhead is for how long the messages at hand are to last.
	paceAhead = 100 * time.Millisecond
)

// hand gives the number, now that done events are done in all.
func (p *pace) hand(done int) int {
	now := time.Now()
	if passed := now.Sub(p.since); passed >= paceEvery {
		rate := float64(done-p.seen) / passed.Seconds()
		p.rate = (p.rate + rate) / 2
		p.since, p.seen = now, done
	}
	return max(p.least, min(p.most, p.least+int(p.rate*paceAhead.Seconds())))
}
