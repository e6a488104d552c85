package witness_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/witness"
)

// I1: what an operator lets be counts as proven, so that no audit finds it
// again; the proof that sees most stays the newest; a gap whose rows nobody
// knows stays open.
func TestGapsThatAreLetBeCountAsProven(t *testing.T) {
	t.Parallel()
	conn := connect(t, newDatabase(t))
	session := uuid.New()
	take(t, conn, session)
	const source = "shop"
	record := func(g witness.Gap) int64 {
		t.Helper()
		id, err := witness.RecordGap(t.Context(), conn, "walrelay", source, session, g, nil)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	far := record(witness.Gap{Kind: witness.GapSlot, Epoch: 1, To: "0/20", Detail: witness.GapDetail{Seen: "100:900:"}})
	near := record(witness.Gap{Kind: witness.GapStream, Epoch: 1, To: "0/10", Detail: witness.GapDetail{Seen: "100:500:"}})
	unknown := record(witness.Gap{Kind: witness.GapDisplaced, Epoch: 1})
	var accepted, left []int64
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) (err error) {
		accepted, left, err = witness.AcceptGaps(context.WithoutCancel(t.Context()), tx, "walrelay", source)
		return err
	})
	if err != nil || !slices.Equal(accepted, []int64{near, far}) || !slices.Equal(left, []int64{unknown}) {
		t.Fatalf("AcceptGaps() = %v, %v, %v, want %v and %v", accepted, left, err, []int64{near, far}, []int64{unknown})
	}
	newest, some, err := witness.Newest(t.Context(), conn, "walrelay", source)
	if err != nil || !some || newest.Snapshot != "100:900:" || newest.LSN != 0x20 || len(newest.Streams) != 0 {
		t.Errorf("the newest proof is %+v, %v, %v, want the snapshot that sees most", newest, some, err)
	}
	open, err := witness.OpenGaps(t.Context(), conn, "walrelay", source)
	if err != nil || len(open) != 1 || open[0].ID != unknown {
		t.Errorf("open gaps = %+v, %v, want the one whose rows are not known", open, err)
	}
	// A proof that sees more than a gap is not put behind it.
	record(witness.Gap{Kind: witness.GapUnseen, Epoch: 1, Detail: witness.GapDetail{Seen: "100:700:"}})
	err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) (err error) {
		accepted, _, err = witness.AcceptGaps(t.Context(), tx, "walrelay", source)
		return err
	})
	newest, _, again := witness.Newest(t.Context(), conn, "walrelay", source)
	if err != nil || again != nil || len(accepted) != 1 || newest.Snapshot != "100:900:" {
		t.Errorf("after a second AcceptGaps() = %v, %v, %v the newest proof is %s, want 100:900:", accepted, err, again, newest.Snapshot)
	}
}
