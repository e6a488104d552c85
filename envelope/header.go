package envelope

import "strings"

// Names of the headers that a message of walrelay can carry.
const (
	// HeaderMsgID is JetStream's header for duplicates: the outbox id, see
	// [MsgID].
	HeaderMsgID = "Nats-Msg-Id"
	// HeaderEventID is the event id where it differs from HeaderMsgID,
	// which is so only after a replay with a forced new wire id.
	HeaderEventID = "Walrelay-Event-Id"
	// HeaderExpectedStream names the stream that must store the message.
	HeaderExpectedStream = "Nats-Expected-Stream"
	// HeaderExpectedLastSeq is the stream's last sequence before the
	// message: the chain's fence.
	HeaderExpectedLastSeq = "Nats-Expected-Last-Sequence"
	// HeaderBatchID, HeaderBatchSequence and HeaderBatchCommit are JetStream's
	// for an atomic batch: its name, the message's place in it from 1, and 1 on
	// the last. They stay on what is stored.
	HeaderBatchID       = "Nats-Batch-Id"
	HeaderBatchSequence = "Nats-Batch-Sequence"
	HeaderBatchCommit   = "Nats-Batch-Commit"
	// HeaderSource names the relay's source.
	HeaderSource = "Walrelay-Source"
	// HeaderPosition is the event's [Position].
	HeaderPosition = "Walrelay-Position"
	// HeaderCommittedAt is the time of the commit in RFC 3339, UTC.
	HeaderCommittedAt = "Walrelay-Committed-At"
	// HeaderOrigin is <kind>/<job> on a message that is not live.
	HeaderOrigin = "Walrelay-Origin"
	// HeaderMark is, on a message that is not live, the position of the
	// last live event sent to the stream before it.
	HeaderMark = "Walrelay-Mark"
	// HeaderLate is 1 on an event that was found after newer ones of its
	// aggregate were stored.
	HeaderLate = "Walrelay-Late"
	// HeaderAggregateType is the row's aggregate type.
	HeaderAggregateType = "Walrelay-Aggregate-Type"
	// HeaderAggregateID is the row's aggregate id.
	HeaderAggregateID = "Walrelay-Aggregate-Id"
	// HeaderEventType is the row's event type.
	HeaderEventType = "Walrelay-Event-Type"
	// HeaderCreatedAt is the row's created_at as PostgreSQL prints it.
	HeaderCreatedAt = "Walrelay-Created-At"
	// HeaderPayload is "null" where the payload is SQL's null, to tell it
	// from an empty one.
	HeaderPayload = "Walrelay-Payload"
	// HeaderSignature is the signature of a message, see [Verify].
	HeaderSignature = "Walrelay-Signature"
)

// A Header is one name and value of a message, in the order they are written.
type Header struct{ Name, Value string }

// Reserved says whether a row must not set a header of that name: JetStream
// takes every Nats-* header as an instruction (a rollup deletes history), and
// Walrelay-* is ours. Case does not matter. Status and Description are how the
// client library writes NATS' own status lines.
func Reserved(name string) bool {
	return hasPrefixFold(name, "Nats-") || hasPrefixFold(name, "Walrelay-") ||
		strings.EqualFold(name, "Status") || strings.EqualFold(name, "Description")
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
