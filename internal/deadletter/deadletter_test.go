package deadletter_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
	"github.com/walrelay/walrelay/migrations"
)

func migrated(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), cfg, migrations.Config{SchemaOnly: true}, func(migrations.Step) {}); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func open(context.Context, pgx.Tx) error { return nil }

func letter(index uint64) deadletter.Letter {
	return deadletter.Letter{
		Source: "s", Position: envelope.Position{Epoch: 1, Commit: 0x16B3748, Index: index}, EventID: "e", Table: "walrelay.outbox",
		AggregateType: "order", AggregateID: "42", EventType: "placed", Stream: "S", Subject: "outbox.s.order.placed",
		RowHeaders: []byte(`{"a": "b"}`), Payload: []byte("body"), Reason: "too_large", Error: "it is too large",
		CommittedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func TestALetterIsRecordedOnceAndReadAsItWas(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	for i, want := range []bool{true, false} {
		if got, err := deadletter.Record(t.Context(), conn, "walrelay", letter(1), open); err != nil || got != want {
			t.Fatalf("Record number %d = %v, %v; want %v", i+1, got, err, want)
		}
	}
	letters, err := deadletter.List(t.Context(), conn, "walrelay", deadletter.Filter{Source: "s"})
	if err != nil || len(letters) != 1 {
		t.Fatalf("List = %d letters, %v; want 1", len(letters), err)
	}
	got, err := deadletter.Get(t.Context(), conn, "walrelay", letters[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	want := letter(1)
	if got.Position != want.Position || !bytes.Equal(got.Payload, want.Payload) || got.Reason != want.Reason || got.AggregateID != want.AggregateID ||
		string(got.RowHeaders) != `{"a": "b"}` || !got.CommittedAt.Equal(want.CommittedAt) || got.PayloadSize != 4 {
		t.Errorf("Get = %+v, want %+v", got, want)
	}
	if has, err := deadletter.Has(t.Context(), conn, "walrelay", "s", want.Position); err != nil || !has {
		t.Errorf("Has = %v, %v; want true", has, err)
	}
	if counts, err := deadletter.Open(t.Context(), conn, "walrelay", "s"); err != nil || counts["too_large"] != 1 {
		t.Errorf("Open = %v, %v; want one too_large", counts, err)
	}
	if _, err := deadletter.Get(t.Context(), conn, "walrelay", 99); !errors.Is(err, deadletter.ErrNone) {
		t.Errorf("Get of an unknown id = %v, want ErrNone", err)
	}
}

func TestWhateverIsInARowItsRefusalCanBeRecorded(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	for i, l := range []deadletter.Letter{
		{Source: "s", Table: "t", Reason: "null_id", Error: "x", PayloadNull: true},
		{Source: "s", Table: "t", Reason: "x", Error: "\xff\x00", EventID: string(bytes.Repeat([]byte("é"), 100_000))},
		{Source: "s", Table: "t", Reason: "x", Error: "x", RowHeaders: []byte("not json")},
		{Source: "s", Table: "t", Reason: "x", Error: "x", RowHeaders: []byte(`{"a": "\u0000"}`)},
		{Source: "s", Table: "t", Reason: "x", Error: "x", RowHeaders: []byte{}},
		{Source: "s", Table: "t", Reason: "x", Error: "x", Payload: make([]byte, deadletter.MaxPayload+1)},
	} {
		l.Position = envelope.Position{Epoch: 1, Commit: 1, Index: uint64(i)}
		if ok, err := deadletter.Record(t.Context(), conn, "walrelay", l, open); err != nil || !ok {
			t.Errorf("letter %d: Record = %v, %v; want true", i, ok, err)
		}
	}
	letters, err := deadletter.List(t.Context(), conn, "walrelay", deadletter.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	large, err := deadletter.Get(t.Context(), conn, "walrelay", letters[len(letters)-1].ID)
	if err != nil || large.Payload != nil || large.PayloadSize != deadletter.MaxPayload+1 || len(large.PayloadHash) != 32 {
		t.Errorf("a payload over 1 MiB: kept %d bytes, size %d, hash of %d bytes (%v); want none, its size, 32", len(large.Payload), large.PayloadSize, len(large.PayloadHash), err)
	}
}

func TestAFencedRelayRecordsNothing(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	fenced := errors.New("fenced")
	fence := func(context.Context, pgx.Tx) error { return fenced }
	if _, err := deadletter.Record(t.Context(), conn, "walrelay", letter(1), fence); !errors.Is(err, fenced) {
		t.Errorf("Record = %v, want what the fence says", err)
	}
	for _, headers := range []string{"", "{}", `{"a": "b"}`} {
		if err := deadletter.Park(t.Context(), conn, "walrelay", withHeaders(headers), guard("false", fenced), fence); !errors.Is(err, fenced) {
			t.Errorf("Park with headers %q = %v, want what the guard says", headers, err)
		}
	}
	if has, err := deadletter.Has(t.Context(), conn, "walrelay", "s", letter(1).Position); err != nil || has {
		t.Errorf("Has = %v, %v; want false", has, err)
	}
}

func withHeaders(text string) deadletter.Letter {
	l := letter(1)
	if l.RowHeaders = []byte(text); text == "" {
		l.RowHeaders = nil
	}
	return l
}

// guard gives a row where the condition holds.
func guard(condition string, lost error) deadletter.Guard {
	return deadletter.Guard{SQL: "SELECT 1 WHERE $23::text = 's' AND " + condition, Args: []any{"s"}, Lost: lost}
}

// A statement of its own must leave the same letter as a transaction of several.
func TestWhatIsParkedIsReadAsItWasAndOnce(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	id := first(t, conn, of("42", 0))
	for _, headers := range []string{"", "{}", `{"a": "b"}`, `{"a": "\u0000"}`, "no JSON"} {
		parked, want := withHeaders(headers), withHeaders(headers)
		parked.Position.Index, want.Position.Index = 1, 2
		parked.ParkedBehind, want.ParkedBehind = id, id
		parked.Late, want.Late = true, true
		for range 2 {
			if err := deadletter.Park(t.Context(), conn, "walrelay", parked, guard("true", nil), open); err != nil {
				t.Fatalf("Park with headers %q: %v", headers, err)
			}
		}
		if ok, err := deadletter.Record(t.Context(), conn, "walrelay", want, open); err != nil || !ok {
			t.Fatalf("Record with headers %q = %v, %v; want true", headers, ok, err)
		}
		found, err := deadletter.Waiting(t.Context(), conn, "walrelay", id, 10)
		if err != nil || len(found) != 2 {
			t.Fatalf("%d letters wait, %v; want one of Park and one of Record", len(found), err)
		}
		found[1].ID, found[1].At, found[1].Position = found[0].ID, found[0].At, found[0].Position
		if diff := cmp.Diff(found[1], found[0]); diff != "" {
			t.Errorf("with headers %q Park leaves another letter than Record (-Record +Park):\n%s", headers, diff)
		}
		if _, err := conn.Exec(t.Context(), "DELETE FROM walrelay.dead_letter WHERE id <> $1", id); err != nil {
			t.Fatal(err)
		}
	}
}

// I2: what is recorded survives a crash of PostgreSQL at once, whatever
// synchronous_commit is set to.
func TestARecordSurvivesACrash(t *testing.T) {
	t.Parallel()
	for name, record := range map[string]func(context.Context, *pgx.Conn) error{
		"recorded": func(ctx context.Context, conn *pgx.Conn) error {
			_, err := deadletter.Record(ctx, conn, "walrelay", letter(1), open)
			return err
		},
		"parked": func(ctx context.Context, conn *pgx.Conn) error {
			return deadletter.Park(ctx, conn, "walrelay", withHeaders(""), guard("true", nil), open)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := envtest.Postgres(t, testenv.PGConfig{Settings: map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s"}})
			conn := migrated(t, pg.URL("postgres"))
			if err := record(t.Context(), conn); err != nil {
				t.Fatal(err)
			}
			if err := pg.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := pg.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			again, err := pgx.Connect(t.Context(), pg.URL("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // the cluster goes with the test
			if has, err := deadletter.Has(t.Context(), again, "walrelay", "s", letter(1).Position); err != nil || !has {
				t.Errorf("Has after the crash = %v, %v; want true", has, err)
			}
		})
	}
}

func TestAcceptingAReasonLastsForItsTime(t *testing.T) {
	t.Parallel()
	conn := migrated(t, envtest.SharedPostgres(t))
	if ok, err := deadletter.Accepted(t.Context(), conn, "walrelay", "s", "too_large"); err != nil || ok {
		t.Fatalf("Accepted before = %v, %v; want false", ok, err)
	}
	if err := deadletter.Accept(t.Context(), conn, "walrelay", "s", "too_large", "ann"); err != nil {
		t.Fatal(err)
	}
	if ok, err := deadletter.Accepted(t.Context(), conn, "walrelay", "s", "too_large"); err != nil || !ok {
		t.Errorf("Accepted = %v, %v; want true", ok, err)
	}
	if ok, err := deadletter.Accepted(t.Context(), conn, "walrelay", "s", "null_id"); err != nil || ok {
		t.Errorf("Accepted of another reason = %v, %v; want false", ok, err)
	}
}
