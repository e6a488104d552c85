package deadletter_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// The headers are what a requeue sends again, so they must come back to the
// letter; and none must keep the record from being made.
func TestA26HeadersOfARowComeBackToTheLetter(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	last := int64(0)
	for i, headers := range [][]byte{
		nil, []byte(``), []byte(`{}`), []byte(`{"a": "b", "n": 12345678901234567890123, "d": 1.10}`),
		[]byte(`{"b":1,  "a":2,"b":3}`), // of a json column: order, blanks and the first b would be lost
		[]byte(`["x"]`), []byte(`"{}"`), []byte(`null`), []byte(`7`), []byte(`not json`),
		[]byte(`{"a": "\u0000"}`), []byte(`{"a": "\ud800"}`), []byte(`{"a": 1e999999}`), []byte(`{"a": "` + "\U0001F600" + `"}`),
		[]byte(strings.Repeat(`{"a":`, 20_000) + `1` + strings.Repeat(`}`, 20_000)),
	} {
		l := letter(uint64(i))
		l.RowHeaders = headers
		if ok, err := deadletter.Record(t.Context(), conn, "walrelay", l, open); err != nil || !ok {
			t.Errorf("Record() with headers %.60q = %v, %v, want true", headers, ok, err)
			continue
		}
		letters, err := deadletter.List(t.Context(), conn, "walrelay", deadletter.Filter{After: last, Limit: 1})
		if err != nil || len(letters) != 1 {
			t.Fatalf("List() = %d letters, %v, want one", len(letters), err)
		}
		last = letters[0].ID
		if got := letters[0].RowHeaders; !bytes.Equal(got, headers) || (got == nil) != (headers == nil) {
			t.Errorf("headers = %.60q, want %.60q", got, headers)
		}
	}
}

// An event that was read from the table has no position: its table and id
// identify it, however long the id is.
func TestALetterWithoutAPositionIsRecordedOnce(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	base := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		table, id string
		want      bool
	}{
		{"a.t", base + "1", true}, {"a.t", base + "1", false}, {"a.t", base + "2", true}, {"b.t", base + "1", true}, {"a.t", "1", true}, {"a.t", "1", false},
	} {
		l := letter(0)
		l.Position, l.Table, l.EventID = envelope.Position{}, c.table, c.id
		if got, err := deadletter.Record(t.Context(), conn, "walrelay", l, open); err != nil || got != c.want {
			t.Errorf("Record(%s, id of %d bytes) = %v, %v, want %v", c.table, len(c.id), got, err, c.want)
		}
	}
}
