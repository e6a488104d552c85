package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/walrelay/walrelay"
)

// readSecret gives what a file holds without the newline at its end, which an
// editor or echo put there.
func readSecret(path string) (string, error) {
	b, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return "", err
	}
	s := strings.TrimSuffix(string(b), "\n")
	return strings.TrimSuffix(s, "\r"), nil
}

// readable is nil if the file can be read now. Field names the setting.
func readable(field, path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path) //nolint:gosec // the operator names the file
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		return nil
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return &walrelay.ConfigError{Field: field, Value: path, Reason: fmt.Sprintf("cannot be read: %v; name a file that this user may read", err)}
}
