package outbox

import "strings"

// A Payload is the SQL type of the column that holds the payload.
type Payload string

// The types that the relay publishes.
const (
	// PayloadJSONB normalises: blanks, the order of keys and repeated keys
	// are PostgreSQL's.
	PayloadJSONB Payload = "jsonb"
	// PayloadJSON keeps the text as it was written.
	PayloadJSON Payload = "json"
	// PayloadText takes any text; a []byte need not be JSON.
	PayloadText Payload = "text"
	// PayloadBytes takes any bytes; a []byte need not be JSON.
	PayloadBytes Payload = "bytea"
)

// A Table is an outbox of another name or kind. The zero value is what
// `walrelay migrate` makes. Other tables need the columns id, aggregate_type,
// aggregate_id, event_type, payload and headers; a table that lacks some is
// written with your own INSERT, which the relay reads just as well.
type Table struct {
	// Schema of the table, without quotes. Empty means walrelay.
	Schema string
	// Name of the table, without quotes. Empty means outbox.
	Name string
	// Payload is the type of the column payload. Empty means PayloadJSONB.
	Payload Payload
	// MaxBytes is the largest event: payload, headers and names together.
	// Zero means 1 MiB less 4 KiB, which leaves room for the relay's own
	// headers within the broker's default max_payload of 1 MiB. Set it to
	// fit where your broker has another one.
	MaxBytes int
}

// defaultMaxBytes fits with walrelay's headers into NATS' default max_payload.
const defaultMaxBytes = 1<<20 - 4<<10

func (t Table) filled() Table {
	if t.Schema == "" {
		t.Schema = "walrelay"
	}
	if t.Name == "" {
		t.Name = "outbox"
	}
	if t.Payload == "" {
		t.Payload = PayloadJSONB
	}
	if t.MaxBytes == 0 {
		t.MaxBytes = defaultMaxBytes
	}
	return t
}

// String gives the name as SQL takes it, quoted where it needs quotes.
func (t Table) String() string {
	t = t.filled()
	return quoteName(t.Schema) + "." + quoteName(t.Name)
}

func (t Table) json() bool { return t.Payload == PayloadJSONB || t.Payload == PayloadJSON }

// insert is one text for any number of events, so that a driver prepares it
// once. ORDER BY makes the order of the rows in the WAL, and with it that of
// the events, a promise and not a habit of the planner.
func (t Table) insert() string {
	return `INSERT INTO ` + t.String() + ` (id, aggregate_type, aggregate_id, event_type, payload, headers)
SELECT e.id::uuid, e.aggregate_type, e.aggregate_id, e.event_type, e.payload::` + string(t.Payload) + `, e.headers::jsonb
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
     WITH ORDINALITY AS e (id, aggregate_type, aggregate_id, event_type, payload, headers, n)
ORDER BY e.n`
}

// quoteName quotes a name where a bare one would be folded or not be read.
func quoteName(s string) string {
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9' {
			continue
		}
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}
