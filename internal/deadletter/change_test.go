package deadletter_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// What is resolved stays as it was resolved, and nothing is written past the
// fence.
func TestALetterIsResolvedOnceAndByWhoHoldsTheSlot(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	value := "x"
	l := letter(1)
	l.Columns = map[string]*string{"created_at": &value, "tenant": nil}
	if _, err := deadletter.Record(t.Context(), conn, "walrelay", l, open); err != nil {
		t.Fatal(err)
	}
	get := func() deadletter.Letter {
		t.Helper()
		found, err := deadletter.Get(t.Context(), conn, "walrelay", 1)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	tenant, some := get().Columns["tenant"]
	if c := get().Columns["created_at"]; c == nil || *c != value || tenant != nil || !some {
		t.Errorf("columns = %v, want created_at and a null tenant", get().Columns)
	}
	lost := errors.New("the session is lost")
	fenced := func(context.Context, pgx.Tx) error { return lost }
	if err := deadletter.Resolve(t.Context(), conn, "walrelay", 1, "ann", 7, fenced); !errors.Is(err, lost) {
		t.Errorf("Resolve() behind a fence = %v, want %v", err, lost)
	}
	if err := deadletter.RefuseAgain(t.Context(), conn, "walrelay", 1, "null_id", "still", open); err != nil {
		t.Fatal(err)
	}
	if now := get(); now.Reason != "null_id" || now.Error != "still" || !now.ResolvedAt.IsZero() {
		t.Errorf("letter = %+v, want it open with the new error", now)
	}
	if err := deadletter.Resolve(t.Context(), conn, "walrelay", 1, "ann", 7, open); err != nil {
		t.Fatal(err)
	}
	done, err := deadletter.Discard(t.Context(), conn, "walrelay", "s", []int64{1}, "bob")
	if err != nil || len(done) != 0 {
		t.Errorf("Discard() of a resolved letter = %v, %v, want none", done, err)
	}
	if now := get(); now.Resolution != deadletter.Requeued || now.ResolvedBy != "ann" || now.Sequence != 7 {
		t.Errorf("letter = %+v, want it requeued by ann at 7", now)
	}
	if _, err := deadletter.Record(t.Context(), conn, "walrelay", letter(2), open); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		source string
		want   []int64
	}{{"other", nil}, {"s", []int64{2}}, {"s", nil}} {
		done, err := deadletter.Discard(t.Context(), conn, "walrelay", c.source, []int64{1, 2}, "bob")
		if err != nil || !slices.Equal(done, c.want) {
			t.Errorf("Discard() of source %s = %v, %v, want %v", c.source, done, err, c.want)
		}
	}
}
