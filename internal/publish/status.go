package publish

import (
	"fmt"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// A State is what a [Publisher] is doing.
type State uint8

// The states of a stream. Only StateFlowing is healthy for long.
const (
	StateIdle     State = iota // Begin was not called yet
	StateTail                  // asking for the stream's end
	StateFlowing               // publishing as messages come
	StateProbing               // after trouble: sending again, nothing acknowledged yet
	StateSettling              // after a failure: waiting for the answers in flight
	StateResync                // reading the stream's end
	StateWaiting               // for what Reason names
	StateRefusing              // an event is being made a dead letter
	StateStopped               // Run has returned
)

// String gives the state in a word.
func (s State) String() string {
	names := [...]string{"idle", "tail", "flowing", "probing", "settling", "resync", "waiting", "refusing", "stopped"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText gives the state's word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Counters count over the life of a [Publisher].
type Counters struct {
	// Acks are messages acknowledged, Found those that a resync
	// found stored. Their sum is what Stored was told.
	Acks, Found uint64
	// Batches are atomic batches stored; Acks has their messages.
	Batches uint64
	// Duplicates are duplicate replies, Stale answers to attempts of before
	// a resync.
	Duplicates, Stale uint64
	// Failures by kind.
	Timeouts, Disconnects, WrongSequence, NoResponders, Denied, Environment uint64
	// Resyncs are times that sending began anew, Refused events that became
	// dead letters.
	Resyncs, Refused uint64
}

// Status is what is known of a stream now.
type Status struct {
	Stream string
	State  State
	// Reason says what is or was last waited for, "" when flowing: it stays
	// through further attempts until a message is acknowledged. Since is
	// when State and Reason began, TroubleSince when messages last ceased
	// to flow, zero while they do.
	Reason       string
	Since        time.Time
	TroubleSince time.Time
	// InFlight are messages sent and not stored, Queued those not sent yet;
	// Bytes is what both hold, their copies' overhead included.
	InFlight, Queued, Bytes int
	// LastSeq is the sequence of the last message known to be stored.
	LastSeq uint64
	// Position and MsgID are of the last live event stored by this process,
	// StoredAt of any; zero before the first. MsgID is empty where a message
	// that is not live stands behind it.
	Position envelope.Position
	MsgID    string
	StoredAt time.Time
	// UnacknowledgedSince is how long the oldest message in flight has been
	// the next to be stored; zero with none in flight.
	UnacknowledgedSince time.Time
	// LastError is the newest failure and LastErrorAt its time; Attempts
	// counts resyncs since the last message was stored.
	LastError   string
	LastErrorAt time.Time
	Attempts    int
	Counters    Counters
}

// Healthy says whether events flow, or would if there were any.
func (s *Status) Healthy() bool { return s.State == StateFlowing }

// Status gives what is known now. It can take as long as a write to a full
// socket, five seconds at most.
func (s *Stream) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status()
	st.InFlight, st.Queued, st.Bytes = s.w.inFlight(), s.w.held()-s.w.inFlight(), s.w.bytes
	st.LastSeq = s.w.base
	if s.w.inFlight() > 0 {
		st.UnacknowledgedSince = s.headSince
	}
	return st
}

// status gives what is not the mechanism's own.
func (s *publisher) status() Status {
	id := string(s.lastID)
	if s.lastAside {
		id = ""
	}
	return Status{
		Stream: s.cfg.Stream, State: s.state, Reason: s.reason, Since: s.since, TroubleSince: s.troubleSince,
		LastSeq: s.acked, Position: s.lastPos, MsgID: id, StoredAt: s.storedAt,
		LastError: s.lastError, LastErrorAt: s.lastErrorAt, Attempts: s.attempts, Counters: s.count,
	}
}
