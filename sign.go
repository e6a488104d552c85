package walrelay

import (
	"bytes"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/slot"
)

// readSignKey reads the key that signs this session's messages.
func (s *session) readSignKey() error {
	if s.cfg.SignKey == nil {
		return nil
	}
	key, text, err := s.cfg.signingKey()
	if err != nil {
		return err
	}
	s.signKey, s.signKeyText = &key, text
	return nil
}

func (c *Config) signingKey() (key envelope.Key, text []byte, err error) {
	if text, err = c.SignKey(); err == nil {
		key, err = envelope.ParseSigningKey(text)
	}
	if err != nil {
		return key, nil, &slot.MisfitError{
			Object: "the key that signs messages", Problem: "cannot be used: " + err.Error(),
			Fix: "walrelay sign-key > FILE, and --sign-key-file FILE; consumers need its line or its public half first",
		}
	}
	return key, text, nil
}

// lookAtSigning says which key signs.
func (d *brokerDoctor) lookAtSigning() {
	const name = "signing key"
	if d.cfg.SignKey == nil {
		return
	}
	key, _, err := d.cfg.signingKey()
	if err != nil {
		d.refuse(VerdictFail, name, "none", err)
		return
	}
	d.ok(name, key.String(), "each message is signed, for consumers that take no other")
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
