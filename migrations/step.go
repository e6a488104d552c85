package migrations

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// A Step is one fact about the work, reported as it happens.
type Step struct {
	// Object names what the step is about, such as table walrelay.outbox.
	Object string
	// Did is what was done: Created, Completed, Found or Waiting.
	Did Did
	// Detail says more, for people; often empty.
	Detail string
}

// Did is what became of an object.
type Did string

const (
	// Created means that the object was not there.
	Created Did = "created"
	// Completed means that the object was there and lacked something.
	Completed Did = "completed"
	// Found means that the object was there as it must be.
	Found Did = "found"
	// Waiting means that somebody else's transaction is in the way.
	Waiting Did = "waiting"
)

// A PrereqError says what is missing on the server, and the exact statement or
// setting that mends it. Nothing after the object was done.
type PrereqError struct {
	// Object names what could not be made or used.
	Object string
	// Problem says what it has and what is needed.
	Problem string
	// Fix is what to run or set, for one who may.
	Fix string
	// Err is the server's answer, nil where we looked ourselves.
	Err error
}

// Error gives object, problem and fix.
func (e *PrereqError) Error() string {
	s := e.Object + ": " + e.Problem
	if e.Err != nil {
		s += " (" + e.Err.Error() + ")"
	}
	if strings.Contains(e.Fix, "\n") {
		return s + ". Run:\n" + strings.TrimRight(e.Fix, "\n")
	}
	return s + ". Run: " + e.Fix
}

// Unwrap gives the server's answer.
func (e *PrereqError) Unwrap() error { return e.Err }

const (
	insufficientPrivilege = "42501"
	lockNotAvailable      = "55P03"
	queryCanceled         = "57014"
	limitExceeded         = "53400"
	duplicateObject       = "42710"
)

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// refused turns the server's refusals into what an operator can act on; other
// errors are wrapped with the object.
func refused(err error, object, user, fix string) error {
	switch sqlState(err) {
	case insufficientPrivilege:
		return &PrereqError{
			Object:  object,
			Problem: fmt.Sprintf("role %q may not do this; a role that may (the owner of database and table, or a superuser) must do it, then migrate goes on from here", user),
			Fix:     fix, Err: err,
		}
	case lockNotAvailable:
		return fmt.Errorf("%s: an open transaction holds the table for longer than the lock timeout; end it (see pg_stat_activity) and migrate again: %w", object, err)
	default:
		return fmt.Errorf("create or check %s: %w", object, err)
	}
}
