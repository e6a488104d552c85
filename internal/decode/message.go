package decode

import (
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// A Kind tells what a [Message] says. Zero is no kind.
type Kind uint8

// The kinds of message in protocol version 1.
const (
	KindBegin    Kind = iota + 1 // a transaction that has committed follows
	KindCommit                   // its end
	KindRelation                 // the columns of a table, before its first row and again after a change
	KindInsert                   // a new row
	KindUpdate                   // a changed row
	KindDelete                   // a row that is gone
	KindTruncate                 // tables that were emptied
	KindType                     // the name of a type that is not built in
	KindOrigin                   // the server on which the transaction was made
	KindMessage                  // what pg_logical_emit_message wrote
)

// String gives the kind in lower case, such as insert.
func (k Kind) String() string {
	switch k {
	case KindBegin:
		return "begin"
	case KindCommit:
		return "commit"
	case KindRelation:
		return "relation"
	case KindInsert:
		return "insert"
	case KindUpdate:
		return "update"
	case KindDelete:
		return "delete"
	case KindTruncate:
		return "truncate"
	case KindType:
		return "type"
	case KindOrigin:
		return "origin"
	case KindMessage:
		return "logical"
	}
	return "unknown"
}

// A Message is one message of pgoutput. [Decoder.Decode] sets the fields that
// belong to its kind and clears the others. Reuse one Message for all messages
// of a connection: the memory of its slices is used again.
type Message struct {
	Kind Kind

	// CommitLSN is the start of the transaction's commit record, and with
	// it the transaction's identity and place in the order. Begin, Commit.
	CommitLSN envelope.LSN
	// EndLSN is the end of the commit record: what may be confirmed when
	// every row of the transaction is stored. Commit.
	EndLSN envelope.LSN
	// CommitTime is when the transaction committed, by the server's clock,
	// in UTC to the microsecond. Begin, Commit.
	CommitTime time.Time
	// XID is the transaction's id, without its epoch. Begin.
	XID uint32

	// Relation describes the table as of this row: it is what the relation
	// message before the row said. Relation, Insert, Update, Delete.
	Relation *Relation
	// Relations are those of the emptied tables that are known. A table that
	// no relation message has described yet is left out. Truncate.
	Relations []*Relation
	// Tuple is the new row, one value for each of Relation.Columns. Insert,
	// Update. (The old row of an update or delete is checked and dropped.)
	Tuple Tuple

	// Prefix and Content are what was given to pg_logical_emit_message.
	// Message.
	Prefix  string
	Content []byte
	// Transactional says that the message belongs to the transaction around
	// it; one that does not comes outside of any. Message.
	Transactional bool

	// Cascade and RestartIdentity are the options of TRUNCATE. Truncate.
	Cascade         bool
	RestartIdentity bool

	// OriginName names the replication origin. Origin.
	OriginName string
}

// reset makes m an empty message of that kind that keeps its memory, but none of
// the values in it: they would hold on to the bytes of the message before.
func (m *Message) reset(kind Kind) {
	clear(m.Relations)
	clear(m.Tuple)
	*m = Message{Kind: kind, Relations: m.Relations[:0], Tuple: m.Tuple[:0]}
}
