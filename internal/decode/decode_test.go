package decode_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456000, time.UTC)

// mustDecode decodes into a Message of its own.
func mustDecode(t *testing.T, d *decode.Decoder, b []byte) *decode.Message {
	t.Helper()
	m := new(decode.Message)
	if err := d.Decode(b, m); err != nil {
		t.Fatalf("Decode(%q): %v", b, err)
	}
	return m
}

func TestEachMessageIsDecoded(t *testing.T) {
	t.Parallel()
	small := &decode.Relation{
		ID: 7, Schema: "s", Name: "t", ReplicaIdentity: 'f',
		Columns:    []decode.Column{{Name: "a", TypeOID: 25, TypeMod: -1, Key: true}, {Name: "b", TypeOID: 1042, TypeMod: 14}},
		Generation: 1,
	}
	row := decode.Tuple{text("x"), {Kind: decode.Null}}
	old := decode.Tuple{text("o"), text("old")}
	for _, tc := range []struct {
		name string
		in   wire
		want decode.Message
	}{
		{"begin", begin(0x10_0000_0001, noon, 742), decode.Message{Kind: decode.KindBegin, CommitLSN: 0x10_0000_0001, CommitTime: noon, XID: 742}},
		{"commit", commit(5, 6, noon), decode.Message{Kind: decode.KindCommit, CommitLSN: 5, EndLSN: 6, CommitTime: noon}},
		{"insert", insert(7, row), decode.Message{Kind: decode.KindInsert, Relation: small, Tuple: row}},
		{
			"insert of empty and binary values", insert(7, decode.Tuple{text(""), {Kind: decode.Binary, Data: []byte{0, 1}}}),
			decode.Message{Kind: decode.KindInsert, Relation: small, Tuple: decode.Tuple{text(""), {Kind: decode.Binary, Data: []byte{0, 1}}}},
		},
		{"update", update(7, 0, nil, row), decode.Message{Kind: decode.KindUpdate, Relation: small, Tuple: row}},
		{"update with the old key", update(7, 'K', old, row), decode.Message{Kind: decode.KindUpdate, Relation: small, Tuple: row}},
		{"update with the old row", update(7, 'O', old, row), decode.Message{Kind: decode.KindUpdate, Relation: small, Tuple: row}},
		{
			"update with an unchanged value", update(7, 0, nil, decode.Tuple{text("x"), {Kind: decode.Unchanged}}),
			decode.Message{Kind: decode.KindUpdate, Relation: small, Tuple: decode.Tuple{text("x"), {Kind: decode.Unchanged}}},
		},
		{"delete by key", remove(7, 'K', old), decode.Message{Kind: decode.KindDelete, Relation: small}},
		{"delete with the old row", remove(7, 'O', old), decode.Message{Kind: decode.KindDelete, Relation: small}},
		{"truncate", truncate(0, 7), decode.Message{Kind: decode.KindTruncate, Relations: []*decode.Relation{small}}},
		{
			"truncate of known and unknown tables", truncate(3, 8, 7, 9),
			decode.Message{Kind: decode.KindTruncate, Relations: []*decode.Relation{small}, Cascade: true, RestartIdentity: true},
		},
		{"truncate with cascade", truncate(1), decode.Message{Kind: decode.KindTruncate, Cascade: true}},
		{"truncate with restart identity", truncate(2), decode.Message{Kind: decode.KindTruncate, RestartIdentity: true}},
		{"type", typeName(16400, "s", "mood"), decode.Message{Kind: decode.KindType}},
		{"type in pg_catalog", typeName(16400, "", "mood"), decode.Message{Kind: decode.KindType}},
		{"origin", origin(9, "upstream"), decode.Message{Kind: decode.KindOrigin, OriginName: "upstream"}},
		{
			"transactional message", logical(1, 9, "p", []byte("content\x00")),
			decode.Message{Kind: decode.KindMessage, Transactional: true, Prefix: "p", Content: []byte("content\x00")},
		},
		{"empty message outside of a transaction", logical(0, 9, "", nil), decode.Message{Kind: decode.KindMessage, Content: []byte{}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var d decode.Decoder
			mustDecode(t, &d, relation(small))
			got := mustDecode(t, &d, tc.in)
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("Decode(%q) (-want +got):\n%s", []byte(tc.in), diff)
			}
		})
	}
}

func TestARelationDescribesItsColumns(t *testing.T) {
	t.Parallel()
	var d decode.Decoder
	want := outbox()
	want.Generation = 1
	m := mustDecode(t, &d, relation(want))
	if diff := cmp.Diff(want, m.Relation); diff != "" {
		t.Errorf("Decode(relation) (-want +got):\n%s", diff)
	}
	if got := m.Relation.Column("payload"); got != 4 {
		t.Errorf(`Column("payload") = %d, want 4`, got)
	}
	if got := m.Relation.Column("Payload"); got != -1 {
		t.Errorf(`Column("Payload") = %d, want -1`, got)
	}
}

