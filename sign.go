package walrelay

import (
	"bytes"
	"fmt"

	"github.com/walrelay/walrelay/envelope"
)

// readSignKey reads the key that signs this session's messages.
func (s *session) readSignKey() error {
	if s.cfg.SignKey == nil {
		return nil
	}
	text, err := s.cfg.SignKey()
	if err != nil {
		return fmt.Errorf("read the key that signs messages: %w", err)
	}
	key, err := envelope.ParseSigningKey(text)
	if err != nil {
		return fmt.Errorf("read the key that signs messages: %w", err)
	}
	s.signKey, s.signKeyText = &key, text
	return nil
}

// signKeyReplaced says that there is another key now. One that cannot be read is
// none yet: who replaces a file may have written half of it.
func (s *session) signKeyReplaced() bool {
	if s.cfg.SignKey == nil {
		return false
	}
	text, err := s.cfg.SignKey()
	if err != nil || bytes.Equal(text, s.signKeyText) {
		return false
	}
	_, err = envelope.ParseSigningKey(text)
	return err == nil
}

// signReserve is what a signature adds to a message's headers at most.
func (s *session) signReserve() int {
	if s.signKey == nil {
		return 0
	}
	return envelope.SignatureReserve
}
