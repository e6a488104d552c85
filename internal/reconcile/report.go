package reconcile

import "time"

// A Report is what [Verify] found. Counts are exact; of findings the first ones
// are shown.
type Report struct {
	Source string `json:"source"`
	// SnapshotAt is the time of the tables' snapshot by the database's clock,
	// and LSN the end of its write-ahead log right after it.
	SnapshotAt time.Time `json:"snapshot_at"`
	LSN        string    `json:"lsn"`
	Since      time.Time `json:"since,omitzero"`
	// Proof says by what a row counts as delivered: see the constants.
	Proof string `json:"proof"`
	// Bodies says whether bodies were compared byte for byte; else their
	// lengths were.
	Bodies bool `json:"bodies"`
	// JudgedSince is when an event must have been written for a message
	// without a row to count as unknown; zero: none could be judged.
	JudgedSince time.Time `json:"judged_since,omitzero"`

	Tables  []TableReport  `json:"tables"`
	Streams []StreamReport `json:"streams"`

	// Missing are delivered rows that are in no stream and no dead letter.
	Missing Findings `json:"missing"`
	// Unknown are messages of the source without a row, where the row would
	// have to be there still.
	Unknown Findings `json:"unknown"`
	// StoredAgain are messages beyond the first of their event.
	StoredAgain Findings `json:"stored_again"`
	// OutOfOrder are live messages behind one of a later position of their
	// aggregate.
	OutOfOrder Findings `json:"out_of_order"`
	// Different are messages that are not what the router makes of their row.
	Different Findings `json:"different"`

	// What follows is no finding.

	// OnTheirWay are rows that are nowhere yet and of which nothing proves that
	// they were delivered.
	OnTheirWay uint64 `json:"on_their_way"`
	// DeadLettered are rows that are in no stream but among the dead letters.
	DeadLettered uint64 `json:"dead_lettered"`
	// Skipped are rows whose route says so; Unrouted those without a route that
	// are nowhere.
	Skipped  uint64 `json:"skipped"`
	Unrouted uint64 `json:"unrouted"`
	// NotVerifiable are delivered rows that are in no stream and may be among
	// what the stream has removed since.
	NotVerifiable uint64 `json:"not_verifiable"`
	// NotJudged are messages without a row that are older than JudgedSince, or
	// newer than the snapshot.
	NotJudged uint64 `json:"not_judged"`
	// Replayed are messages with a wire id that was forced on purpose.
	Replayed uint64 `json:"replayed"`
	// NotCompared are messages whose row the present routes do not publish.
	NotCompared uint64 `json:"not_compared"`

	// Notes are what a reader of the counts should know.
	Notes []string `json:"notes,omitempty"`
}

// The values of Report.Proof.
const (
	// ProofConfirmed says that the slot's confirmed LSN passed the snapshot's
	// before the streams were read: every row of the snapshot was delivered.
	ProofConfirmed = "confirmed"
	// ProofSnapshot says that it did not, and that the newest proven snapshot
	// tells which rows were delivered.
	ProofSnapshot = "proven snapshot"
	// ProofNone says that neither is there: a row that is nowhere may be on its
	// way.
	ProofNone = "none"
)

// A TableReport is about one outbox table.
type TableReport struct {
	Name string `json:"name"`
	Rows uint64 `json:"rows"`
}

// A StreamReport is about one stream.
type StreamReport struct {
	Name     string `json:"name"`
	FirstSeq uint64 `json:"first_seq"`
	LastSeq  uint64 `json:"last_seq"`
	// Read are the messages that were read, of which Ours are the source's.
	Read uint64 `json:"read"`
	Ours uint64 `json:"ours"`
	// NotLive are healed, replayed and the like, Late those marked so; they
	// are not judged by order.
	NotLive uint64 `json:"not_live"`
	Late    uint64 `json:"late"`
	// Removed is how many messages are there no more, and RemovedUntil when
	// the newest of them was stored at the latest.
	Removed      uint64    `json:"removed"`
	RemovedUntil time.Time `json:"removed_until,omitzero"`
}

// Findings are all findings of one kind.
type Findings struct {
	Count uint64    `json:"count"`
	Shown []Finding `json:"shown,omitempty"`
}

// A Finding is one row or message that is not as it has to be.
type Finding struct {
	Event     string `json:"event,omitempty"`
	Table     string `json:"table,omitempty"` // of a row
	Aggregate string `json:"aggregate,omitempty"`
	EventType string `json:"event_type,omitempty"`
	CreatedAt string `json:"created_at,omitempty"`
	Stream    string `json:"stream,omitempty"`
	Sequence  uint64 `json:"sequence,omitempty"`
	Position  string `json:"position,omitempty"`
	// Detail says what is not as it has to be; never a payload or the value of
	// a header.
	Detail string `json:"detail,omitempty"`
}

// Found says whether anything is not as it has to be.
func (r *Report) Found() bool {
	return r.Missing.Count+r.Unknown.Count+r.StoredAgain.Count+r.OutOfOrder.Count+r.Different.Count > 0
}