func TestAnEmptySchemaIsPgCatalog(t *testing.T) {
	t.Parallel()
	var d decode.Decoder
	m := mustDecode(t, &d, relation(&decode.Relation{ID: 1, Name: "pg_class", ReplicaIdentity: 'n'}))
	if got := m.Relation.String(); got != "pg_catalog.pg_class" {
		t.Errorf("String() = %s, want pg_catalog.pg_class", got)
	}
}

func TestA22ANewDescriptionLeavesTheOldOneAlone(t *testing.T) {
	t.Parallel()
	var d decode.Decoder
	first := mustDecode(t, &d, relation(outbox())).Relation
	row := mustDecode(t, &d, insert(first.ID, outboxRow()))

	changed := outbox()
	changed.Name = "outbox2"
	changed.Columns = changed.Columns[:2]
	second := mustDecode(t, &d, relation(changed)).Relation

	want := outbox()
	want.Generation = 1
	if diff := cmp.Diff(want, row.Relation); diff != "" {
		t.Errorf("the row's relation after a new description (-want +got):\n%s", diff)
	}
	if first == second || second.Generation != 2 {
		t.Errorf("second relation: same pointer %v, Generation = %d, want another one of generation 2", first == second, second.Generation)
	}
	if got := mustDecode(t, &d, insert(changed.ID, outboxRow()[:2])).Relation; got != second {
		t.Errorf("the next row refers to %v of generation %d, want generation 2", got, got.Generation)
	}
}

func TestARelationThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	var d decode.Decoder
	mustDecode(t, &d, relation(outbox()))
	var m decode.Message
	broken := relation(outbox()).byte(0)
	if err := d.Decode(broken, &m); err == nil {
		t.Fatal("Decode of a relation with a byte left over succeeded")
	}
	if diff := cmp.Diff(decode.Message{}, m, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("message after an error (-want +got):\n%s", diff)
	}
	if got := mustDecode(t, &d, insert(outbox().ID, outboxRow())).Relation.Generation; got != 1 {
		t.Errorf("Generation = %d, want 1", got)
	}
}

func TestAReusedMessageKeepsNothingOfTheLast(t *testing.T) {
	t.Parallel()
	var d decode.Decoder
	var m decode.Message
	rel := outbox()
	messages := []wire{
		relation(rel), insert(rel.ID, outboxRow()), truncate(3, rel.ID), logical(1, 1, "p", []byte("c")),
		origin(1, "o"), begin(1, noon, 1), commit(1, 2, noon),
	}
	for _, first := range messages {
		for _, second := range messages {
			for _, b := range []wire{first, second} {
				if err := d.Decode(b, &m); err != nil {
					t.Fatal(err)
				}
			}
			var fresh decode.Decoder
			mustDecode(t, &fresh, relation(rel))
			want := mustDecode(t, &fresh, second)
			if diff := cmp.Diff(*want, m, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(decode.Relation{}, "Generation")); diff != "" {
				t.Errorf("%q after %q (-want +got):\n%s", second[:1], first[:1], diff)
			}
		}
	}
}

func TestTheWholeRangeOfCommitTimesIsKept(t *testing.T) {
	t.Parallel()
	epoch := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, us := range []int64{0, 1, -1, 999_999, -1_000_001, math.MaxInt64, math.MinInt64} {
		var d decode.Decoder
		m := mustDecode(t, &d, wire("B").u64(1).u64(uint64(us)).u32(1))
		seconds := m.CommitTime.Unix() - epoch.Unix()
		if got := seconds*1_000_000 + int64(m.CommitTime.Nanosecond()/1000); got != us {
			t.Errorf("CommitTime of %d µs is %v, which is %d µs", us, m.CommitTime, got)
		}
		if m.CommitTime.Location() != time.UTC {
			t.Errorf("CommitTime is in %v, want UTC", m.CommitTime.Location())
		}
	}
}

func TestValuesPointIntoTheMessageAndNotBeyond(t *testing.T) {
	t.Parallel()
	var d decode.Decoder
	rel := outbox()
	mustDecode(t, &d, relation(rel))
	b := insert(rel.ID, outboxRow())
	m := mustDecode(t, &d, b)
	before := bytes.Clone(b)
	for i, v := range m.Tuple {
		if len(v.Data) != cap(v.Data) {
			t.Errorf("value %d: capacity %d, want its length %d", i, cap(v.Data), len(v.Data))
		}
		_ = append(v.Data, "overwritten"...)
	}
	if !bytes.Equal(before, b) {
		t.Error("appending to a value changed the message")
	}
}

