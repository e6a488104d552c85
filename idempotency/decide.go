package idempotency

import (
	"bytes"
	"time"
)

// States of a row, as the table has them.
const (
	// running without a lease is a key that nobody holds, and for which
	// certainly nothing has happened.
	stateRunning   = "running"
	stateDone      = "done"
	stateFailed    = "failed"
	stateUncertain = "uncertain"
)

// A row is what the table holds of a key.
type row struct {
	state    string
	token    int64
	attempts int
	request  []byte
	result   []byte
	failure  string
	// leased says whether there is a lease; remaining is then how long it
	// runs, by the database's clock.
	leased    bool
	remaining time.Duration
	// age is how long ago the first attempt was.
	age time.Duration
}

// A step is what to do about a key that is in the table already.
type step int

const (
	stepMismatch  step = iota // another request
	stepReplay                // the result is stored
	stepFailed                // the final failure is stored
	stepWait                  // somebody holds the lease
	stepCall                  // take over and call
	stepProbe                 // take over and ask the provider first
	stepUncertain             // nobody can tell
)

// decide is the whole of what a repeat may do. It has no clock: the row's
// times are the database's.
func decide(r row, request []byte, o Options) step {
	if request != nil && r.request != nil && !bytes.Equal(request, r.request) {
		return stepMismatch
	}
	switch r.state {
	case stateDone:
		return stepReplay
	case stateFailed:
		return stepFailed
	case stateRunning:
		if !r.leased {
			return stepCall
		}
		if r.remaining > 0 {
			return stepWait
		}
	}
	// Whether the last attempt took effect is open. The provider forgets a
	// key some time after it first saw it, which is no sooner than the first
	// attempt; another lease must still fit in.
	switch {
	case r.age+o.Lease < o.KeyHonouredFor:
		return stepCall
	case o.Probe != nil:
		return stepProbe
	}
	return stepUncertain
}
