package deadletter_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// of is a letter of an aggregate.
func of(aggregate string, index uint64) deadletter.Letter {
	l := letter(index)
	l.AggregateID, l.EventID = aggregate, aggregate+string(rune('a'+index))
	return l
}

func first(t *testing.T, conn *pgx.Conn, l deadletter.Letter) int64 {
	t.Helper()
	id, err := deadletter.RecordFirst(t.Context(), conn, "walrelay", l, open)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func behind(t *testing.T, conn *pgx.Conn, l deadletter.Letter, id int64) {
	t.Helper()
	l.ParkedBehind, l.Reason = id, deadletter.ReasonParked
	if ok, err := deadletter.Record(t.Context(), conn, "walrelay", l, open); err != nil || !ok {
		t.Fatalf("Record = %v, %v; want true", ok, err)
	}
}

// indices are the positions' indices of what waits.
func indices(t *testing.T, conn *pgx.Conn, id int64, limit int) (list []uint64) {
	t.Helper()
	found, err := deadletter.Waiting(t.Context(), conn, "walrelay", id, limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range found {
		list = append(list, l.Position.Index)
	}
	return list
}

// I3: what waits comes in the order of the events, whatever the order in which
// it was recorded, and behind the earliest one that was refused.
func TestWhatIsParkedWaitsInTheOrderOfTheEventsBehindTheEarliestRefusal(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	later := first(t, conn, of("1", 5))
	behind(t, conn, of("1", 9), later)
	behind(t, conn, of("1", 7), later)
	other := first(t, conn, of("2", 6))
	id := first(t, conn, of("1", 3))
	healed := of("1", 0)
	healed.Position = envelope.Position{}
	behind(t, conn, healed, id)
	if got, want := indices(t, conn, id, 10), []uint64{0, 5, 7, 9}; !slices.Equal(got, want) {
		t.Errorf("what waits is %v, want %v: the later refusal and what waited behind it wait behind the earlier one", got, want)
	}
	if got := indices(t, conn, id, 2); len(got) != 2 {
		t.Errorf("Waiting gives %d letters, want the 2 asked for", len(got))
	}
	if got := indices(t, conn, later, 10); len(got) > 0 {
		t.Errorf("behind the later refusal waits %v, want nothing any more", got)
	}
	if again := first(t, conn, of("1", 3)); again != id {
		t.Errorf("RecordFirst of the same event gives %d, want %d again", again, id)
	}
	parked, err := deadletter.ParkedAggregates(t.Context(), conn, "walrelay", "s", 10)
	want := []deadletter.Parked{{AggregateType: "order", AggregateID: "2", First: other, Open: other}, {AggregateType: "order", AggregateID: "1", First: id, Open: id}}
	if err != nil || !slices.Equal(parked, want) {
		t.Errorf("ParkedAggregates = %+v, %v; want %+v", parked, err, want)
	}
	if l, err := deadletter.Get(t.Context(), conn, "walrelay", id); err != nil || !l.Parks || l.ParkedBehind != 0 || l.CheckAlone() != nil {
		t.Errorf("the first letter is %+v (%v), want it to park and to be dealt with alone", l, err)
	}
	if l, err := deadletter.Get(t.Context(), conn, "walrelay", later); err != nil || l.Parks || l.ParkedBehind != id || !errors.Is(l.CheckAlone(), deadletter.ErrParked) {
		t.Errorf("the later letter is %+v (%v), want it not to be dealt with alone", l, err)
	}
}

// A release ends at a letter that is refused: the rest waits behind that one.
func TestAReleasedLetterIsResolvedOnceAndARefusedOneTakesTheRestBehindIt(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	id := first(t, conn, of("1", 1))
	for i := range uint64(3) {
		behind(t, conn, of("1", 2+i), id)
	}
	events := []string{of("1", 1).EventID, of("1", 2).EventID, of("1", 4).EventID, of("1", 9).EventID}
	if got, err := deadletter.WaitingOf(t.Context(), conn, "walrelay", id, events); err != nil || !maps.Equal(got, map[string]int64{events[1]: id + 1, events[2]: id + 3}) {
		t.Errorf("WaitingOf(%v) = %v, %v; want letters %d and %d", events, got, err, id+1, id+3)
	}
	done := []deadletter.Resolution{{ID: id + 1, How: deadletter.Released, Sequence: 7}, {ID: id, How: "discarded"}}
	if err := deadletter.Settle(t.Context(), conn, "walrelay", done, "x", open); err != nil {
		t.Fatal(err)
	}
	if got, err := deadletter.Due(t.Context(), conn, "walrelay", []int64{id, id + 1, id + 2}); err != nil || !slices.Equal(got, []int64{id, id + 1}) {
		t.Errorf("Due = %v, %v; want %d and %d", got, err, id, id+1)
	}
	if err := deadletter.Refuse(t.Context(), conn, "walrelay", id+2, "too_large", "why", open); err != nil {
		t.Fatal(err)
	}
	if got := indices(t, conn, id, 10); !slices.Equal(got, []uint64{4}) {
		t.Errorf("beside the refused one waits %v, want event 4 alone", got)
	}
	if got, err := deadletter.Due(t.Context(), conn, "walrelay", []int64{id}); err != nil || len(got) > 0 {
		t.Errorf("Due = %v, %v; want nothing before the refused one is dealt with", got, err)
	}
	if l, err := deadletter.Get(t.Context(), conn, "walrelay", id+3); err != nil || l.ParkedBehind != id+2 || !errors.Is(l.CheckAlone(), deadletter.ErrParked) {
		t.Errorf("event 4 is parked behind %d (%v), want %d, which is to be dealt with", l.ParkedBehind, err, id+2)
	}
	if l, err := deadletter.Get(t.Context(), conn, "walrelay", id+2); err != nil || l.Reason != "too_large" || !l.Parks {
		t.Errorf("the refused one is %+v (%v), want it to park with its reason", l, err)
	}
	if l, err := deadletter.Get(t.Context(), conn, "walrelay", id+1); err != nil || l.Resolution != deadletter.Released || l.Sequence != 7 || l.ParkedBehind != id {
		t.Errorf("the released one is %+v (%v), want its resolution as it was", l, err)
	}
	// I1: what the stream lost of it is to be released again.
	for last, want := range map[uint64]int64{7: 0, 6: 1} {
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			n, err := deadletter.Reopen(t.Context(), tx, "walrelay", "s", "S", last)
			if n != want {
				t.Errorf("Reopen of what is beyond sequence %d = %d letters, want %d", last, n, want)
			}
			return errors.Join(err, errUndo)
		})
		if !errors.Is(err, errUndo) {
			t.Fatal(err)
		}
	}
}