func TestBrokenBytesAreNamed(t *testing.T) {
	t.Parallel()
	const secret = "4000-1234-5678-9010"
	row := decode.Tuple{text(secret), text(secret)}
	small := &decode.Relation{ID: 7, Schema: "s", Name: "t", Columns: []decode.Column{{Name: "a"}, {Name: "Pay"}}}
	for _, tc := range []struct {
		name string
		in   []byte
		kind decode.Kind
		at   int
		want string
	}{
		{"nothing", nil, 0, 0, "pgoutput message: kind of message at byte 0: needs 1 bytes and 0 are left"},
		{"unknown", wire("Z"), 0, 0, "unexpected message 'Z': this is not pgoutput of proto_version 1"},
		{"stream start", wire("S"), 0, 0, "unexpected message 'S': streaming must be off"},
		{"stream stop", wire("E"), 0, 0, "unexpected message 'E': streaming must be off"},
		{"stream commit", wire("c"), 0, 0, "unexpected message 'c': streaming must be off"},
		{"stream abort", wire("A"), 0, 0, "unexpected message 'A': streaming must be off"},
		{"begin prepare", wire("b"), 0, 0, "unexpected message 'b': two_phase must be off"},
		{"prepare", wire("P"), 0, 0, "two_phase must be off"},
		{"commit prepared", wire("K"), 0, 0, "two_phase must be off"},
		{"rollback prepared", wire("r"), 0, 0, "two_phase must be off"},
		{"stream prepare", wire("p"), 0, 0, "two_phase must be off"},
		{"short begin", begin(1, noon, 1)[:20], decode.KindBegin, 17, "pgoutput begin message: transaction id at byte 17: needs 4 bytes and 3 are left"},
		{"long commit", commit(1, 2, noon).byte(0), decode.KindCommit, 26, "end at byte 26: 1 bytes are left over"},
		{"endless name", wire("R").u32(1).text("s")[:6], decode.KindRelation, 5, "schema name at byte 5: no zero byte"},
		{
			"too many columns", wire("R").u32(1).text("s").text("t").byte('d').u16(65535), decode.KindRelation, 10,
			"number of columns at byte 10: announces 65535 and the 0 bytes left hold at most 0",
		},
		{
			"short column", wire("R").u32(1).text("s").text("t").byte('d').u16(1).byte(0).text("abcd").u32(25).u16(0), decode.KindRelation, 22,
			"type modifier of a column of s.t at byte 22",
		},
		{"insert of an unknown relation", insert(8, row), decode.KindInsert, 1, "no relation message before it describes relation 8"},
		{"update of an unknown relation", update(8, 0, nil, row), decode.KindUpdate, 1, "describes relation 8"},
		{"delete of an unknown relation", remove(8, 'K', row), decode.KindDelete, 1, "describes relation 8"},
		{"insert of an old row", wire("I").u32(7).byte('O').tuple(row), decode.KindInsert, 5, "kind of row at byte 5: 'O' is none of N"},
		{"delete of a new row", wire("D").u32(7).byte('N').tuple(row), decode.KindDelete, 5, "kind of row at byte 5: 'N' is none of KO"},
		{"two old rows", wire("U").u32(7).byte('K').tuple(nil).byte('K').tuple(nil), decode.KindUpdate, 6, "the row has 0 and s.t was described with 2"},
		{"fewer columns", insert(7, row[:1]), decode.KindInsert, 6, "number of columns at byte 6: the row has 1 and s.t was described with 2"},
		{"more columns", insert(7, append(row[:2:2], row...)), decode.KindInsert, 6, "the row has 4 and s.t was described with 2"},
		{"form", insert(7, decode.Tuple{{}, {}})[:9], decode.KindInsert, 9, `column "Pay" of s.t at byte 9: needs 1 bytes and 0 are left`},
		{"unknown form", append(insert(7, decode.Tuple{{}, {}})[:9:9], 'x'), decode.KindInsert, 9, `column "Pay" of s.t at byte 9: 'x' is none of`},
		{"short value", insert(7, row)[:20], decode.KindInsert, 8, "column a of s.t at byte 8: announces 19 bytes and 7 are left"},
		{"huge value", wire("I").u32(7).byte('N').u16(2).byte('t').u32(math.MaxUint32), decode.KindInsert, 8, "announces 4294967295 bytes and 0 are left"},
		{"insert with more behind", insert(7, row).byte(1), decode.KindInsert, 56, "1 bytes are left over"},
		{"huge truncate", wire("T").u32(math.MaxUint32).byte(0), decode.KindTruncate, 1, "announces 4294967295 and the 0 bytes left hold at most 0"},
		{"truncate with more behind", truncate(0, 1).byte(1), decode.KindTruncate, 10, "1 bytes are left over"},
		{"short type", typeName(1, "s", "t")[:8], decode.KindType, 7, "type name"},
		{"short origin", origin(1, "s")[:10], decode.KindOrigin, 9, "origin name"},
		{"short content", logical(1, 1, "p", []byte(secret))[:20], decode.KindMessage, 12, "length of content at byte 12: announces 19 bytes and 4 are left"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var d decode.Decoder
			mustDecode(t, &d, relation(small))
			err := d.Decode(tc.in, new(decode.Message))
			var de *decode.Error
			if !errors.As(err, &de) {
				t.Fatalf("Decode = %v, want a *decode.Error", err)
			}
			if de.Message != tc.kind || de.At != tc.at || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Decode = %v (kind %v, byte %d), want kind %v, byte %d, %q", err, de.Message, de.At, tc.kind, tc.at, tc.want)
			}
			// I10
			if strings.Contains(err.Error(), secret[:4]) {
				t.Errorf("error shows bytes of a row: %v", err)
			}
		})
	}
}

