package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/walrelay/walrelay/internal/causation"
	"github.com/walrelay/walrelay/outbox"
	"github.com/walrelay/walrelay/walrelaytest"
)

func placed(id string, payload any) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: id, Type: "order.placed", Payload: payload}
}

func TestAppendedValuesArriveAsTheyAre(t *testing.T) {
	drivers(t, func(t *testing.T, app func(outbox.Table, ...outbox.Event) error, query func(string) string) {
		ids := []string{`a"b`, `a\b`, `{a,b}`, `NULL`, `null`, `'; --`, ` a `, `日本`, `%41`, strings.Repeat("x", 255)}
		events := make([]outbox.Event, len(ids))
		for i, id := range ids {
			events[i] = placed(id, map[string]string{"id": id}).WithHeader("X-Id", strings.TrimSpace(id))
		}
		if err := app(outbox.Table{}, events...); err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(ids)
		if err != nil {
			t.Fatal(err)
		}
		for _, column := range []string{"aggregate_id", "payload->>'id'"} {
			var got, wanted []string
			text := query(`SELECT json_agg(` + column + ` ORDER BY seq)::text FROM walrelay.outbox`)
			if err := errors.Join(json.Unmarshal([]byte(text), &got), json.Unmarshal(want, &wanted)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wanted, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", column, diff)
			}
		}
	})
}

func TestManyEventsKeepTheirOrder(t *testing.T) {
	drivers(t, func(t *testing.T, app func(outbox.Table, ...outbox.Event) error, query func(string) string) {
		events := make([]outbox.Event, 5000)
		for i := range events {
			events[i] = placed(fmt.Sprint(i), i)
		}
		if err := app(outbox.Table{}, events...); err != nil {
			t.Fatal(err)
		}
		// The rows' places in the table are the order of the inserts in the WAL.
		got := query(`SELECT (array_agg(aggregate_id ORDER BY ctid) = array_agg(aggregate_id ORDER BY aggregate_id::int)
			AND array_agg(aggregate_id ORDER BY seq) = array_agg(aggregate_id ORDER BY aggregate_id::int)
			AND array_agg(aggregate_id ORDER BY id) = array_agg(aggregate_id ORDER BY aggregate_id::int))::text FROM walrelay.outbox`)
		if got != "true" {
			t.Errorf("5000 events of one call are in order of seq, of place and of id: %s, want true", got)
		}
	})
}

func TestAMissingIDBecomesAVersion7AndAGivenOneStays(t *testing.T) {
	drivers(t, func(t *testing.T, app func(outbox.Table, ...outbox.Event) error, query func(string) string) {
		own, err := outbox.NewID()
		if err != nil {
			t.Fatal(err)
		}
		if err := app(outbox.Table{}, placed("1", 1).WithID(own), placed("2", 2)); err != nil {
			t.Fatal(err)
		}
		if got := query(`SELECT id::text FROM walrelay.outbox WHERE aggregate_id = '1'`); got != own.String() {
			t.Errorf("id = %s, want %s", got, own)
		}
		made, err := uuid.Parse(query(`SELECT id::text FROM walrelay.outbox WHERE aggregate_id = '2'`))
		if err != nil || made.Version() != 7 {
			t.Errorf("made id %s has version %v, want 7 (%v)", made, made.Version(), err)
		}
	})
}

func TestA26RawPayloadsKeepTheirDigits(t *testing.T) {
	drivers(t, func(t *testing.T, app func(outbox.Table, ...outbox.Event) error, query func(string) string) {
		const raw = `{"d": 1.10, "e": 100000000000000000000000000000, "n": 12345678901234567890123}`
		if err := app(outbox.Table{}, placed("1", json.RawMessage(raw)), placed("2", []byte(raw))); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"1", "2"} {
			if got := query(`SELECT payload::text FROM walrelay.outbox WHERE aggregate_id = '` + id + `'`); got != raw {
				t.Errorf("payload = %s, want %s", got, raw)
			}
		}
	})
}

func TestA27NullPayloadsStayApart(t *testing.T) {
	drivers(t, func(t *testing.T, app func(outbox.Table, ...outbox.Event) error, query func(string) string) {
		var nilMap map[string]int
		if err := app(outbox.Table{}, placed("nil", nil), placed("map", nilMap), placed("empty", struct{}{}), placed("text", "")); err != nil {
			t.Fatal(err)
		}
		want := `{"map": null, "nil": null, "text": "", "empty": {}}`
		if got := query(`SELECT jsonb_object_agg(aggregate_id, payload)::text FROM walrelay.outbox`); got != want {
			t.Errorf("payloads = %s, want %s", got, want)
		}
	})
}

