// Package publish stores messages in a JetStream stream in order, with many in
// flight.
//
// It owns the chain: each message names the sequence that the stream must have
// before it (Nats-Expected-Last-Sequence), so that the server refuses what
// would leave a hole, and what is stored of the relay's messages stays a
// gapless prefix of what was sent. After the first failure of any kind the
// [Stream] stops sending, lets what is in flight settle, reads the stream's end
// from its leader and goes on with the first message that is not stored.
//
// What decides (ring arithmetic, the meaning of an acknowledgement, the
// judgement of a resync) is pure; [Stream.Run], [Conn] and their callbacks are
// the thin shell around it. The client's own retries and its reconnect buffer
// are off: both reorder. Nats-Expected-Last-Msg-Id is never sent: one mismatch
// has made replicated streams unusable.
package publish