var errUndo = errors.New("undo")

// A row is routed again with what its letter keeps, to the letter.
func TestTheFurtherColumnsOfARowComeBack(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	text := "a \"quoted\" <text>\n\u2028"
	for i, columns := range []map[string]*string{nil, {}, {"id": &text, "tenant": nil}} {
		l := letter(uint64(i))
		l.Columns = columns
		if _, err := deadletter.Record(t.Context(), conn, "walrelay", l, open); err != nil {
			t.Fatal(err)
		}
	}
	found, err := deadletter.List(t.Context(), conn, "walrelay", deadletter.Filter{})
	if err != nil || len(found) != 3 || found[0].Columns != nil || found[1].Columns == nil || found[2].Columns["id"] == nil {
		t.Fatalf("List = %+v, %v; want three letters with their columns", found, err)
	}
	if got := found[2].Columns; *got["id"] != text || got["tenant"] != nil || len(got) != 2 {
		t.Errorf("columns = %v, want them as they were", got)
	}
	if from, err := deadletter.From(t.Context(), conn, "walrelay", "s", letter(0).Position.Commit, 2); err != nil || len(from) != 2 || from[1] != letter(1).Position {
		t.Errorf("From = %v, %v; want the first two positions", from, err)
	}
	if from, err := deadletter.From(t.Context(), conn, "walrelay", "s", letter(0).Position.Commit+1, 2); err != nil || len(from) != 0 {
		t.Errorf("From a later LSN = %v, %v; want none", from, err)
	}
}

