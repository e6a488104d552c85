package walrelay

import (
	"time"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
)

// Status is what a relay says of itself at one moment. What is not known now is
// left out: nil, or the zero time.
type Status struct {
	At          time.Time `json:"at"` // the moment, by the relay's clock
	Source      string    `json:"source"`
	Slot        string    `json:"slot"`
	Publication string    `json:"publication"`
	State       State     `json:"state"`
	Reason      string    `json:"reason,omitempty"` // why, and what to do about it
	Since       time.Time `json:"since"`            // since when the state holds
	// ReceivedLSN is the last commit LSN or WAL end that the slot sent,
	// ConfirmedLSN what PostgreSQL was told to be stored; both empty before
	// the first one of a session.
	ReceivedLSN  string `json:"received_lsn,omitempty"`
	ConfirmedLSN string `json:"confirmed_lsn,omitempty"`
	// LagBytes is the WAL between the confirmed LSN and the server's end, as
	// of SlotState.LookedAt.
	LagBytes *int64 `json:"lag_bytes,omitempty"`
	// LagSeconds is the age of the oldest event that was received and is not
	// stored, 0 when there is none. It may be a second too high.
	LagSeconds *float64 `json:"lag_seconds,omitempty"`
	// BehindSeconds is how long ago the server's WAL, which is looked at every
	// ten seconds, ended at what the relay is not done with; 0 when it is done
	// with all that was seen. It rises also where the slot sends nothing.
	BehindSeconds *float64 `json:"behind_seconds,omitempty"`
	// StalledSince is set while the relay holds the slot and waits for nothing
	// that it knows of, and yet nothing is received, stored or confirmed for a
	// minute though there is something to do.
	StalledSince time.Time `json:"stalled_since,omitzero"`
	// Withheld says whom PostgreSQL waits for before it sends more: standbys of
	// synchronized_standby_slots that have not received it. WithheldSince is
	// since when nothing has moved for that.
	Withheld      string         `json:"withheld,omitempty"`
	WithheldSince time.Time      `json:"withheld_since,omitzero"`
	Latency       LatencyStatus  `json:"latency"`
	SlotState     *SlotStatus    `json:"slot_state,omitempty"`
	NATS          NATSStatus     `json:"nats"`
	Streams       []StreamStatus `json:"streams"`
	DeadLetters   *DeadLetters   `json:"dead_letters,omitempty"`
	// Gaps are known once they were looked at, as are Jobs: what is asked for
	// or running.
	Gaps *GapsStatus `json:"gaps,omitempty"`
	Jobs []JobStatus `json:"jobs,omitempty"`
	// Retention is of the deletion of old rows; nil before its first run.
	Retention   *RetentionStatus `json:"retention,omitempty"`
	Counters    Counters         `json:"counters"`
	LastError   string           `json:"last_error,omitempty"` // why the last session ended
	LastErrorAt time.Time        `json:"last_error_at,omitzero"`
}

// SlotStatus is what PostgreSQL said of the slot when it was last looked at.
type SlotStatus struct {
	LookedAt  time.Time `json:"looked_at"`
	Active    bool      `json:"active"`
	WALStatus string    `json:"wal_status"` // reserved, extended, unreserved or lost
	// RetainedBytes is the WAL that the slot keeps the server from removing.
	RetainedBytes int64 `json:"retained_bytes"`
	// SafeBytes is how much WAL may still be written before the slot is lost;
	// nil where max_slot_wal_keep_size sets no limit.
	SafeBytes *int64 `json:"safe_bytes,omitempty"`
	// CatalogXminAge is how many transactions ago the slot's catalog_xmin
	// was: for that long vacuum has removed nothing from the system
	// catalogues.
	CatalogXminAge *int64 `json:"catalog_xmin_age,omitempty"`
}

