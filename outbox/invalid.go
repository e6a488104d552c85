package outbox

import (
	"fmt"
	"strings"
)

// An InvalidError says why events were not sent to the database: all problems
// of all events of one call. Nothing was written, and the transaction is as it
// was.
type InvalidError struct {
	// Table is the outbox that was meant.
	Table string
	// Events is the number of events of the call.
	Events int
	// Problems are in the order of the events. There is at least one.
	Problems []Problem
}

// A Problem is one thing that the relay would refuse.
type Problem struct {
	// Event is the event's number among those of the call, from 0.
	Event int
	// Type is the event's type; empty if that is the problem.
	Type string
	// Field is the field of [Event] that is wrong, with a header's name in
	// brackets: Headers["Nats-Rollup"].
	Field string
	// Reason says what is wrong and what to do. It has no value of the event.
	Reason string
}

func (p Problem) String() string {
	return fmt.Sprintf("event %d (%.80q): %s %s", p.Event, p.Type, p.Field, p.Reason)
}

func (e *InvalidError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "append to %s: nothing was written: ", e.Table)
	for i, p := range e.Problems {
		// A call with thousands of events can repeat one mistake as often.
		if i == 20 {
			fmt.Fprintf(&b, "; and %d more", len(e.Problems)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(p.String())
	}
	return b.String()
}
