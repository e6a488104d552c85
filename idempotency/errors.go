package idempotency

import (
	"errors"
	"fmt"
	"time"
)

// What a caller can act on. They are matched with errors.Is.
var (
	// ErrInProgress says that another caller holds the lease of the key. Try
	// again later: an [*InProgressError] says when the lease ends.
	ErrInProgress = errors.New("the call is in progress")
	// ErrUncertain says that nobody knows whether the call took effect, and
	// that nothing can find out by itself. It is listed by [Store.Uncertain]
	// and ended by [Store.Resolve]; repeating Do returns the same.
	ErrUncertain = errors.New("the outcome of the call is not known")
	// ErrLeaseLost says that another caller took over before this one was
	// done; its outcome is not stored. Repeat Do to get what is.
	ErrLeaseLost = errors.New("the lease was lost to another caller")
	// ErrMismatch says that the key, or the id, was used for another request.
	ErrMismatch = errors.New("the key was used for another request")
	// ErrNotStored says that the call was made and its outcome is known to
	// the caller, but the database could not be told. [Result.Value] has it.
	ErrNotStored = errors.New("the outcome could not be stored")
)

// An InProgressError is ErrInProgress with its time.
type InProgressError struct {
	// Key is in progress.
	Key string
	// Remaining is how long the lease of its holder still runs.
	Remaining time.Duration
}

func (e *InProgressError) Error() string {
	return fmt.Sprintf("key %q: %v; its lease ends in %s", e.Key, ErrInProgress, e.Remaining.Round(time.Millisecond))
}

// Is makes errors.Is match ErrInProgress.
func (e *InProgressError) Is(target error) bool { return target == ErrInProgress }

// A FailedError is a final failure that was stored before: the call was not
// made again.
type FailedError struct {
	// Key failed.
	Key string
	// Reason is the text of the error that was given to [Final].
	Reason string
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("key %q: the call has failed for good: %s", e.Key, e.Reason)
}

// Final marks an error of a callback as the call's answer: it is stored, and
// every repeat returns it as a [*FailedError] without calling again. A nil
// error stays nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &finalError{err}
}

// NotDone marks an error of a callback as one that certainly had no effect: the
// key is free at once, and the next Do calls again. A nil error stays nil.
func NotDone(err error) error {
	if err == nil {
		return nil
	}
	return &notDoneError{err}
}

type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

type notDoneError struct{ err error }

func (e *notDoneError) Error() string { return e.err.Error() }
func (e *notDoneError) Unwrap() error { return e.err }
