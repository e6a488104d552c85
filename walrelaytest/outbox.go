package walrelaytest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/outbox"
)

// A Match says which events are meant. What is empty matches everything.
type Match struct {
	// AggregateType, AggregateID and Type are compared as they are.
	AggregateType, AggregateID, Type string
	// Payload is compared as JSON: the order of keys and blanks do not
	// matter, every digit of a number does. A json.RawMessage or []byte is
	// JSON already, anything else is encoded first.
	Payload any
	// Headers must be there with these values; others may be there too.
	Headers map[string]string
	// Count is how many events must match. Zero means exactly one.
	Count int
	// Table is the outbox; the zero value is walrelay.outbox. Of a table
	// without a column xid, rows of earlier transactions count as well.
	Table outbox.Table
}

// An Appended is an event as the table holds it.
type Appended struct {
	ID                               string
	AggregateType, AggregateID, Type string
	// Payload is the column's text.
	Payload json.RawMessage
	// Headers are the event's, with values as text.
	Headers map[string]string
}

// AssertAppended checks that tx has appended what m says, and returns those
// events in order. It looks inside the transaction, which the test rolls back
// afterwards: nothing is left behind, and tests can run side by side. Otherwise
// it fails the test and shows what was appended.
func AssertAppended(t testing.TB, tx pgx.Tx, m Match) []Appended {
	t.Helper()
	return assertAppended(t, pgxRows(tx), m)
}

// AssertAppendedSQL is [AssertAppended] for database/sql.
func AssertAppendedSQL(t testing.TB, tx *sql.Tx, m Match) []Appended {
	t.Helper()
	return assertAppended(t, sqlRows(tx), m)
}

// AssertNothingAppended checks that tx has appended no event that m matches;
// the zero Match allows none at all. Count is ignored.
func AssertNothingAppended(t testing.TB, tx pgx.Tx, m Match) {
	t.Helper()
	assertNothingAppended(t, pgxRows(tx), m)
}

// AssertNothingAppendedSQL is [AssertNothingAppended] for database/sql.
func AssertNothingAppendedSQL(t testing.TB, tx *sql.Tx, m Match) {
	t.Helper()
	assertNothingAppended(t, sqlRows(tx), m)
}

func assertAppended(t testing.TB, read rows, m Match) []Appended {
	t.Helper()
	all, matching := find(t, read, m)
	want := m.Count
	if want == 0 {
		want = 1
	}
	if len(matching) != want {
		t.Fatalf("the transaction has appended %d events that match %s, want %d; appended were:%s", len(matching), m, want, list(all))
	}
	return matching
}

func assertNothingAppended(t testing.TB, read rows, m Match) {
	t.Helper()
	all, matching := find(t, read, m)
	if len(matching) != 0 {
		t.Fatalf("the transaction has appended %d events that match %s, want none; appended were:%s", len(matching), m, list(all))
	}
}

// rows runs a query of texts and calls each for every row.
type rows func(ctx context.Context, query string, each func(scan func(...any) error) error) error

func pgxRows(tx pgx.Tx) rows {
	return func(ctx context.Context, query string, each func(func(...any) error) error) error {
		r, err := tx.Query(ctx, query)
		if err != nil {
			return fmt.Errorf("query: %w", err)
		}
		defer r.Close()
		for r.Next() {
			if err := each(r.Scan); err != nil {
				return err
			}
		}
		return r.Err()
	}
}

func sqlRows(tx *sql.Tx) rows {
	return func(ctx context.Context, query string, each func(func(...any) error) error) (err error) {
		r, err := tx.QueryContext(ctx, query)
		if err != nil {
			return fmt.Errorf("query: %w", err)
		}
		defer func() {
			if cerr := r.Close(); err == nil {
				err = cerr
			}
		}()
		for r.Next() {
			if err := each(r.Scan); err != nil {
				return err
			}
		}
		return r.Err()
	}
}

// find gives the events of the transaction, and those among them that match.
func find(t testing.TB, read rows, m Match) (all, matching []Appended) {
	t.Helper()
	want, err := canonical(m.Payload)
	if err != nil {
		t.Fatalf("Match.Payload: %v", err)
	}
	// Columns are looked up through the row's JSON: an outbox of the user's
	// own may lack xid and seq. A row's xid is that of the whole
	// transaction, also within a savepoint, where xmin is not.
	query := `SELECT r->>'id', r->>'aggregate_type', r->>'aggregate_id', r->>'event_type', coalesce(payload::text, 'null'), r->>'headers'
FROM (SELECT to_jsonb(o) AS r, o.payload FROM ` + m.Table.String() + ` AS o) AS rows
WHERE coalesce(r->>'xid', pg_current_xact_id()::text) = pg_current_xact_id()::text
ORDER BY (r->>'seq')::bigint`
	err = read(t.Context(), query, func(scan func(...any) error) error {
		var a Appended
		var payload string
		var headers sql.NullString
		if err := scan(&a.ID, &a.AggregateType, &a.AggregateID, &a.Type, &payload, &headers); err != nil {
			return err
		}
		a.Payload = json.RawMessage(payload)
		if a.Headers, err = texts(headers.String); err != nil {
			return err
		}
		all = append(all, a)
		return nil
	})
	if err != nil {
		t.Fatalf("read the events of the transaction from %s: %v", m.Table, err)
	}
	for _, a := range all {
		if m.matches(a, want) {
			matching = append(matching, a)
		}
	}
	return all, matching
}

func (m Match) matches(a Appended, payload any) bool {
	same := func(want, got string) bool { return want == "" || want == got }
	if !same(m.AggregateType, a.AggregateType) || !same(m.AggregateID, a.AggregateID) || !same(m.Type, a.Type) {
		return false
	}
	for name, value := range m.Headers {
		if got, ok := a.Headers[name]; !ok || got != value {
			return false
		}
	}
	if m.Payload == nil {
		return true
	}
	got, err := canonical(a.Payload)
	return err == nil && reflect.DeepEqual(payload, got)
}

// canonical is a payload as a decoded value whose numbers keep their digits.
func canonical(payload any) (v any, err error) {
	var raw []byte
	switch p := payload.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		raw = p
	case []byte:
		raw = p
	default:
		if raw, err = json.Marshal(p); err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
	}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return v, nil
}

// texts gives headers as the relay sends them: scalars as their text.
func texts(object string) (map[string]string, error) {
	if object == "" {
		return nil, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(object), &values); err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	headers := make(map[string]string, len(values))
	for name, value := range values {
		var s string
		if json.Unmarshal(value, &s) != nil {
			s = string(value)
		}
		headers[name] = s
	}
	return headers, nil
}

// String lists what the match asks for.
func (m Match) String() string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, fmt.Sprintf("%s=%q", name, value))
		}
	}
	add("aggregate_type", m.AggregateType)
	add("aggregate_id", m.AggregateID)
	add("event_type", m.Type)
	var headers []string
	for name, value := range m.Headers {
		headers = append(headers, name+": "+value)
	}
	slices.Sort(headers)
	add("headers", strings.Join(headers, ", "))
	if m.Payload != nil {
		parts = append(parts, fmt.Sprintf("payload=%+v", m.Payload))
	}
	if len(parts) == 0 {
		return "anything"
	}
	return strings.Join(parts, " ")
}

func list(all []Appended) string {
	if len(all) == 0 {
		return " none"
	}
	var b strings.Builder
	for _, a := range all {
		fmt.Fprintf(&b, "\n\t%s %s/%s %s %s %v", a.ID, a.AggregateType, a.AggregateID, a.Type, a.Payload, a.Headers)
	}
	return b.String()
}
