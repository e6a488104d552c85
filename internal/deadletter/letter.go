package deadletter

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// MaxPayload is the largest payload that is copied into a record. Of a larger
// one size and hash are kept; the row stays in its table, where retention
// leaves it.
const MaxPayload = 1 << 20

// A Letter is one event that could not be delivered.
type Letter struct {
	ID       int64 // given by PostgreSQL
	Source   string
	Position envelope.Position // zero: not known
	EventID  string            // empty: it has none
	// Table is schema.name.
	Table                                 string
	AggregateType, AggregateID, EventType string
	Stream, Subject                       string
	// RowHeaders is the text of the row's headers column, as it was; nil for
	// null.
	RowHeaders []byte
	// Columns are id, created_at and the further mapped columns of the row by
	// name, each as PostgreSQL's text or nil for null: with them the letter
	// can be routed again without its row. Nil: not known.
	Columns map[string]*string
	Payload []byte
	// PayloadNull says that the payload was SQL's null.
	PayloadNull bool
	Reason      string // a stable word
	Error       string // for the operator: object, what is wrong, fix
	CommittedAt time.Time
	// ParkedBehind is the id of the letter that it waits behind; 0 if none.
	ParkedBehind int64
	// Late says that newer events of its aggregate may be stored already.
	Late bool

	// What follows is filled by reading.

	PayloadSize int64
	PayloadHash []byte // SHA-256
	At          time.Time
	// Parks says that it is the first one of a parked aggregate.
	Parks      bool
	ResolvedAt time.Time
	ResolvedBy string
	Resolution string
	Sequence   int64
}

// headers gives the text of the row's headers as PostgreSQL takes it; nil for
// null.
func (l *Letter) headers() any {
	if l.RowHeaders == nil {
		return nil
	}
	return clean(string(l.RowHeaders))
}

// setHeaders reverses what Record made of the headers: an object is as it was,
// anything else the string of its text.
func (l *Letter) setHeaders(stored string) error {
	if !strings.HasPrefix(stored, `"`) {
		l.RowHeaders = []byte(stored)
		return nil
	}
	var text string
	if err := json.Unmarshal([]byte(stored), &text); err != nil {
		return fmt.Errorf("headers of dead letter %d: %w", l.ID, err)
	}
	l.RowHeaders = []byte(text)
	return nil
}

func (l *Letter) payload() (kept []byte, size int64, hash []byte) {
	if l.PayloadNull {
		return nil, 0, nil
	}
	sum := sha256.Sum256(l.Payload)
	if len(l.Payload) <= MaxPayload {
		kept = l.Payload
		if kept == nil {
			kept = []byte{}
		}
	}
	return kept, int64(len(l.Payload)), sum[:]
}
