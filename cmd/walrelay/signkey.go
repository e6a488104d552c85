package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/envelope"
)

// signing is the flag of every verb that may publish.
type signing struct {
	SignKeyFile string `help:"File with the key that signs each message in the header Walrelay-Signature, see walrelay sign-key (default: messages are not signed); it is read again when it was replaced." placeholder:"FILE"`
}

func (s *signing) into(cfg *walrelay.Config) {
	if s.SignKeyFile != "" {
		cfg.SignKey = func() ([]byte, error) { return os.ReadFile(s.SignKeyFile) }
	}
}

// checkSigning finds what is wrong with the file.
func (s *signing) checkSigning() error {
	if err := readable("SignKeyFile", s.SignKeyFile); err != nil || s.SignKeyFile == "" {
		return err
	}
	text, err := os.ReadFile(s.SignKeyFile)
	if err == nil {
		_, err = envelope.ParseSigningKey(text)
	}
	if err != nil {
		return &walrelay.ConfigError{Field: "SignKeyFile", Value: s.SignKeyFile, Reason: err.Error()}
	}
	return nil
}

type signKeyCmd struct {
	ID     string `name:"key-id" help:"Name of the key; each message names the key that signed it." default:"k1" placeholder:"NAME"`
	Kind   string `help:"ed25519: those who verify cannot sign; hmac-sha256: one secret for both sides." enum:"ed25519,hmac-sha256" default:"ed25519"`
	Public string `help:"Show instead the line of those who verify, for the key in this file." placeholder:"FILE"`
}

// Run prints a new key as a line of a key file, or the public half of one.
func (c *signKeyCmd) Run(e *env) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(e.stdout, key.Line())
	return err
}

func (c *signKeyCmd) key() (envelope.Key, error) {
	if c.Public == "" {
		key, err := envelope.NewKey(c.Kind, c.ID)
		if err != nil {
			return key, &usageError{&walrelay.ConfigError{Field: "KeyID", Value: c.ID, Reason: err.Error()}}
		}
		return key, nil
	}
	text, err := os.ReadFile(c.Public)
	if err != nil {
		return envelope.Key{}, fmt.Errorf("read the key: %w", err)
	}
	key, err := envelope.ParseSigningKey(text)
	if err != nil {
		return key, fmt.Errorf("read the key in %s: %w", c.Public, err)
	}
	if key.Public().Line() == key.Line() {
		return key, errors.New("a key of kind hmac-sha256 has no public half: those who verify need the key itself")
	}
	return key.Public(), nil
}