func TestOtherTablesTakeTheirKindOfPayload(t *testing.T) {
	drivers(t, func(t *testing.T, app func(outbox.Table, ...outbox.Event) error, query func(string) string) {
		for _, tc := range []struct {
			kind    outbox.Payload
			payload any
			want    string
		}{
			{outbox.PayloadBytes, []byte("\x00\xff\\\""), `\x00ff5c22`},
			{outbox.PayloadBytes, nil, "NULL"},
			{outbox.PayloadBytes, []byte{}, `\x`},
			{outbox.PayloadText, []byte("plain \"text\""), `plain "text"`},
			{outbox.PayloadText, nil, "NULL"},
			{outbox.PayloadText, []byte{}, ""},
			{outbox.PayloadJSON, json.RawMessage(`{ "b":1, "a":2,"a":3 }`), `{ "b":1, "a":2,"a":3 }`},
			{outbox.PayloadJSON, nil, "null"},
		} {
			query(`CREATE SCHEMA IF NOT EXISTS "Shop"`)
			query(`DROP TABLE IF EXISTS "Shop"."Out""box"`)
			query(`CREATE TABLE "Shop"."Out""box" (id uuid, aggregate_type text, aggregate_id text, event_type text, payload ` + string(tc.kind) + `, headers jsonb)`)
			table := outbox.Table{Schema: "Shop", Name: `Out"box`, Payload: tc.kind}
			if err := app(table, placed("1", tc.payload)); err != nil {
				t.Fatal(err)
			}
			if got := query(`SELECT coalesce(payload::text, 'NULL') FROM ` + table.String()); got != tc.want {
				t.Errorf("%s: payload = %s, want %s", tc.kind, got, tc.want)
			}
		}
	})
}

func TestAnIDThatIsThereAlreadyIsAnErrorWithTheFix(t *testing.T) {
	drivers(t, func(t *testing.T, app func(outbox.Table, ...outbox.Event) error, _ func(string) string) {
		id, err := outbox.NewID()
		if err != nil {
			t.Fatal(err)
		}
		err = app(outbox.Table{}, placed("1", 1).WithID(id), placed("2", 2).WithID(id))
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "23505" || !strings.Contains(err.Error(), "new event a new id") {
			t.Errorf("Append of one id twice: %v, want a unique violation with the fix", err)
		}
	})
}

func TestAMissingTableNamesTheCommand(t *testing.T) {
	drivers(t, func(t *testing.T, app func(outbox.Table, ...outbox.Event) error, _ func(string) string) {
		err := app(outbox.Table{Schema: "elsewhere"}, placed("1", 1))
		if err == nil || !strings.Contains(err.Error(), "elsewhere.outbox") || !strings.Contains(err.Error(), "`walrelay migrate`") {
			t.Errorf("Append without a table: %v, want the table and the command", err)
		}
	})
}

func TestEveryProblemOfEveryEventIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	events := []outbox.Event{
		placed("1", 1),
		{AggregateType: "order..x", Type: strings.Repeat("t", 256), AggregateID: "a\nb", Payload: math.Inf(1), Headers: map[string]string{
			"Nats-Rollup": "all", "WALRELAY-Source": "s", "status": "1", // A56
			"": "v", "a b": "v", "a:b": "v", "clé": "v", "a\r\nb": "v", "X/Y": "v", // A57
			"Break": "v\r\nNats-Msg-Id: 1", "Blank": " x ", "Twice": "1", "twice": "2",
		}},
		{AggregateType: ".order", Type: "order.", AggregateID: strings.Repeat("é", 128), Payload: json.RawMessage(`{"a":`)},
	}
	p := pool(t, database(t))
	tx := begin(t, p)
	err := outbox.Append(t.Context(), tx, events...)
	var invalid *outbox.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("Append: %v, want an InvalidError", err)
	}
	got := map[string]int{}
	for _, p := range invalid.Problems {
		got[fmt.Sprintf("%d %s", p.Event, p.Field)]++
	}
	want := map[string]int{
		"1 AggregateType": 1, "1 Type": 1, "1 AggregateID": 1, "1 Payload": 1,
		`1 Headers["Nats-Rollup"]`: 1, `1 Headers["WALRELAY-Source"]`: 1, `1 Headers["status"]`: 1,
		`1 Headers[""]`: 1, `1 Headers["a b"]`: 1, `1 Headers["a:b"]`: 1, `1 Headers["clé"]`: 1, `1 Headers["a\r\nb"]`: 1,
		`1 Headers["X/Y"]`: 1, `1 Headers["Break"]`: 1, `1 Headers["Blank"]`: 1, `1 Headers["twice"]`: 1,
		"2 AggregateType": 1, "2 Type": 1, "2 AggregateID": 1, "2 Payload": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	// I10: no value of the event is in the error.
	for _, value := range []string{"all", "Msg-Id", " x ", "éé"} {
		if strings.Contains(err.Error(), value) {
			t.Errorf("the error shows the value %q: %v", value, err)
		}
	}
	// The transaction is as it was.
	walrelaytest.AssertNothingAppended(t, tx, walrelaytest.Match{})
	if err := outbox.Append(t.Context(), tx, placed("1", 1)); err != nil {
		t.Errorf("Append after an InvalidError: %v", err)
	}
}