// NATSStatus is the state of the connection to NATS.
type NATSStatus struct {
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`
	Server    string    `json:"server,omitempty"` // without user and password
	// LastError stays after the trouble has passed.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	Reconnects  uint64    `json:"reconnects"`
}

// StreamStatus is the state of one stream.
type StreamStatus struct {
	Name string `json:"name"`
	// Fill is nil where it is not known.
	Fill      *FillStatus `json:"fill,omitempty"`
	Mechanism string      `json:"mechanism"` // chain, or lanes on a stream that others write to
	// MarkMet says whether all that the stream held at the start of the
	// session has been recognised among what the slot sends again.
	MarkMet bool `json:"mark_met"`
	// Limit says what this stream's settings keep the relay from promising;
	// empty where nothing does.
	Limit string `json:"limit,omitempty"`
	// Behind says that the relay goes on without this stream until it can be
	// had; its events are kept by the slot.
	Behind  bool   `json:"behind,omitempty"`
	State   string `json:"state"`
	Flowing bool   `json:"flowing"`          // events are stored as they come
	Reason  string `json:"reason,omitempty"` // what is waited for
	// Since is when State and Reason began, which alternate while one thing is
	// waited for; TroubleSince when events last ceased to flow, zero while they
	// do.
	Since        time.Time `json:"since,omitzero"`
	TroubleSince time.Time `json:"trouble_since,omitzero"`
	// InFlight are messages sent and not stored, Queued those not yet sent;
	// Bytes is the memory of both.
	InFlight int `json:"in_flight"`
	Queued   int `json:"queued"`
	Bytes    int `json:"bytes"`
	// LastSequence is that of the last message known to be stored; 0 when not
	// known yet. Position and StoredAt are of the last event that this session
	// stored.
	LastSequence        uint64    `json:"last_sequence"`
	Position            string    `json:"position,omitempty"`
	StoredAt            time.Time `json:"stored_at,omitzero"`
	UnacknowledgedSince time.Time `json:"unacknowledged_since,omitzero"`
	Attempts            int       `json:"attempts"` // resyncs since the last message was stored
	LastError           string    `json:"last_error,omitempty"`
	LastErrorAt         time.Time `json:"last_error_at,omitzero"`
}

// DeadLetters are the open dead letters of the source.
type DeadLetters struct {
	LookedAt time.Time      `json:"looked_at"`
	Open     int            `json:"open"`
	ByReason map[string]int `json:"by_reason"`
}

// Status says what the relay does now. It never waits for a server's answer;
// where a socket is full it can take as long as a write to it, five seconds at
// most.
func (r *Relay) Status() Status {
	state, reason, since := r.state.get()
	st := Status{
		At: r.now(), Latency: r.count.latency.read(),
		Source: r.cfg.Source, Slot: r.cfg.Slot, Publication: r.cfg.Publication,
		State: state, Reason: reason, Since: since, DeadLetters: r.count.letters.Load(),
		Retention: r.count.retained.read(),
	}
	if asked := r.count.asked.Load(); asked != nil {
		st.Gaps, st.Jobs = asked.gaps, asked.jobs
	}
	r.mu.Lock()
	s, conn := r.current, r.conn
	st.LastError, st.LastErrorAt = r.lastErr, r.lastEnd
	st.Counters = r.count.read() // of the same sessions as the streams
	r.count.mu.Lock()
	st.Streams = append([]StreamStatus{}, r.count.streams...)
	r.count.mu.Unlock()
	r.mu.Unlock()
	if conn != nil {
		n := conn.Status()
		st.NATS = NATSStatus{
			Connected: n.Connected, Since: n.Since, Server: n.Server, LastError: n.LastError, LastErrorAt: n.LastErrorAt,
			Reconnects: n.Reconnects,
		}
	}
	if s != nil {
		s.status(&st)
	}
	if len(st.Streams) == 0 {
		for _, name := range r.streams {
			idle := stream{Stream: r.cfg.stream(name)}
			st.Streams = append(st.Streams, StreamStatus{Name: name, Mechanism: idle.mechanism(), State: publish.StateIdle.String()})
		}
	}
	if at, some := r.count.ages.oldest(); some || state == StateRelaying {
		age := 0.0
		if some {
			age = max(0, st.At.Sub(at).Seconds()) // the database's clock may be ahead of ours
		}
		st.LagSeconds = &age
	}
	return st
}

// status adds what the session knows.
func (s *session) status(to *Status) {
	s.mu.Lock()
	s.r.count.ages.settle(s.ledger.Confirmed())
	s.mu.Unlock()
	if v := s.received.Load(); v > 0 {
		to.ReceivedLSN = lsn(&s.received).String()
	}
	confirmed := lsn(&s.confirmed)
	if confirmed > 0 {
		to.ConfirmedLSN = confirmed.String()
	}
	if seen := s.slotInfo.Load(); seen != nil && seen.Exists {
		to.SlotState = &SlotStatus{
			LookedAt: seen.at, Active: seen.Active, WALStatus: seen.WALStatus, RetainedBytes: seen.RetainedBytes,
			SafeBytes: optional(seen.SafeBytes), CatalogXminAge: optional(seen.CatalogXminAge),
		}
		to.LagBytes = optional(between(max(confirmed, seen.Confirmed), max(seen.ServerWALEnd, lsn(&s.received))))
	}
	if list := s.streamStatus(&to.Counters.Retries, &to.Counters.Answers); len(list) > 0 {
		to.Streams = list
	}
	if to.State != StateRelaying || to.SlotState == nil {
		return
	}
	since, still := s.progress.behind()
	age := 0.0
	if !since.IsZero() {
		age = max(0, to.At.Sub(since).Seconds())
	}
	to.BehindSeconds = &age
	if to.Withheld = s.withheldAt(to.At); to.Withheld != "" {
		to.WithheldSince = still
	} else if !still.IsZero() && to.At.Sub(still) >= stalledAfter {
		to.StalledSince = still
	}
}

// streamStatus gives the streams' states and adds their retries and answers.
func (s *session) streamStatus(retries *Retries, answers *Answers) []StreamStatus {
	var list []StreamStatus
	for _, st := range s.list() {
		p := st.pub.Status()
		retries.add(&p.Counters)
		answers.add(&p.Counters)
		one := StreamStatus{
			Name: st.name, Mechanism: st.mechanism(), MarkMet: st.met.Load(), Behind: st.behind.Load(),
			State: p.State.String(), Flowing: p.Healthy(), Reason: p.Reason, Since: p.Since, TroubleSince: p.TroubleSince,
			InFlight: p.InFlight, Queued: p.Queued, Bytes: p.Bytes, LastSequence: p.LastSeq, StoredAt: p.StoredAt,
			Fill: st.fill.Load(), UnacknowledgedSince: p.UnacknowledgedSince, Attempts: p.Attempts, LastError: p.LastError, LastErrorAt: p.LastErrorAt,
		}
		if !p.Position.IsZero() {
			one.Position = p.Position.String()
		}
		if limit := st.limit.Load(); limit != nil {
			one.Limit = *limit
		}
		list = append(list, one)
	}
	return list
}

// optional is nil for what is not known, which comes as a negative number.
func optional(v int64) *int64 {
	if v < 0 {
		return nil
	}
	return &v
}

func between(from, to envelope.LSN) int64 {
	if to <= from {
		return 0
	}
	return int64(to - from) //nolint:gosec // a server's WAL is shorter than 2^63 bytes
}
