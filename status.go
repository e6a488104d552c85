package walrelay

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
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
	StalledSince time.Time      `json:"stalled_since,omitzero"`
	Latency      LatencyStatus  `json:"latency"`
	SlotState    *SlotStatus    `json:"slot_state,omitempty"`
	NATS         NATSStatus     `json:"nats"`
	Streams      []StreamStatus `json:"streams"`
	DeadLetters  *DeadLetters   `json:"dead_letters,omitempty"`
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

// NotReady says why the relay delivers nothing now; empty when it does, or
// would if there were events. A standby is not ready: it delivers nothing until
// the slot is released.
func (s *Status) NotReady() string {
	if s.State != StateRelaying {
		why := reasoned(string(s.State), s.Reason)
		if obstacle := s.obstacle(); obstacle != "" {
			why += "; " + obstacle
		}
		return why
	}
	for i := range s.Streams {
		if st := &s.Streams[i]; !st.Flowing {
			return fmt.Sprintf("stream %q: %s", st.Name, reasoned(st.State, st.Reason))
		}
	}
	if !s.StalledSince.IsZero() {
		return fmt.Sprintf("stalled: nothing was received, stored or confirmed for %v, though there is something to do; "+
			"look at what the walsender of slot %q does in pg_stat_activity", s.At.Sub(s.StalledSince).Round(time.Second), s.Slot)
	}
	return ""
}

// A Phase says in a word what an operator is to make of a status.
type Phase string

// Five phases are the states of those names. PhaseWaiting is that state too, and
// a stream that waits while the others flow.
const (
	PhaseStarting Phase = "starting"
	PhaseStandby  Phase = "standby"
	PhaseHalted   Phase = "halted"
	PhaseStopping Phase = "stopping"
	PhaseStopped  Phase = "stopped"
	PhaseWaiting  Phase = "waiting"
	// PhaseStalled says that nothing moves, and that the relay does not know why.
	PhaseStalled Phase = "stalled"
	// PhaseDelivering says that events are stored, PhaseIdle that there are none
	// and that everything is in place. Only these two are ready.
	PhaseDelivering Phase = "delivering"
	PhaseIdle       Phase = "idle"
)

// idleAfter is how long after its last event a relay with nothing to do is
// idle.
const idleAfter = 10 * time.Second

// Phase gives it.
func (s *Status) Phase() Phase {
	if s.State != StateRelaying {
		return Phase(s.State)
	}
	newest, busy := time.Time{}, s.LagSeconds != nil && *s.LagSeconds > 0
	for i := range s.Streams {
		st := &s.Streams[i]
		if !st.Flowing {
			return PhaseWaiting
		}
		busy = busy || st.InFlight > 0 || st.Queued > 0
		if st.StoredAt.After(newest) {
			newest = st.StoredAt
		}
	}
	switch {
	case !s.StalledSince.IsZero():
		return PhaseStalled
	case busy || s.At.Sub(newest) < idleAfter:
		return PhaseDelivering
	}
	return PhaseIdle
}

// obstacle is what NATS has to do with it: a relay that waits for the end of its
// streams does not know why it has to.
func (s *Status) obstacle() string {
	if s.State != StateWaiting {
		return ""
	}
	for i := range s.Streams {
		if st := &s.Streams[i]; st.Reason != "" {
			return fmt.Sprintf("stream %q: %s", st.Name, st.Reason)
		}
	}
	if !s.NATS.Connected {
		return reasoned("no connection to NATS", s.NATS.LastError)
	}
	return ""
}

func reasoned(state, reason string) string {
	if reason == "" {
		return state
	}
	return state + ": " + reason
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
	Behind  bool      `json:"behind,omitempty"`
	State   string    `json:"state"`
	Flowing bool      `json:"flowing"`          // events are stored as they come
	Reason  string    `json:"reason,omitempty"` // what is waited for
	Since   time.Time `json:"since,omitzero"`
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
	updates, deletes, truncates, sessions, left, healed, storedBytes atomic.Uint64

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
		StoredBytes: c.storedBytes.Load(), Healed: c.healed.Load(), Left: c.left.Load(), Passed: c.passed.Load(), Refused: c.refused.Load(), Skipped: c.skipped.Load(), NotOutbox: c.notOutbox.Load(),
		Updates: c.updates.Load(), Deletes: c.deletes.Load(), Truncates: c.truncates.Load(), Sessions: c.sessions.Load(),
	}
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
	since, stalled := s.progress.behind(to.At)
	age := 0.0
	if !since.IsZero() {
		age = max(0, to.At.Sub(since).Seconds())
	}
	to.BehindSeconds, to.StalledSince = &age, stalled
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
			State: p.State.String(), Flowing: p.Healthy(), Reason: p.Reason, Since: p.Since,
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

// ages knows when the oldest transaction was committed that is not settled. It
// outlives sessions: what one has not settled is still owed.
//
// Invariant: the spans lie in the order of their LSNs, and each covers all
// transactions that were received from its first one to its last.
type ages struct {
	mu    sync.Mutex
	spans []ageSpan
}

// ageSpan is one second's worth of transactions, which bounds their number.
type ageSpan struct {
	first, last envelope.LSN // commit LSNs
	at          time.Time    // commit time of the first
}

const ageSpanLength = time.Second

// began notes a transaction and drops what lies below safe.
func (a *ages) began(safe, commit envelope.LSN, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(safe)
	a.received(commit, at)
}

// received notes a transaction when it begins.
func (a *ages) received(commit envelope.LSN, at time.Time) {
	if n := len(a.spans); n > 0 {
		switch {
		case commit < a.spans[0].first:
			a.spans = a.spans[:0] // all of it is sent again
		case commit <= a.spans[n-1].last:
			return
		case at.Sub(a.spans[n-1].at) < ageSpanLength:
			a.spans[n-1].last = commit
			return
		}
	}
	a.spans = append(a.spans, ageSpan{first: commit, last: commit, at: at})
}

// settle drops what lies below an LSN that may be confirmed.
func (a *ages) settle(safe envelope.LSN) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(safe)
}

func (a *ages) drop(safe envelope.LSN) {
	n := 0
	for n < len(a.spans) && a.spans[n].last < safe {
		n++
	}
	if n > 0 {
		a.spans = append(a.spans[:0], a.spans[n:]...)
	}
}

// oldest is the commit time of the oldest transaction that is not settled.
func (a *ages) oldest() (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.spans) == 0 {
		return time.Time{}, false
	}
	return a.spans[0].at, true
}
