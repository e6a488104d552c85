package publish

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// ErrStopped is what Send and Drain give once Run has returned.
var ErrStopped = errors.New("stream is not running")

// ErrNoRoom is what Send gives when nothing flows and all the room for what
// waits is taken, see Config.GiveWay. The message was not taken.
var ErrNoRoom = errors.New("the stream is in trouble and has no room for more")

// A GapError says that the stream no longer has what it acknowledged: its end
// is lower, or it was made anew. The leader has said so twice.
type GapError struct {
	// Stream is the stream's name.
	Stream string
	// Acked is the highest sequence known to have been stored, LastSeq the
	// stream's end now.
	Acked, LastSeq uint64
	// Created is when the stream was made as it was known before, CreatedNow
	// what its leader says now. They differ if it was made anew.
	Created, CreatedNow time.Time
	// Replaced says that another message stands at Acked: others went on
	// writing to the stream after it had lost its end.
	Replaced bool
}

// Recreated says whether the stream was made anew.
func (e *GapError) Recreated() bool { return !e.Created.Equal(e.CreatedNow) }

// Error says what is missing.
func (e *GapError) Error() string {
	if e.Recreated() {
		return fmt.Sprintf("stream %q was made anew at %s (before: %s): what it acknowledged up to sequence %d is gone; its end is now %d",
			e.Stream, e.CreatedNow.UTC().Format(time.RFC3339), e.Created.UTC().Format(time.RFC3339), e.Acked, e.LastSeq)
	}
	if e.Replaced {
		return fmt.Sprintf("stream %q lost what it acknowledged: another message stands at sequence %d now; its end is %d", e.Stream, e.Acked, e.LastSeq)
	}
	return fmt.Sprintf("stream %q lost what it acknowledged: sequence %d was stored, its end is now %d", e.Stream, e.Acked, e.LastSeq)
}

// A SecondWriterError says that the chain cannot go on by waiting: another
// relay of the same source writes to the stream, or a foreign message took the
// place of one of ours while later ones of ours were stored behind it.
type SecondWriterError struct {
	// Stream is the stream's name.
	Stream string
	// Seq is the sequence of the other writer's message; Subject and Source
	// are what it carries ("" when it is gone, or has none).
	Seq             uint64
	Subject, Source string
	// SameSource says that the message is one of our own source.
	SameSource bool
	// Missing are events of ours that are not stored although later ones
	// are. They are not reported as stored.
	Missing []envelope.Position
}

// Error names the other writer.
func (e *SecondWriterError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "another writer on stream %q: sequence %d", e.Stream, e.Seq)
	describe(&b, e.Subject, e.Source)
	if e.SameSource {
		// A server that stood still stores what it was sent when it goes on, be it
		// of a session that has long ended: one such message is met once, at the
		// stream's end, and is known from then on.
		b.WriteString("; a second relay of this source is running: stop one of them; " +
			"or a NATS server that stood still has stored what an earlier session sent, then the relay goes on by itself")
	} else {
		b.WriteString("; stop that writer, or mark the stream `shared: true`")
	}
	if len(e.Missing) > 0 {
		fmt.Fprintf(&b, "; it took the place of %d of our events, the first at position %s, while later ones were stored",
			len(e.Missing), e.Missing[0])
	}
	return b.String()
}

func describe(b *strings.Builder, subject, source string) {
	if subject != "" {
		fmt.Fprintf(b, " on subject %q", subject)
	}
	if source != "" {
		fmt.Fprintf(b, " has source %q", source)
	}
}

// A Refused is one event that can never be stored.
type Refused struct {
	// Stream is the stream that refuses.
	Stream string
	// Tx and Position are what Send was given.
	Tx       uint64
	Position envelope.Position
	// Message is a copy of the event.
	Message Message
	// Reason is one of the Reason constants, Detail is for the operator.
	// Neither has anything of the payload.
	Reason, Detail string
}
