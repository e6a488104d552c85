package inbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNoReceipts says that the consumer's database lacks walrelay's
	// tables. `walrelay migrate --consumer` makes them.
	ErrNoReceipts = errors.New("walrelay's tables for consumers are missing")
	// ErrHandlerEnds says that a handler tried to commit or roll back the
	// transaction that it was given. Run ends it, with receipt and effect
	// together. A handler that wants to undo a part of its work opens a
	// savepoint (tx.Begin).
	ErrHandlerEnds = errors.New("a handler must not end the transaction it was given: return nil to commit, an error to roll back")
)

// Permanent marks err as one that every further attempt would meet again: the
// event goes into the dead letters at once. A nil err stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

// RetryAfter asks for the next attempt after d, in place of the backoff. The
// attempt counts. A nil err stays nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryError{err, max(d, 0)}
}

type retryError struct {
	error
	after time.Duration
}

func (e *retryError) Unwrap() error { return e.error }

// A PanicError is the error of a handler that panicked.
type PanicError struct {
	// Value is what was given to panic.
	Value any
	// Stack is the handler's stack.
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// unreadableError is a message that cannot be an event of its handler's type.
type unreadableError struct{ error }

func (e *unreadableError) Unwrap() error { return e.error }

// unknownError is an event whose type has no handler.
type unknownError struct{ eventType string }

func (e *unknownError) Error() string {
	return fmt.Sprintf("no handler for events of type %q", e.eventType)
}

// class says what is to be done about an error.
type class int

const (
	// classHandler counts an attempt and tries again later.
	classHandler class = iota
	// classPermanent goes into the dead letters.
	classPermanent
	// classConflict is PostgreSQL asking for the transaction again.
	classConflict
	// classTrouble is a database that is not there. It says nothing about
	// the event.
	classTrouble
	// classStopped is our own context's end.
	classStopped
)

// classify judges the error of a whole try: handler, receipt or commit. An
// error that is not known to be the database's counts as the handler's.
func classify(ctx context.Context, err error) class {
	// The server's verdict comes first: a handler that wraps an error of
	// the server as permanent has misread it.
	var pgErr *pgconn.PgError
	hasState := errors.As(err, &pgErr)
	state := ""
	if hasState {
		state = pgErr.Code
	} else if s, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		state, hasState = s.SQLState(), true
	}
	switch {
	case ctx.Err() != nil:
		return classStopped
	case state == "40001" || state == "40P01":
		return classConflict
	case hasState && troubled(state):
		return classTrouble
	}
	if errors.As(err, new(*permanentError)) || errors.As(err, new(*unreadableError)) {
		return classPermanent
	}
	if hasState {
		return classHandler
	}
	if isTrouble(err) {
		return classTrouble
	}
	return classHandler
}

func hasState(err error) bool {
	return errors.As(err, new(interface {
		error
		SQLState() string
	}))
}

// lockWait says whether a statement gave up waiting: for its lock, or at all.
func lockWait(err error) bool {
	s, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	return ok && (s.SQLState() == "55P03" || s.SQLState() == "57014")
}

// troubled says whether a SQLSTATE is about the server and not the statement:
// connections (08), resources (53), an operator's hand (57P), a broken system
// (58), and a server that has become read-only.
func troubled(state string) bool {
	return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "53") ||
		strings.HasPrefix(state, "57P") || strings.HasPrefix(state, "58") || state == "25006"
}

// dbError marks an error that came out of our own use of the database, so that
// a handler's failed call of somebody else is not taken for it.
type dbError struct{ error }

func (e *dbError) Unwrap() error { return e.error }

func isTrouble(err error) bool {
	if errors.As(err, new(*dbError)) {
		return true
	}
	// A handler's statement that meets a closed connection.
	return errors.As(err, new(*pgconn.ConnectError)) || pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, sql.ErrConnDone) || strings.HasSuffix(err.Error(), "conn closed")
}

// lost says whether an error of a commit leaves open whether it happened: all
// but the server's own refusal.
func lost(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return false
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return troubled(pgErr.Code)
	}
	if errors.Is(err, sql.ErrTxDone) || errors.Is(err, pgx.ErrTxClosed) {
		return false // the handler's doing
	}
	return !hasState(err)
}
