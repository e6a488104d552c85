package publish

import (
	"fmt"
	"strings"
)

// A Class says what a failed publish asks for.
type Class uint8

const (
	// ClassEnvironment is a failure that an operator or time can mend: the
	// same message is tried again, in order, for ever. Whatever is unknown
	// belongs here.
	ClassEnvironment Class = iota
	// ClassResync is the chain's own business: the expectation did not
	// hold, or the outcome is unknown. The stream's end tells.
	ClassResync
	// ClassPermanent is a failure of this one event that repeats on every
	// attempt: it belongs among the dead letters.
	ClassPermanent
)

// String gives the class in a word.
func (c Class) String() string {
	switch c {
	case ClassEnvironment:
		return "environment"
	case ClassResync:
		return "resync"
	case ClassPermanent:
		return "permanent"
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// JetStream's error codes that this package treats by number.
const (
	codeAccountLimits     = 10002
	codeClusterNotAvail   = 10008
	codeNotLeader         = 10009
	codeInsufficient      = 10023
	codeMemoryResources   = 10028
	codeNoMessage         = 10037
	codeNotEnabledAccount = 10039
	codeStorageResources  = 10047
	codeTooLarge          = 10054
	codeStreamNotFound    = 10059
	codeOtherStream       = 10060
	codeWrongLastSeq      = 10071
	codeNotEnabled        = 10076
	codeStoreFailed       = 10077
	codeHeaderTooLarge    = 10097
	codeSealed            = 10109
	codeOffline           = 10118
	codeDuplicateInFlight = 10158
	codeBatchDisabled     = 10174
	codeBatchIncomplete   = 10176
	codeBatchHeader       = 10177
	codeBatchTooLarge     = 10199
	codeBatchDuplicate    = 10201
	codeSubjectSeqBusy    = 10163
	codeWrongLastSeqConst = 10164
	codeTTLInvalid        = 10165
	codeTTLDisabled       = 10166
	codeOfflineReason     = 10194
)

// Classify gives the class of a JetStream error code in answer to a publish.
func Classify(code int) Class {
	switch code {
	case codeWrongLastSeq, codeWrongLastSeqConst, codeDuplicateInFlight, codeSubjectSeqBusy:
		return ClassResync
	case codeTooLarge, codeHeaderTooLarge, codeTTLInvalid, codeTTLDisabled:
		return ClassPermanent
	default:
		return ClassEnvironment
	}
}

// A scope says what an environmental failure holds back where not all events
// have to wait for one: the event's own key, all keys with its subject, or the
// whole stream.
type scope uint8

const (
	scopeEvent scope = iota
	scopeSubject
	scopeStream
)

// scopeOf gives the scope of what a stream answered to a publish. An answer
// that is not known can be the event's own.
func scopeOf(err *APIError) scope {
	switch err.Code {
	case codeOtherStream:
		return scopeSubject
	case codeStoreFailed:
		if strings.Contains(err.Description, "per subject") {
			return scopeSubject
		}
		return scopeStream
	case codeAccountLimits, codeClusterNotAvail, codeNotLeader, codeInsufficient, codeMemoryResources, codeNotEnabledAccount,
		codeStorageResources, codeStreamNotFound, codeNotEnabled, codeSealed, codeOffline, codeOfflineReason:
		return scopeStream
	default:
		return scopeEvent
	}
}

// The reasons for which one event can never be stored.
const (
	ReasonTooLarge       = "message too large"
	ReasonHeaderTooLarge = "headers too large"
	ReasonHeaderRefused  = "header refused"
	ReasonIllegal        = "illegal message"
	ReasonIDInUse        = "id in use"
)

func permanentReason(code int) string {
	switch code {
	case codeTooLarge:
		return ReasonTooLarge
	case codeHeaderTooLarge:
		return ReasonHeaderTooLarge
	default:
		return ReasonHeaderRefused
	}
}

// An APIError is an error that JetStream answered with.
type APIError struct {
	// Code is JetStream's own error code, such as 10077.
	Code int
	// Description is the server's text.
	Description string
}

// Error gives the server's text and code.
func (e *APIError) Error() string {
	return fmt.Sprintf("%s (JetStream error %d)", e.Description, e.Code)
}

// NotFound says that the stream does not exist.
func (e *APIError) NotFound() bool { return e.Code == codeStreamNotFound }

// explain says what an answer of the server means for the operator of stream.
func explain(stream string, e *APIError) string {
	problem, fix := Trouble(stream, e)
	if fix == "" {
		return problem
	}
	return problem + "; " + fix
}

// Trouble says what an answer of the server means for stream, and what the
// operator can do, if anything.
func Trouble(stream string, e *APIError) (problem, fix string) {
	switch e.Code {
	case codeStreamNotFound:
		return fmt.Sprintf("stream %q does not exist", stream), fmt.Sprintf("create it with `walrelay migrate --stream %s`", stream)
	case codeStoreFailed:
		if strings.Contains(e.Description, "maximum") {
			return fmt.Sprintf("stream %q is full: %s", stream, e.Description), "purge it, raise the limit or let old messages go"
		}
		return fmt.Sprintf("stream %q cannot store: %s", stream, e.Description), "look at the server's disk and log"
	case codeAccountLimits:
		return fmt.Sprintf("the account's JetStream limits are reached at stream %q: %s", stream, e.Description), "raise them"
	case codeInsufficient, codeStorageResources, codeMemoryResources:
		return fmt.Sprintf("the server of stream %q lacks resources: %s", stream, e.Description), ""
	case codeClusterNotAvail, codeNotLeader:
		return fmt.Sprintf("stream %q has no leader: %s", stream, e.Description), ""
	case codeOffline, codeOfflineReason:
		return fmt.Sprintf("stream %q is offline: %s", stream, e.Description), ""
	case codeNotEnabled, codeNotEnabledAccount:
		return "JetStream not enabled: " + e.Description, "enable it on the server and for the account"
	case codeSealed:
		return fmt.Sprintf("stream %q is sealed and takes no messages", stream), "name another stream"
	case codeOtherStream:
		return fmt.Sprintf("another stream than %q takes the subject: %s", stream, e.Description), "correct the streams' subjects"
	default:
		return fmt.Sprintf("stream %q refuses: %v", stream, e), ""
	}
}

// Full is the answer of a stream that is full and keeps what it has, nil while
// there is room.
func (i StreamInfo) Full() *APIError {
	f := i.Facts
	switch {
	case f.Discard != "new":
		return nil
	case f.MaxMsgs > 0 && i.Messages >= uint64(f.MaxMsgs):
		return &APIError{Code: codeStoreFailed, Description: "maximum messages exceeded"}
	case f.MaxBytes > 0 && i.Bytes >= uint64(f.MaxBytes):
		return &APIError{Code: codeStoreFailed, Description: "maximum bytes exceeded"}
	}
	return nil
}
