package walrelay

import (
	"testing"

	"github.com/walrelay/walrelay/envelope"
)

func TestASnapshotKnowsATransactionByTheLowerHalfOfItsNumber(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		xid  uint32
		want bool
	}{
		{"100:100:", 99, true},
		{"100:100:", 100, false},
		{"100:110:101,105", 101, false},
		{"100:110:101,105", 102, true},
		{"100:110:101,105", 109, true},
		{"100:110:101,105", 110, false},
		{"4294967300:4294967310:4294967305", 9, false}, // 4294967305, which runs
		{"4294967300:4294967310:4294967305", 8, true},
		{"4294967300:4294967310:", 4294967290, true}, // of the epoch before
		{"4294967290:4294967295:", 5, false},         // of the next one
	} {
		s, err := parseSnapshot(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.sees(c.xid); got != c.want {
			t.Errorf("snapshot %s sees %d: %v, want %v", c.text, c.xid, got, c.want)
		}
	}
	for _, text := range []string{"", "1:2", "a:2:", "1:b:", "1:2:x"} {
		if _, err := parseSnapshot(text); err == nil {
			t.Errorf("parseSnapshot(%q) = nil, want an error", text)
		}
	}
}

// I2.
func TestNothingIsConfirmedBehindAnEventThatNoProofCovers(t *testing.T) {
	t.Parallel()
	var c cover
	c.sent(50, 90)
	if got := c.limit(1000); got != 1000 {
		t.Errorf("limit = %v, want all: no stream asks for more", got)
	}
	c.begin(true)
	c.sent(100, 101)
	c.sent(200, 103)
	c.sent(300, 102)
	for _, step := range []struct {
		proof string
		want  envelope.LSN
	}{{"101:101:", 100}, {"102:103:102", 200}, {"102:104:102", 300}, {"104:104:", 1000}} {
		if err := c.proven(step.proof); err != nil {
			t.Fatal(err)
		}
		if got := c.limit(1000); got != step.want {
			t.Errorf("limit after proof %s = %v, want %v", step.proof, got, step.want)
		}
	}
}

func TestAnExportedSnapshotIsMadeReadable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"4661:4659:": "4661:4661:", "100:110:101,105": "100:110:101,105", "7:7:": "7:7:"} {
		if got, err := wellFormed(text); got != want || err != nil {
			t.Errorf("wellFormed(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
}
