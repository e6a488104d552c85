package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/outbox"
)

// A Trip is what is to be booked. Every event of a saga carries it, so that a
// service needs to remember nothing of others.
type Trip struct {
	Customer string `json:"customer"`
	City     string `json:"city"`
	Cents    int64  `json:"cents"`
}

// event gives the events of one name. Their aggregate is the trip.
func event(name string) outbox.EventType[Trip] { return outbox.Type[Trip]("trip", name) }

// A step is something to do, what may be answered, and how it is undone: names
// of events.
type step struct{ do, done, refused, undo, undone string }

// steps are in the order in which they are done. The last has no undo, which is
// why it is the last: nothing after it can refuse.
var steps = []step{
	{do: "seat.reserve", done: "seat.reserved", refused: "seat.refused", undo: "seat.release", undone: "seat.released"},
	{do: "room.reserve", done: "room.reserved", refused: "room.refused", undo: "room.release", undone: "room.released"},
	{do: "card.charge", done: "card.charged", refused: "card.refused"},
}

// States of a trip that has ended. Until then the state is the name of the
// event that was sent last.
const (
	booked    = "booked"
	cancelled = "cancelled"
)

// coordinate decides what comes next. It knows nothing of seats, rooms and
// cards.
func coordinate(c *inbox.Consumer) {
	for i, s := range steps {
		next := booked
		if i+1 < len(steps) {
			next = steps[i+1].do
		}
		back := cancelled
		if i > 0 {
			back = steps[i-1].undo
		}
		on(c, s.done, s.do, next)
		on(c, s.refused, s.do, back)
		if s.undo != "" {
			on(c, s.undone, s.undo, back)
		}
	}
}

// on moves a trip from one state to the next when an answer comes, and asks for
// what is next.
func on(c *inbox.Consumer, answer, from, to string) {
	inbox.On(c, answer, func(ctx context.Context, tx pgx.Tx, e inbox.Event[Trip]) error {
		tag, err := tx.Exec(ctx, `UPDATE trip SET state = $3 WHERE id = $1 AND state = $2`, e.AggregateID, from, to)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0:
			// Not a repeat, the receipt keeps those out: somebody has
			// answered what nobody asked. That is for a person to see.
			return inbox.Permanent(fmt.Errorf("%s came for a trip that is not at %s", answer, from))
		case to == booked, to == cancelled:
			return nil
		}
		return outbox.Append(ctx, tx, event(to).New(e.AggregateID, e.Data))
	})
}