func TestEveryShorterMessageIsAnError(t *testing.T) {
	t.Parallel()
	rel := outbox()
	for _, b := range []wire{
		begin(1, noon, 1), commit(1, 2, noon), relation(rel), insert(rel.ID, outboxRow()), update(rel.ID, 'O', outboxRow(), outboxRow()),
		remove(rel.ID, 'K', outboxRow()), truncate(0, 1, 2), typeName(1, "s", "t"), origin(1, "o"), logical(1, 1, "p", []byte("c")),
	} {
		for n := range len(b) {
			var d decode.Decoder
			mustDecode(t, &d, relation(rel))
			if err := d.Decode(b[:n:n], new(decode.Message)); err == nil {
				t.Errorf("Decode of the first %d of %d bytes of %q succeeded", n, len(b), b[:1])
			}
		}
	}
}

// Not parallel: it measures what any goroutine allocates.
func TestHostileCountsTakeNoMemory(t *testing.T) {
	var d decode.Decoder
	mustDecode(t, &d, relation(outbox()))
	var m decode.Message
	for _, b := range []wire{
		wire("R").u32(1).text("s").text("t").byte('d').u16(65535),
		wire("I").u32(outbox().ID).byte('N').u16(9).byte('t').u32(math.MaxInt32),
		wire("T").u32(math.MaxInt32).byte(0),
		wire("M").byte(1).u64(1).text("p").u32(math.MaxInt32),
	} {
		const runs = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			if err := d.Decode(b, &m); err == nil {
				t.Fatalf("Decode(%q) succeeded", []byte(b))
			}
		}
		runtime.ReadMemStats(&after)
		// The error itself takes a few small pieces.
		if got := (after.TotalAlloc - before.TotalAlloc) / runs; got > 4096 {
			t.Errorf("Decode(%q) allocates %d bytes, want at most 4096", []byte(b), got)
		}
	}
}

func TestNamesAreQuotedWhereSQLNeedsIt(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ schema, name, want string }{
		{"walrelay", "outbox", "walrelay.outbox"},
		{"public", "Outbox", `public."Outbox"`},
		{"a b", `c"d`, `"a b"."c""d"`},
		{"_x1", "1x", `_x1."1x"`},
		{"order", "orders", `"order".orders`},
		{"public", "müll", `public."müll"`},
		{"", "t.u", `""."t.u"`},
	} {
		r := decode.Relation{Schema: tc.schema, Name: tc.name}
		if got := r.String(); got != tc.want {
			t.Errorf("String() = %s, want %s", got, tc.want)
		}
	}
}

func TestEveryReservedWordOfTheServerIsQuoted(t *testing.T) {
	t.Parallel()
	conn := connect(t.Context(), t, envtest.SharedPostgres(t), nil)
	results, err := conn.Exec(t.Context(), "SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range results[0].Rows {
		r := decode.Relation{Schema: string(row[0]), Name: "t"}
		if got, want := r.String(), fmt.Sprintf(`"%s".t`, row[0]); got != want {
			t.Errorf("String() = %s, want %s", got, want)
		}
	}
}

func TestKindsHaveNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for k := decode.KindBegin; k <= decode.KindMessage; k++ {
		seen[k.String()] = true
	}
	if len(seen) != 10 || seen["unknown"] {
		t.Errorf("names of the kinds: %v, want ten of them", seen)
	}
	if got := decode.Kind(0).String(); got != "unknown" {
		t.Errorf("Kind(0).String() = %s, want unknown", got)
	}
	forms := map[string]bool{}
	for k := decode.Null; k <= decode.Binary; k++ {
		forms[k.String()] = true
	}
	if len(forms) != 4 || forms["unknown"] || decode.ValueKind(9).String() != "unknown" {
		t.Errorf("names of the forms: %v, want four of them", forms)
	}
}
