package envelope

import (
	"errors"
	"fmt"
	"time"
)

// An Event is what the headers of a received message say. A header that the
// message does not have leaves its field empty: an aggregate's type or the
// times, where the relay writes lean headers.
type Event struct {
	// ID is the event's id: what receipts are keyed by. It is
	// Walrelay-Event-Id where the message has one, else Nats-Msg-Id.
	ID string
	// Source names the relay's source.
	Source string
	// Position orders the events of one source. It is known where
	// HasPosition is true: an event read from the table may have none.
	Position    Position
	HasPosition bool
	// AggregateType, AggregateID and EventType are the row's values.
	AggregateType, AggregateID, EventType string
	// CreatedAt is the row's created_at as PostgreSQL prints it. It is text,
	// since infinity and years before Christ have no time.Time.
	CreatedAt string
	// CommittedAt is the time of the commit; zero where it is not known.
	CommittedAt time.Time
	// Origin is <kind>/<job> on a message that is not live, else empty.
	Origin string
	// Mark is, on a message that is not live, the position of the last live
	// event sent before it; zero on others.
	Mark Position
	// Late says that newer events of the same aggregate were stored before
	// this one.
	Late bool
	// NullPayload says that the payload is SQL's null and not merely empty.
	NullPayload bool
}

// Live says whether the slot delivered the event in its turn, as against
// healed, replayed, requeued, released or backfilled.
func (e *Event) Live() bool { return e.Origin == "" }

var errNoID = errors.New("message has neither " + HeaderEventID + " nor " + HeaderMsgID + ": it is not one of walrelay's")

// Read reads the headers of a received message. get returns the first value
// of a header, or the empty string where there is none: the Get method of
// nats.Header. The names asked for are the Header constants, spelt so.
//
// All problems are reported together. What could be read is returned with them.
func Read(get func(name string) string) (Event, error) {
	e := Event{
		ID:          get(HeaderEventID),
		Source:      get(HeaderSource),
		Origin:      get(HeaderOrigin),
		Late:        get(HeaderLate) == "1",
		NullPayload: get(HeaderPayload) == "null",
	}
	var errs []error
	if e.ID == "" {
		e.ID = get(HeaderMsgID)
	}
	if e.ID == "" {
		errs = append(errs, errNoID)
	}
	for _, h := range []struct {
		name string
		dst  *string
	}{
		{HeaderAggregateType, &e.AggregateType},
		{HeaderAggregateID, &e.AggregateID},
		{HeaderEventType, &e.EventType},
		{HeaderCreatedAt, &e.CreatedAt},
	} {
		v, err := Unescape(get(h.name))
		if err != nil {
			errs = append(errs, fmt.Errorf("header %s: %w", h.name, err))
			continue
		}
		*h.dst = v
	}
	for _, h := range []struct {
		name string
		dst  *Position
	}{
		{HeaderPosition, &e.Position},
		{HeaderMark, &e.Mark},
	} {
		s := get(h.name)
		if s == "" {
			continue
		}
		p, err := ParsePosition(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("header %s: %w", h.name, err))
			continue
		}
		*h.dst = p
		if h.name == HeaderPosition {
			e.HasPosition = true
		}
	}
	if s := get(HeaderCommittedAt); s != "" {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			errs = append(errs, fmt.Errorf("header %s: want RFC 3339, such as 2026-01-02T03:04:05Z", HeaderCommittedAt))
		} else {
			e.CommittedAt = at.UTC()
		}
	}
	return e, errors.Join(errs...)
}
