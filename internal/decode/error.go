package decode

import "strconv"

// An Error says that bytes are not a message of pgoutput's protocol version 1,
// or not one that fits the relations read before it. The same bytes fail the
// same way again; a new connection sends its relations anew.
//
// It names tables and columns, and never holds bytes of a row.
type Error struct {
	// Message is the kind of message that was being read, or zero where the
	// message was not recognised.
	Message Kind
	// What is the part that was being read, such as: column payload of
	// walrelay.outbox.
	What string
	// At is where that part begins: a byte of the message, counted from 0.
	At int
	// Problem is what was wrong there.
	Problem string
}

// Error gives everything that the fields say in one line.
func (e *Error) Error() string {
	name := "pgoutput message"
	if e.Message != 0 {
		name = "pgoutput " + e.Message.String() + " message"
	}
	return name + ": " + e.What + " at byte " + strconv.Itoa(e.At) + ": " + e.Problem
}
