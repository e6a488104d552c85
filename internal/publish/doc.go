// Package publish stores messages in a JetStream stream in order, with many in
// flight.
//
// It owns two ways of doing so. The chain ([Stream]) is for a stream that only
// the relay writes to: each message names the sequence that the stream must have
// before it (Nats-Expected-Last-Sequence), so that the server refuses what
// would leave a hole, and what is stored of the relay's messages stays a
// gapless prefix of what was sent. After the first failure of any kind the
// [Stream] stops sending, lets what is in flight settle, reads the stream's end
// from its leader and goes on with the first message that is not stored.
//
// Lanes ([Lanes]) are for a stream that others write to as well: of the messages
// of one aggregate at most one is in flight, so that a second attempt cannot be
// overtaken. Attempts without an answer are repeated with the same id as long as
// the stream surely remembers it, and looked for in the stream after that.
//
// What decides (ring arithmetic, the meaning of an acknowledgement, the
// judgement of a resync) is pure; [Stream.Run], [Conn] and their callbacks are
// the thin shell around it. The client's own retries and its reconnect buffer
// are off: both reorder. Nats-Expected-Last-Msg-Id is never sent: one mismatch
// has made replicated streams unusable.
package publish
