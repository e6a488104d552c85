package decode_test

import (
	"testing"

	"github.com/walrelay/walrelay/internal/decode"
)

// steady are the messages that must cost no memory once a connection runs.
func steady() []struct {
	name string
	b    []byte
} {
	rel := outbox()
	return []struct {
		name string
		b    []byte
	}{
		{"begin", begin(1, noon, 742)},
		{"insert", insert(rel.ID, outboxRow())},
		{"commit", commit(1, 2, noon)},
		{"update", update(rel.ID, 'K', outboxRow(), outboxRow())},
		{"delete", remove(rel.ID, 'K', outboxRow())},
		{"truncate", truncate(0, rel.ID, rel.ID)},
		{"type", typeName(16400, "s", "mood")},
		{"origin", origin(1, "upstream")},
		{"logical", logical(1, 1, "prefix", []byte("content"))},
	}
}

// warm gives a Decoder and a Message that have seen every kind of message.
func warm(tb testing.TB) (*decode.Decoder, *decode.Message) {
	tb.Helper()
	d, m := new(decode.Decoder), new(decode.Message)
	if err := d.Decode(relation(outbox()), m); err != nil {
		tb.Fatal(err)
	}
	for _, s := range steady() {
		if err := d.Decode(s.b, m); err != nil {
			tb.Fatal(err)
		}
	}
	return d, m
}

// Not parallel: AllocsPerRun counts what any goroutine allocates.
func TestNothingButARelationAllocates(t *testing.T) {
	d, m := warm(t)
	for _, s := range steady() {
		got := testing.AllocsPerRun(100, func() {
			if err := d.Decode(s.b, m); err != nil {
				t.Fatal(err)
			}
		})
		if got != 0 {
			t.Errorf("Decode(%s) allocates %v times, want 0", s.name, got)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, s := range steady() {
		b.Run(s.name, func(b *testing.B) {
			d, m := warm(b)
			b.ReportAllocs()
			b.SetBytes(int64(len(s.b)))
			for b.Loop() {
				if err := d.Decode(s.b, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
