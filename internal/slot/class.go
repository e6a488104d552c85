package slot

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// A Class says what an error of PostgreSQL asks of the relay.
type Class int

const (
	// Transient passes by itself: the connection, a restart, recovery,
	// anything not known. The relay tries again.
	Transient Class = iota
	// Shutdown says that the server waits for its clients to leave.
	Shutdown
	// SlotInUse says that another process holds the slot; wait for it.
	SlotInUse
	// SlotMissing says that there is no slot of that name.
	SlotMissing
	// SlotLost says that the server has thrown away WAL that the slot needed.
	SlotLost
	// PublicationMissing says that the publication is not there, or was made after the
	// change that is being decoded.
	PublicationMissing
	// Refused is about rights, authentication or a setting; an operator's work.
	Refused
)

// String gives the name that logs and metrics use.
func (c Class) String() string {
	switch c {
	case Transient:
		return "transient"
	case Shutdown:
		return "shutdown"
	case SlotInUse:
		return "slot_in_use"
	case SlotMissing:
		return "slot_missing"
	case SlotLost:
		return "slot_lost"
	case PublicationMissing:
		return "publication_missing"
	case Refused:
		return "refused"
	}
	return "unknown"
}

// Classify judges an error of any of the relay's PostgreSQL connections. What
// it does not know is Transient: trying again loses nothing.
func Classify(err error) Class {
	if errors.Is(err, ErrShutdown) {
		return Shutdown
	}
	if _, ok := errors.AsType[*InUseError](err); ok {
		return SlotInUse
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return Transient
	}
	switch pgErr.Code {
	case "57P01", "57P02": // admin_shutdown, crash_shutdown
		return Shutdown
	case "55006": // object_in_use
		return SlotInUse
	case "42704": // undefined_object: the object is told by the place in the server's source, which no locale translates
		if isPublication(pgErr) {
			return PublicationMissing
		}
		return SlotMissing
	case "55000": // object_not_in_prerequisite_state: at START_REPLICATION, an invalidated slot or wal_level
		if strings.Contains(pgErr.Message, "wal_level") {
			return Refused
		}
		return SlotLost
	case "28000", "28P01", "42501", "3D000", "0A000", "58P01":
		return Refused
	}
	return Transient
}

// isPublication tells a missing publication from a missing slot, which share a
// SQLSTATE.
func isPublication(e *pgconn.PgError) bool {
	return strings.Contains(e.Routine, "publication") || strings.Contains(e.Message, "publication") ||
		strings.Contains(e.File, "lsyscache") || strings.Contains(e.File, "pg_publication")
}

// IsLostWAL says whether a notice of the output plugin means that rows pass
// unseen: PostgreSQL 18 skips a publication that it cannot load with a mere
// warning.
func IsLostWAL(notice *pgconn.PgError) bool {
	return notice.Severity != "LOG" && strings.Contains(notice.Message, "publication")
}
