package publish

import (
	"slices"

	"github.com/walrelay/walrelay/envelope"
)

// signed gives m with its signature, or m itself where messages are not signed.
// All headers but those of the server must be there.
func (s *publisher) signed(m *Message) *Message {
	if s.cfg.SignKey == nil {
		return m
	}
	with := *m
	with.Headers = append(slices.Clip(m.Headers), envelope.Header{
		Name: envelope.HeaderSignature, Value: s.cfg.SignKey.Sign(m.Subject, m.MsgID, m.Headers, m.Body),
	})
	return &with
}
