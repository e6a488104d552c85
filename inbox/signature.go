package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// Keys are read again at the start of each session, at most this long after
// that, and when a message names one that is not known.
const (
	keysLast       = 10 * time.Second
	keysLeastPause = time.Second
)

// signatures are the keys that messages must be signed with.
type signatures struct {
	read func() ([]byte, error) // nil: messages need no signature
	log  *slog.Logger

	mu   sync.Mutex
	keys []envelope.Key
	at   time.Time // when they were read, or could not be
}

// An untrustedError says that a message is not what the relay has signed. It may
// say anything of itself.
type untrustedError struct{ err error }

func (e *untrustedError) Error() string { return e.err.Error() }
func (e *untrustedError) Unwrap() error { return e.err }

// reason is that of the dead letter.
func (e *untrustedError) reason() string {
	switch {
	case errors.Is(e.err, envelope.ErrUnsigned):
		return reasonUnsigned
	case errors.Is(e.err, envelope.ErrUnknownKey):
		return reasonUnknownKey
	}
	return reasonForged
}

// load reads the keys.
func (s *signatures) load() error {
	if s.read == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loadLocked()
}

func (s *signatures) loadLocked() error {
	s.at = time.Now()
	text, err := s.read()
	if err != nil {
		return fmt.Errorf("read the keys that messages must be signed with: %w", err)
	}
	keys, err := envelope.ParseKeys(text)
	if err != nil {
		return fmt.Errorf("read the keys that messages must be signed with: %w", err)
	}
	s.keys = keys
	return nil
}

// current gives the keys, read again where they are older than a time. Those
// that cannot be read again stay.
func (s *signatures) current(after time.Duration) ([]envelope.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) < after && s.keys != nil {
		return s.keys, nil
	}
	err := s.loadLocked()
	if err != nil && s.keys != nil {
		s.log.Warn("keys of signatures cannot be read again, the old ones stay", slog.Any("err", err))
		err = nil
	}
	return s.keys, err
}

// verify is nil, an [*untrustedError], or why there are no keys.
func (s *signatures) verify(m *Message) error {
	if s.read == nil {
		return nil
	}
	keys, err := s.current(keysLast)
	if err != nil {
		return err
	}
	err = envelope.Verify(keys, m.Subject, m.Headers, m.Raw)
	if errors.Is(err, envelope.ErrUnknownKey) {
		if keys, err = s.current(keysLeastPause); err == nil {
			err = envelope.Verify(keys, m.Subject, m.Headers, m.Raw)
		}
	}
	if err != nil {
		return &untrustedError{err}
	}
	return nil
}

// understand reads a message's headers, and refuses one that is not to be
// trusted: what it says of itself must not touch another event's dead letter,
// receipt or order, so it is known by its place alone, and an aggregate of its own.
func (c *Consumer) understand(m *Message) error {
	foreign := m.read(c.cfg.Complete)
	if err := c.signatures.verify(m); err != nil {
		m.ID, m.AggregateType, m.AggregateID = m.place(), "", m.place()
		return err
	}
	return foreign
}
