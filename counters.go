package walrelay

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/publish"
)

// Counters count since the process started.
type Counters struct {
	Transactions uint64  `json:"transactions"`
	Rows         uint64  `json:"rows"`      // inserts that the slot sent, of whatever table
	Published    uint64  `json:"published"` // events handed to a stream
	Stored       uint64  `json:"stored"`
	StoredBytes  uint64  `json:"stored_bytes"` // of the bodies of those
	Passed       uint64  `json:"passed"`       // events that were in the stream already
	Refused      uint64  `json:"refused"`      // events recorded as dead letters
	Left         uint64  `json:"left"`         // events left to a later session, since their stream was in trouble
	Skipped      uint64  `json:"skipped"`      // events whose route says skip
	NotOutbox    uint64  `json:"not_outbox"`   // inserts of tables that are no outbox
	Updates      uint64  `json:"updates"`      // updates of an outbox, which are no events
	Deletes      uint64  `json:"deletes"`      // likewise deletes
	Truncates    uint64  `json:"truncates"`    // likewise truncates
	Sessions     uint64  `json:"sessions"`
	Gaps         uint64  `json:"gaps"`   // gaps that were found
	Healed       uint64  `json:"healed"` // events published to heal gaps
	Late         uint64  `json:"late"`   // events published marked late, since newer ones of their aggregate are stored or may be
	Retries      Retries `json:"retries"`
	Answers      Answers `json:"answers"`
	// GapsByKind divides Gaps.
	GapsByKind map[string]uint64 `json:"gaps_by_kind,omitempty"`
}

// Retries count what made messages be sent again, over all streams.
type Retries struct {
	Timeouts      uint64 `json:"timeouts"`
	Disconnects   uint64 `json:"disconnects"`
	WrongSequence uint64 `json:"wrong_sequence"`
	NoResponders  uint64 `json:"no_responders"`
	Denied        uint64 `json:"denied"`
	Environment   uint64 `json:"environment"` // other refusals that an operator or time can mend
	Resyncs       uint64 `json:"resyncs"`     // times that sending began anew
}

// Answers count what became of messages that were sent, over all streams: also
// of those that are not live.
type Answers struct {
	Acknowledged uint64 `json:"acknowledged"`
	Found        uint64 `json:"found"`      // a resync found them stored
	Duplicates   uint64 `json:"duplicates"` // the stream had seen the id
	Refused      uint64 `json:"refused"`    // for good: they became dead letters
}

func (a *Answers) add(c *publish.Counters) {
	a.Acknowledged += c.Acks
	a.Found += c.Found
	a.Duplicates += c.Duplicates
	a.Refused += c.Refused
}

func (r *Retries) add(c *publish.Counters) {
	r.Timeouts += c.Timeouts
	r.Disconnects += c.Disconnects
	r.WrongSequence += c.WrongSequence
	r.NoResponders += c.NoResponders
	r.Denied += c.Denied
	r.Environment += c.Environment
	r.Resyncs += c.Resyncs
}

type counters struct {
	transactions, rows, published, stored, passed, refused, skipped, notOutbox,
	updates, deletes, truncates, sessions, left, healed, late, storedBytes atomic.Uint64

	latency latencies

	ages     ages
	letters  atomic.Pointer[DeadLetters]
	asked    atomic.Pointer[askedStatus]
	retained retained

	mu      sync.Mutex
	retries Retries           // of the sessions that are over
	answers Answers           // likewise
	gaps    map[string]uint64 // by kind
	streams []StreamStatus    // as the last session left them
}

// gap counts one that was found.
func (c *counters) gap(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gaps == nil {
		c.gaps = map[string]uint64{}
	}
	c.gaps[kind]++
}

func (c *counters) read() Counters {
	n := c.readAtomics()
	c.mu.Lock()
	defer c.mu.Unlock()
	n.Retries, n.Answers, n.GapsByKind = c.retries, c.answers, maps.Clone(c.gaps)
	for _, found := range c.gaps {
		n.Gaps += found
	}
	return n
}

func (c *counters) readAtomics() Counters {
	return Counters{
		Transactions: c.transactions.Load(), Rows: c.rows.Load(), Published: c.published.Load(), Stored: c.stored.Load(),
		StoredBytes: c.storedBytes.Load(), Healed: c.healed.Load(), Late: c.late.Load(), Left: c.left.Load(), Passed: c.passed.Load(), Refused: c.refused.Load(), Skipped: c.skipped.Load(), NotOutbox: c.notOutbox.Load(),
		Updates: c.updates.Load(), Deletes: c.deletes.Load(), Truncates: c.truncates.Load(), Sessions: c.sessions.Load(),
	}
}

// leftBy keeps what the counts and the streams were when the session ended.
func (c *counters) leftBy(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := s.streamStatus(&c.retries, &c.answers)
	if len(list) == 0 {
		return
	}
	for i := range list {
		st := &list[i]
		st.State, st.Flowing, st.MarkMet, st.Reason = publish.StateStopped.String(), false, false, ""
		st.InFlight, st.Queued, st.Bytes, st.UnacknowledgedSince, st.Fill = 0, 0, 0, time.Time{}, nil
	}
	c.streams = list
}

// countLetters asks for the open dead letters. Not to know them does no harm:
// a role may be without the right to read them.
func (s *session) countLetters(ctx context.Context, conn *pgx.Conn) {
	open, err := deadletter.Open(ctx, conn, s.cfg.Schema, s.cfg.Source)
	if err != nil {
		s.r.count.letters.Store(nil)
		return
	}
	found := &DeadLetters{LookedAt: s.r.now(), ByReason: open}
	for _, n := range open {
		found.Open += n
	}
	s.r.count.letters.Store(found)
}
