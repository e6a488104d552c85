package walrelay

import "time"

// SetClock lets a test move the clock that Status goes by, and look at slot and
// streams more often. It is called before Run.
func SetClock(r *Relay, now func() time.Time, looks time.Duration) { r.now, r.looks = now, looks }
