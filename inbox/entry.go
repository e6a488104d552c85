package inbox

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// An entry is one message in a consumer's hands.
type entry struct {
	// Message is nil while only its place is known: parked in the database,
	// or found in the stream at a start.
	*Message
	// seq is the sequence in the stream, also where Message is nil.
	seq uint64
	// foreign says why the message is no event of walrelay; nil if it is.
	foreign error
	// msg is JetStream's delivery; nil where the message came otherwise.
	msg jetstream.Msg
	// storedAt is when the stream stored it; zero where not known.
	storedAt time.Time
	// parked says that the message is in the database and acknowledged.
	parked bool
	// replayed says that the message was found in the stream itself, and
	// recovered that it was acknowledged then: the database forgot it.
	replayed, recovered bool
	// suspect says that it may have killed the process that had it.
	suspect bool
	lane    *lane
	// worker numbers the goroutine that has it, from 0.
	worker int
}

// newEntry reads a delivered message with read.
func newEntry(msg jetstream.Msg, read func(*Message) error) (*entry, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	m := &Message{
		Raw: msg.Data(), Headers: msg.Headers(), Subject: msg.Subject(),
		Stream: meta.Stream, Sequence: meta.Sequence.Stream, Deliveries: meta.NumDelivered,
	}
	e := &entry{Message: m, seq: m.Sequence, msg: msg, storedAt: meta.Timestamp}
	e.foreign = read(m)
	return e, nil
}

// Conflicts between transactions go away by themselves, and soon.
const (
	maxConflicts  = 20
	firstConflict = 2 * time.Millisecond
	longConflict  = 250 * time.Millisecond
)

func conflictDelay(n int) time.Duration { return jitter(grow(firstConflict, longConflict, n)) }

// Waits for a database that is not there.
const (
	firstTrouble = 50 * time.Millisecond
	longTrouble  = 3 * time.Second
)

func troubleDelay(n int) time.Duration { return jitter(grow(firstTrouble, longTrouble, n)) }

// grow doubles first n times, up to most.
func grow(first, most time.Duration, n int) time.Duration {
	d := first
	for range n {
		if d >= most/2 {
			return most
		}
		d *= 2
	}
	return d
}

// jitter spreads a wait over its upper half, so that those who failed
// together do not come back together.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1) //nolint:gosec // not a secret
}

// pause waits, and gives the context's error where that ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