func TestPayloadsThatTheColumnRefusesAreRefusedBeforeTheWire(t *testing.T) {
	t.Parallel()
	tx := begin(t, pool(t, database(t)))
	for name, payload := range map[string]any{
		"NUL":             json.RawMessage(`"a\u0000b"`),
		"half a pair":     json.RawMessage(`"\ud83d"`),
		"other half":      json.RawMessage(`"\ude00"`),
		"pair with text":  json.RawMessage(`"\ud83dabcdefg"`),
		"not JSON":        []byte("hello"),
		"empty":           []byte{},
		"nil slice":       []byte(nil),
		"channel":         make(chan int),
		"not UTF-8":       json.RawMessage("\"\xff\""),
		"too large":       strings.Repeat("x", 1<<20),
		"large as jsonb":  json.RawMessage("[" + strings.Repeat("1,", 1<<19-4096) + "1]"),
		"NUL in a struct": struct{ A string }{"\x00"},
	} {
		var invalid *outbox.InvalidError
		if err := outbox.Append(t.Context(), tx, placed("1", payload)); !errors.As(err, &invalid) || invalid.Problems[0].Field != "Payload" {
			t.Errorf("%s: %v, want an InvalidError for Payload", name, err)
		}
	}
	for name, payload := range map[string]any{
		"pair":            json.RawMessage(`"\ud83d\ude00"`),
		"escaped escape":  json.RawMessage(`"\\u0000"`),
		"NUL in a name":   json.RawMessage(`"\\\\u0000"`),
		"blanks outside":  json.RawMessage("[1," + strings.Repeat(" ", 1<<19) + "2]"),
		"digits":          json.RawMessage(`1e400`),
		"markup":          "<b>&",
		"invalid in text": "\xff",
	} {
		if err := outbox.Append(t.Context(), tx, placed("1", payload)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestTraceContextAndCauseGoAlong(t *testing.T) {
	t.Parallel()
	tx := begin(t, pool(t, database(t)))
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	ctx = causation.With(ctx, causation.Cause{EventID: "cause"})
	const parent = "00-01000000000000000000000000000000-0200000000000000-01"
	if err := outbox.Append(ctx, tx, placed("1", 1)); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Append(outbox.WithCorrelation(ctx, "request"), tx, placed("2", 1).WithHeader("Traceparent", "own")); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]map[string]string{
		"1": {"traceparent": parent, outbox.HeaderCausationID: "cause", outbox.HeaderCorrelationID: "cause"},
		"2": {"Traceparent": "own", outbox.HeaderCausationID: "cause", outbox.HeaderCorrelationID: "request"},
	} {
		got := walrelaytest.AssertAppended(t, tx, walrelaytest.Match{AggregateID: id})
		if diff := cmp.Diff(want, got[0].Headers); diff != "" {
			t.Errorf("headers of %s (-want +got):\n%s", id, diff)
		}
	}
}

func TestTheTypedFormFillsInTheNames(t *testing.T) {
	t.Parallel()
	type orderPlaced struct {
		Amount int `json:"amount"`
	}
	event := outbox.Type[orderPlaced]("order", "order.placed")
	tx := begin(t, pool(t, database(t)))
	if err := outbox.Append(t.Context(), tx, event.New("42", orderPlaced{Amount: 7})); err != nil {
		t.Fatal(err)
	}
	walrelaytest.AssertAppended(t, tx, walrelaytest.Match{
		AggregateType: event.AggregateType(), AggregateID: "42", Type: event.Name(), Payload: orderPlaced{Amount: 7},
	})
}

func TestARolledBackTransactionHasAppendedNothing(t *testing.T) { // I1
	t.Parallel()
	p := pool(t, database(t))
	tx := begin(t, p)
	if err := outbox.Append(t.Context(), tx, placed("1", 1)); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	walrelaytest.AssertNothingAppended(t, begin(t, p), walrelaytest.Match{})
}

func TestEveryModeOfAPoolerWorks(t *testing.T) {
	t.Parallel()
	url := database(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeCacheDescribe} {
		cfg, err := pgxpool.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.DefaultQueryExecMode = mode
		p, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		tx := begin(t, p)
		if err := outbox.Append(t.Context(), tx, placed(`a"b\`, map[string]string{"q": `"\`}), placed("2", nil)); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
}

func TestANilTransactionIsAnError(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		outbox.Append(t.Context(), nil, placed("1", 1)),
		outbox.AppendSQL(t.Context(), nil, placed("1", 1)),
	} {
		if err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("without a transaction: %v", err)
		}
	}
}
