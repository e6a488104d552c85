package walrelaytest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/inbox"
)

// An Event says what a handler is to be given. What is empty is filled in: ID
// with a new one, AggregateType and AggregateID with "test".
type Event struct {
	// ID is the event id: the same one twice is the same event twice.
	ID string
	// AggregateType, AggregateID and Type are the row's.
	AggregateType, AggregateID, Type string
	// Payload is encoded as JSON. A json.RawMessage or []byte is taken as
	// it is; nil is SQL's null.
	Payload any
	// Headers are those of the row.
	Headers map[string]string
}

// Message gives the event as a consumer sees it.
func (e Event) Message(t testing.TB) inbox.Message {
	t.Helper()
	m := inbox.Message{
		ID: e.ID, Source: "walrelaytest", AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type,
		Headers: nats.Header{}, Subject: "walrelaytest", Stream: "walrelaytest", Sequence: 1, Deliveries: 1,
	}
	for _, field := range []*string{&m.AggregateType, &m.AggregateID} {
		if *field == "" {
			*field = "test"
		}
	}
	if m.ID == "" {
		m.ID = uuid.NewString()
	}
	for name, value := range e.Headers {
		m.Headers[name] = []string{value}
	}
	switch p := e.Payload.(type) {
	case nil:
		m.Null = true
		m.Headers[envelope.HeaderPayload] = []string{"null"}
	case json.RawMessage:
		m.Raw = p
	case []byte:
		m.Raw = p
	default:
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("encode the payload of event %s: %v", m.ID, err)
		}
		m.Raw = raw
	}
	return m
}

// Handle runs a handler on one event inside tx, which the test rolls back
// afterwards: the handler's own error is returned, and there is no receipt.
// The payload goes through JSON, as it does on the wire.
func Handle[T any](t testing.TB, tx pgx.Tx, handle func(ctx context.Context, tx pgx.Tx, e inbox.Event[T]) error, e Event) error {
	t.Helper()
	m := e.Message(t)
	event := inbox.Event[T]{Message: m}
	switch data := any(&event.Data).(type) {
	case *[]byte:
		*data = m.Raw
	case *json.RawMessage:
		*data = m.Raw
	default:
		if m.Null {
			break
		}
		d := json.NewDecoder(bytes.NewReader(m.Raw))
		d.UseNumber()
		if err := d.Decode(&event.Data); err != nil {
			t.Fatalf("decode the payload of event %s into %T: %v", m.ID, event.Data, err)
		}
	}
	return handle(t.Context(), tx, event)
}

// An applier is a consumer: *inbox.Consumer or *inbox.SQLConsumer.
type applier interface {
	Apply(ctx context.Context, m inbox.Message) (inbox.Outcome, error)
}

// Deliver gives one event to a consumer, with receipt and commit as in
// production but without a broker, and fails the test where it is not applied
// or known already. The consumer's database keeps what it does.
func Deliver(t testing.TB, c applier, e Event) inbox.Outcome {
	t.Helper()
	m := e.Message(t)
	outcome, err := c.Apply(t.Context(), m)
	if err != nil {
		t.Fatalf("deliver event %s of type %q: %v", m.ID, m.Type, err)
	}
	return outcome
}

// DeliverTwice gives one event to a consumer twice, as JetStream may, and
// fails the test unless the first is applied and the second is known.
func DeliverTwice(t testing.TB, c applier, e Event) {
	t.Helper()
	e.ID = e.Message(t).ID
	for i, want := range []inbox.Outcome{inbox.Applied, inbox.Duplicate} {
		if got := Deliver(t, c, e); got != want {
			t.Fatalf("delivery %d of event %s is %s, want %s", i+1, e.ID, got, want)
		}
	}
}

// DeliverConcurrently gives one event to a consumer n times at once, as
// processes side by side may get it, and fails the test unless it is applied
// exactly once. The database needs that many connections for it to be at once.
func DeliverConcurrently(t testing.TB, c applier, e Event, n int) {
	t.Helper()
	m := e.Message(t)
	outcomes := make([]inbox.Outcome, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			outcomes[i], errs[i] = c.Apply(t.Context(), m)
			if errs[i] != nil {
				errs[i] = fmt.Errorf("delivery %d: %w", i+1, errs[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("deliver event %s of type %q %d times: %v", m.ID, m.Type, n, err)
	}
	applied := 0
	for _, o := range outcomes {
		if o == inbox.Applied {
			applied++
		}
	}
	if applied != 1 {
		t.Fatalf("event %s was applied %d times in %d deliveries, want once", m.ID, applied, n)
	}
}

// AssertOnce delivers one event twice, then n times at once, and after each
// checks that count gives want: the number of effects, such as rows.
func AssertOnce(t testing.TB, c applier, e Event, n, want int, count func(ctx context.Context) (int, error)) {
	t.Helper()
	check := func(what string) {
		t.Helper()
		got, err := count(t.Context())
		if err != nil {
			t.Fatalf("count the effects after %s: %v", what, err)
		}
		if got != want {
			t.Fatalf("effects after %s = %d, want %d", what, got, want)
		}
	}
	e.ID = e.Message(t).ID
	m := e.Message(t)
	DeliverConcurrently(t, c, e, n)
	check(fmt.Sprintf("%d deliveries at once", n))
	if got := Deliver(t, c, e); got != inbox.Duplicate {
		t.Fatalf("one more delivery of event %s is %s, want %s", m.ID, got, inbox.Duplicate)
	}
	check("one more delivery")
}
