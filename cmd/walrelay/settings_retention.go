package main

import (
	"errors"
	"strings"
	"time"

	"github.com/walrelay/walrelay"
)

// retaining is the flag of every verb that needs to know how long rows are kept.
type retaining struct {
	Retention keeping `help:"How long a row of an outbox table is kept once it is proven to be stored; off (or 0) keeps rows for ever." placeholder:"DURATION" default:"168h"`
}

// keeping is a retention: a duration, or off.
type keeping time.Duration

// UnmarshalText reads a duration, or off.
func (k *keeping) UnmarshalText(text []byte) error {
	if strings.EqualFold(string(text), "off") {
		*k = keeping(walrelay.KeepForever)
		return nil
	}
	d, err := time.ParseDuration(string(text))
	switch {
	case err != nil:
		return err
	case d < 0:
		return errors.New("must not be negative")
	case d == 0:
		d = walrelay.KeepForever
	}
	*k = keeping(d)
	return nil
}

// String gives off or the duration.
func (k keeping) String() string {
	if time.Duration(k) < 0 {
		return "off"
	}
	return time.Duration(k).String()
}

// forVerify is the age up to which a row is to be there: for ever where none is
// deleted.
func (k keeping) forVerify() time.Duration {
	const ever = 200 * 365 * 24 * time.Hour
	if k < 0 {
		return ever
	}
	return time.Duration(k)
}
