package walrelay

import (
	"sync/atomic"
	"time"

	"github.com/walrelay/walrelay/internal/publish"
)

// Status is what a relay says of itself at one moment.
type Status struct {
	Source      string    `json:"source"`
	Slot        string    `json:"slot"`
	Publication string    `json:"publication"`
	State       State     `json:"state"`
	Reason      string    `json:"reason,omitempty"` // why, and what to do about it
	Since       time.Time `json:"since"`            // since when the state holds
	// ReceivedLSN is the last commit LSN or WAL end that the slot sent,
	// ConfirmedLSN what PostgreSQL was told to be stored; both empty before
	// the first one of a session.
	ReceivedLSN  string         `json:"received_lsn,omitempty"`
	ConfirmedLSN string         `json:"confirmed_lsn,omitempty"`
	Epoch        uint32         `json:"epoch,omitempty"`
	Streams      []StreamStatus `json:"streams"`
	Counters     Counters       `json:"counters"`
	LastError    string         `json:"last_error,omitempty"` // why the last session ended
	LastErrorAt  time.Time      `json:"last_error_at,omitzero"`
}

// StreamStatus is the state of one stream.
type StreamStatus struct {
	Name      string         `json:"name"`
	Mechanism string         `json:"mechanism"` // chain
	MarkMet   bool           `json:"mark_met"`
	Publish   publish.Status `json:"publish"`
}

// Counters count since the process started.
type Counters struct {
	Transactions uint64 `json:"transactions"`
	Rows         uint64 `json:"rows"`      // inserts that the slot sent, of whatever table
	Published    uint64 `json:"published"` // events handed to a stream
	Stored       uint64 `json:"stored"`
	Passed       uint64 `json:"passed"`     // events that were in the stream already
	Refused      uint64 `json:"refused"`    // events recorded as dead letters
	Skipped      uint64 `json:"skipped"`    // events whose route says skip
	NotOutbox    uint64 `json:"not_outbox"` // inserts of tables that are no outbox
	Updates      uint64 `json:"updates"`    // updates of an outbox, which are no events
	Deletes      uint64 `json:"deletes"`    // likewise deletes
	Truncates    uint64 `json:"truncates"`  // likewise truncates
	Sessions     uint64 `json:"sessions"`
}

type counters struct {
	transactions, rows, published, stored, passed, refused, skipped, notOutbox,
	updates, deletes, truncates, sessions atomic.Uint64
}

func (c *counters) read() Counters {
	return Counters{
		Transactions: c.transactions.Load(), Rows: c.rows.Load(), Published: c.published.Load(), Stored: c.stored.Load(),
		Passed: c.passed.Load(), Refused: c.refused.Load(), Skipped: c.skipped.Load(), NotOutbox: c.notOutbox.Load(),
		Updates: c.updates.Load(), Deletes: c.deletes.Load(), Truncates: c.truncates.Load(), Sessions: c.sessions.Load(),
	}
}

// Status says what the relay does now. It never waits for a server.
func (r *Relay) Status() Status {
	state, reason, since := r.state.get()
	st := Status{
		Source: r.cfg.Source, Slot: r.cfg.Slot, Publication: r.cfg.Publication,
		State: state, Reason: reason, Since: since, Counters: r.count.read(),
	}
	r.mu.Lock()
	s := r.current
	st.LastError, st.LastErrorAt = r.lastErr, r.lastEnd
	r.mu.Unlock()
	if s != nil {
		s.status(&st)
	}
	return st
}

// status adds what the session knows.
func (s *session) status(to *Status) {
	if v := s.received.Load(); v > 0 {
		to.ReceivedLSN = lsn(&s.received).String()
	}
	if v := s.confirmed.Load(); v > 0 {
		to.ConfirmedLSN = lsn(&s.confirmed).String()
	}
	for _, st := range s.list() {
		// A stream that does not flow is the relay not delivering, whatever
		// the session does.
		if p := st.pub.Status(); to.State == StateRelaying && !p.Healthy() {
			to.State, to.Reason, to.Since = StateWaiting, "stream "+st.name+": "+or(p.Reason, p.State.String()), p.Since
		}
		to.Streams = append(to.Streams, StreamStatus{
			Name: st.name, Mechanism: "chain", MarkMet: st.met.Load(), Publish: st.pub.Status(),
		})
	}
}
