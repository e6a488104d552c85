package publish

import "time"

const (
	// windowFirst is the window of a chain that was given none, and windowMost
	// what it grows to where the way to the server is long. Beyond it a resync
	// has too much to read.
	windowFirst = 1024
	windowMost  = 16384
	// slowWrite is the time for one message from which a server is taken for
	// one that syncs every write; without that it takes a tenth.
	slowWrite = 60 * time.Microsecond
	// slowRun is over how many answers that is averaged at least: a server that
	// is slow was seen to answer a whole window at once. One that stood still, or
	// a long way on which answers come in bursts, looks slow for a moment: so it
	// must be slow for slowFor, and for slowTrips round trips. slowBehind is how
	// many messages must be in flight behind one for its answer to count.
	slowRun    = 1536
	slowFor    = 250 * time.Millisecond
	slowTrips  = 16
	slowBehind = 64
)

// A pace learns from the answers to single messages while there are always more
// in flight.
//
// Where the way to the server and back, which is measured apart with nothing in
// flight, takes the greater part of the time until a message is answered, the
// pipe runs dry between two windows: the window grows until the server's work
// and the way are about even. Where the answers follow each other slowly all the
// same, the server is slow.
type pace struct {
	window int
	fixed  bool // the window was given

	roundTrip time.Duration // of nothing; 0: not measured
	sampling  bool
	index     uint64 // of the message that is timed
	at        time.Time

	answers int           // that count
	waited  time.Duration // for them
}

func newPace(window int) pace {
	if window > 0 {
		return pace{window: window, fixed: true}
	}
	return pace{window: windowFirst}
}

// measured sets the round trip, at the begin of a round.
func (p *pace) measured(d time.Duration) {
	p.roundTrip, p.sampling = d, false
	p.anew()
}

// sent is told of each single message that is sent, and how many are in flight
// with it. One at a time is timed.
func (p *pace) sent(index uint64, depth int) {
	if p.fixed || p.sampling || p.roundTrip == 0 || depth <= p.window-p.window/4 {
		return
	}
	p.sampling, p.index, p.at = true, index, time.Now()
}

// answered is told of each single message that is stored: how long it was the
// next to be stored, and how many are in flight behind it. Once in a while it
// says how the server is message by message.
func (p *pace) answered(index uint64, waited time.Duration, behind int, now time.Time) found {
	if p.sampling && index >= p.index {
		p.sampling = false
		if work := now.Sub(p.at) - p.roundTrip; work < p.roundTrip && p.window < windowMost {
			p.window *= 2
		}
	}
	if behind < slowBehind || p.roundTrip > slowWrite*time.Duration(behind)/2 {
		return foundNothing // waiting for the way, or for us, tells nothing of the server
	}
	p.answers++
	p.waited += waited
	if p.answers < slowRun {
		return foundNothing
	}
	switch {
	case p.waited < time.Duration(p.answers)*slowWrite:
		p.anew()
		return foundFast
	case p.waited < max(slowFor, slowTrips*p.roundTrip):
		return foundNothing // yet
	}
	p.anew()
	return foundSlow
}

// anew forgets the answers so far.
func (p *pace) anew() { p.answers, p.waited = 0, 0 }

// A found is what answers tell of a server.
type found uint8

const (
	foundNothing found = iota
	foundSlow
	foundFast
)
