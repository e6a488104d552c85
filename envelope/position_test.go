package envelope_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/walrelay/walrelay/envelope"
)

func TestAnLSNIsPrintedAsPostgreSQLDoes(t *testing.T) {
	t.Parallel()
	for lsn, want := range map[envelope.LSN]string{
		0: "0/0", 1: "0/1", 0x16B3748: "0/16B3748", 1 << 32: "1/0", 0x16B374D848: "16/B374D848", ^envelope.LSN(0): "FFFFFFFF/FFFFFFFF",
	} {
		if got := lsn.String(); got != want {
			t.Errorf("LSN(%d) = %s, want %s", uint64(lsn), got, want)
		}
		if got, err := envelope.ParseLSN(want); err != nil || got != lsn {
			t.Errorf("ParseLSN(%q) = %d, %v, want %d", want, got, err, lsn)
		}
	}
	if got, err := envelope.ParseLSN("16/b374d848"); err != nil || got != 0x16B374D848 {
		t.Errorf("ParseLSN of lower case = %v, %v", got, err)
	}
	for _, s := range []string{"", "/", "0", "0/", "/0", "0/0/0", "g/0", "0/123456789", "+1/0", "0/-1", " 0/0", "0x1/0"} {
		if got, err := envelope.ParseLSN(s); err == nil {
			t.Errorf("ParseLSN(%q) = %s, want an error", s, got)
		}
	}
}

func TestPositionsAreInCommitOrder(t *testing.T) {
	t.Parallel()
	ordered := []envelope.Position{
		{},
		{Epoch: 1, Commit: 0x10},
		{Epoch: 1, Commit: 0x10, Index: 1},
		{Epoch: 1, Commit: 0x10, Index: 10},
		{Epoch: 1, Commit: 0x100000000},
		{Epoch: 2, Commit: 0x5},
	}
	if !slices.IsSortedFunc(ordered, envelope.Position.Compare) {
		t.Error("Compare does not order by epoch, commit LSN, index")
	}
	for i, p := range ordered {
		if got := p.Compare(p); got != 0 {
			t.Errorf("%s.Compare(itself) = %d, want 0", p, got)
		}
		if got, want := p.IsZero(), i == 0; got != want {
			t.Errorf("%s.IsZero() = %t, want %t", p, got, want)
		}
	}
}

func TestAMalformedPositionIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "1", "1/2", "1/0/1", "/0/1/0", "1/0/1/", "1//1/0", "-1/0/1/0", "+1/0/1/0", "4294967296/0/1/0",
		"1/0/1/18446744073709551616", "1/0/1/+1", "1/0/1/0/0", "1/0/1/x", "x/0/1/0",
	} {
		if got, err := envelope.ParsePosition(s); err == nil {
			t.Errorf("ParsePosition(%q) = %s, want an error", s, got)
		}
	}
}

func TestAPositionComesBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := envelope.Position{
			Epoch:  rapid.Uint32().Draw(t, "epoch"),
			Commit: envelope.LSN(rapid.Uint64().Draw(t, "commit")),
			Index:  rapid.Uint64().Draw(t, "index"),
		}
		if got, err := envelope.ParsePosition(p.String()); err != nil || got != p {
			t.Errorf("ParsePosition(%q) = %v, %v", p, got, err)
		}
	})
}

func FuzzParsePosition(f *testing.F) {
	for _, s := range []string{"1/0/16B3748/0", "0/0/0/0", "1/0/0", "", "4294967295/FFFFFFFF/FFFFFFFF/18446744073709551615"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := envelope.ParsePosition(s)
		if err != nil {
			return
		}
		if again, err := envelope.ParsePosition(p.String()); err != nil || again != p {
			t.Errorf("%q is read as %s, and that as %s, %v", s, p, again, err)
		}
	})
}

func FuzzParseLSN(f *testing.F) {
	for _, s := range []string{"0/0", "16/B374D848", "g/0", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := envelope.ParseLSN(s)
		if err != nil {
			return
		}
		trim := func(s string) string {
			high, low, _ := strings.Cut(strings.ToUpper(s), "/")
			zero := func(s string) string { return max(strings.TrimLeft(s, "0"), "0") }
			return zero(high) + "/" + zero(low)
		}
		if got, want := l.String(), trim(s); got != want {
			t.Errorf("ParseLSN(%q) = %s, want %s", s, got, want)
		}
	})
}
