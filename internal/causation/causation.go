// Package causation carries the event that is being handled through a context,
// from package inbox to package outbox, which do not import each other: an
// event that a handler appends names its cause and keeps its correlation.
package causation

import "context"

// Names of the headers of an event that another event has caused.
const (
	// HeaderCausationID is the id of the event whose handler appended this one.
	HeaderCausationID = "Causation-Id"
	// HeaderCorrelationID is common to all events that go back to one.
	HeaderCorrelationID = "Correlation-Id"
)

// A Cause is the event that is being handled.
type Cause struct {
	// EventID is its id.
	EventID string
	// CorrelationID is its correlation id; empty where it has none.
	CorrelationID string
}

// Correlation gives the correlation id of what c causes: its own, and where it
// has none c is where it all began.
func (c Cause) Correlation() string {
	if c.CorrelationID != "" {
		return c.CorrelationID
	}
	return c.EventID
}

type key struct{}

// With gives a context for the handler of c.
func With(ctx context.Context, c Cause) context.Context { return context.WithValue(ctx, key{}, c) }

// From gives the event that is being handled, if one is.
func From(ctx context.Context) (Cause, bool) {
	c, ok := ctx.Value(key{}).(Cause)
	return c, ok
}