// I3: letters that are open again wait behind one letter of their aggregate, and
// as long as anything of it is to be dealt with.
func TestWhatIsOpenAgainWaitsBehindOneLetter(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	// Two rounds of aggregate 1, dealt with and released, and a round of another.
	park := func(aggregate string, index uint64) (id int64) {
		t.Helper()
		id = first(t, conn, of(aggregate, index))
		behind(t, conn, of(aggregate, index+1), id)
		exec(`UPDATE walrelay.dead_letter SET resolved_at = now(), resolution = CASE id WHEN $1 THEN 'discarded' ELSE 'released' END WHERE resolved_at IS NULL`, id)
		return id
	}
	one, two, other := park("1", 1), park("1", 5), park("2", 20)
	exec(`UPDATE walrelay.dead_letter SET resolved_at = NULL, resolution = NULL WHERE resolution = 'released'`)
	unite := func(want int64) {
		t.Helper()
		if n, err := deadletter.Unite(t.Context(), conn, "walrelay", "s", open); err != nil || n != want {
			t.Errorf("Unite() = %d, %v; want %d", n, err, want)
		}
	}
	unite(1)
	unite(0)
	if a, b, c := indices(t, conn, one, 10), indices(t, conn, two, 10), indices(t, conn, other, 10); !slices.Equal(a, []uint64{2, 6}) || len(b) != 0 || !slices.Equal(c, []uint64{21}) {
		t.Errorf("%v wait behind the first, %v behind the second, %v behind that of another aggregate", a, b, c)
	}
	// An open first letter that came meanwhile.
	exec(`UPDATE walrelay.dead_letter SET parked_behind = $1 WHERE position = '1/0/16B3748/6'`, two)
	exec(`UPDATE walrelay.dead_letter SET resolved_at = NULL, resolution = NULL WHERE id = $1`, two)
	unite(1)
	if got := indices(t, conn, one, 10); !slices.Equal(got, []uint64{2, 6}) {
		t.Errorf("%v wait behind one letter, want both", got)
	}
	parked, err := deadletter.ParkedAggregates(t.Context(), conn, "walrelay", "s", 10)
	if err != nil || len(parked) != 2 || parked[0].First != one || parked[0].Open != two {
		t.Errorf("ParkedAggregates = %+v, %v; want aggregate 1 with what waits behind %d, and %d to be dealt with", parked, err, one, two)
	}
	if got, err := deadletter.Due(t.Context(), conn, "walrelay", []int64{one, other}); err != nil || !slices.Equal(got, []int64{other}) {
		t.Errorf("Due = %v, %v; want the other aggregate's %d alone", got, err, other)
	}
}

// I7: a session begins with uniting, whatever is parked: many letters of the last
// minute, of which the planner knows nothing yet. Where that took longer than a
// statement may, no session would ever begin.
func TestVeryManyLettersAreUnited(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	const aggregates, each = 2000, 20
	for _, sql := range []string{
		"ALTER TABLE walrelay.dead_letter SET (autovacuum_enabled = off)",
		`INSERT INTO walrelay.dead_letter (source, "table", aggregate_type, aggregate_id, payload_null, payload_size, reason, error, at, resolved_at, resolution)
			SELECT 's', 't', 'order', n::text, true, 0, 'too_large', '', now(), now(), 'discarded' FROM generate_series(1, 2 * 2000) n`,
		`INSERT INTO walrelay.dead_letter (source, "table", aggregate_type, aggregate_id, payload_null, payload_size, reason, error, parked_behind)
			SELECT 's', 't', 'order', (1 + n % 2000)::text, true, 0, 'parked', '', 1 + n % (2 * 2000) FROM generate_series(1, 20 * 2000) n`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := deadletter.Unite(t.Context(), conn, "walrelay", "s", open); err != nil || n != aggregates*each/2 {
		t.Errorf("Unite() = %d, %v; want half of the letters, %d", n, err, aggregates*each/2)
	}
	parked, err := deadletter.ParkedAggregates(t.Context(), conn, "walrelay", "s", aggregates+1)
	if err != nil || len(parked) != aggregates {
		t.Errorf("%d aggregates are parked, %v; want %d", len(parked), err, aggregates)
	}
	if n, err := deadletter.Unite(t.Context(), conn, "walrelay", "s", open); err != nil || n != 0 {
		t.Errorf("a second Unite() = %d, %v; want nothing to do", n, err)
	}
}
