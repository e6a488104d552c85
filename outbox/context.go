package outbox

import (
	"context"
	"maps"
	"strings"

	"go.opentelemetry.io/otel/propagation"

	"github.com/walrelay/walrelay/internal/causation"
)

// Names of the headers that say where an event comes from. Both hold event ids
// or ids of your own; docs/consumers.md tells how they are carried on.
const (
	// HeaderCorrelationID is the same on all events that go back to one
	// request or event.
	HeaderCorrelationID = causation.HeaderCorrelationID
	// HeaderCausationID is the id of the event whose handler appended this
	// one.
	HeaderCausationID = causation.HeaderCausationID
)

type correlationKey struct{}

// WithCorrelation gives a context whose events carry the id as
// [HeaderCorrelationID]: that of an HTTP request, for example. In a handler of
// package inbox it replaces the correlation of the handled event.
func WithCorrelation(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, correlationKey{}, id)
}

// contextHeaders gives own and what ctx adds to it. What own has, in any case,
// stays.
func contextHeaders(ctx context.Context, own map[string]string) map[string]string {
	added := make(propagation.MapCarrier, 4)
	propagation.TraceContext{}.Inject(ctx, added)
	cause, caused := causation.From(ctx)
	if caused {
		added[HeaderCausationID] = cause.EventID
		added[HeaderCorrelationID] = cause.Correlation()
	}
	if id, ok := ctx.Value(correlationKey{}).(string); ok {
		added[HeaderCorrelationID] = id
	}
	if len(added) == 0 {
		return nonNil(own)
	}
	for name := range own {
		for other := range added {
			if strings.EqualFold(other, name) {
				delete(added, other)
			}
		}
	}
	maps.Copy(added, own)
	return added
}

// nonNil makes the JSON of no headers an object and not null.
func nonNil(headers map[string]string) map[string]string {
	if headers == nil {
		return map[string]string{}
	}
	return headers
}
