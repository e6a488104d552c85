package witness_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/witness"
)

func TestA38JudgeTellsHistoriesApart(t *testing.T) {
	t.Parallel()
	known := []witness.Epoch{
		{Number: 1, SystemID: "70", Timeline: 1, FirstLSN: 0x100},
		{Number: 2, SystemID: "71", Timeline: 3, FirstLSN: 0x200},
	}
	history := []byte("1\t0/5000000\tno recovery target specified\n\n2\t0/6000000\tx\n3\t1/700A8F0\tno recovery target specified\n")
	for name, c := range map[string]struct {
		epochs []witness.Epoch
		now    witness.Identity
		want   witness.Judgement
		at     envelope.LSN
		err    string
	}{
		"first start":             {nil, witness.Identity{SystemID: "71", Timeline: 9}, witness.First, 0, ""},
		"same":                    {known, witness.Identity{SystemID: "71", Timeline: 3}, witness.Same, 0, ""},
		"promotion":               {known, witness.Identity{SystemID: "71", Timeline: 4, History: history}, witness.Promoted, 0x1_0700_A8F0, ""},
		"promoted from elsewhere": {known, witness.Identity{SystemID: "71", Timeline: 4, History: []byte("2\t0/6000000\tx\n")}, 0, 0, "timeline 3"},
		"history is missing":      {known, witness.Identity{SystemID: "71", Timeline: 4}, 0, 0, "timeline 3"},
		"history is damaged":      {known, witness.Identity{SystemID: "71", Timeline: 4, History: []byte("3\tnowhere\n")}, 0, 0, "nowhere"},
		"an old primary":          {known, witness.Identity{SystemID: "71", Timeline: 2}, 0, 0, "earlier"},
		"another cluster":         {known, witness.Identity{SystemID: "70", Timeline: 3}, 0, 0, "another cluster"},
	} {
		got, at, err := witness.Judge(c.epochs, c.now)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "walrelay adopt --database") {
				t.Errorf("%s: Judge() = %v, want an error with %q and the command", name, err, c.err)
			}
			continue
		}
		if err != nil || got != c.want || at != c.at {
			t.Errorf("%s: Judge() = %v, %v, %v, want %v, %v, nil", name, got, at, err, c.want, c.at)
		}
	}
}

func TestAnEpochIsNotedOnce(t *testing.T) {
	t.Parallel()
	conn := connect(t, newDatabase(t))
	first := witness.Epoch{Number: 1, SystemID: "18446744073709551615", Timeline: 1<<32 - 1, FirstLSN: 0xFFFF_FFFF_FFFF_FFFF}
	second := witness.Epoch{Number: 2, SystemID: "7", Timeline: 2, FirstLSN: 1}
	for _, e := range []witness.Epoch{second, first, first, {Number: 1, SystemID: "8"}} {
		if err := witness.BeginEpoch(t.Context(), conn, "walrelay", "shop", e, "first start", "test"); err != nil {
			t.Fatalf("BeginEpoch() = %v, want nil", err)
		}
	}
	got, err := witness.Epochs(t.Context(), conn, "walrelay", "shop")
	if diff := cmp.Diff([]witness.Epoch{first, second}, got, cmpopts.IgnoreFields(witness.Epoch{}, "At")); err != nil || diff != "" {
		t.Errorf("Epochs() = %v (-want +got):\n%s", err, diff)
	}
	if got, err := witness.Epochs(t.Context(), conn, "walrelay", "other"); err != nil || len(got) != 0 {
		t.Errorf("Epochs() of another source = %v, %v, want none", got, err)
	}
}

func TestACommitBelowTheSwitchPointKeepsItsEpoch(t *testing.T) {
	t.Parallel()
	epochs := []witness.Epoch{
		{Number: 1, SystemID: "70", Timeline: 1, FirstLSN: 0x100},
		{Number: 2, SystemID: "71", Timeline: 2, FirstLSN: 0x900}, // another cluster: adopted
		{Number: 3, SystemID: "71", Timeline: 3, FirstLSN: 0x1000},
		{Number: 4, SystemID: "71", Timeline: 4, FirstLSN: 0x2000},
	}
	for lsn, want := range map[envelope.LSN]uint32{0x50: 2, 0xFFF: 2, 0x1000: 3, 0x1FFF: 3, 0x2000: 4, 0x9000: 4} {
		if got := witness.EpochOf(epochs, lsn); got != want {
			t.Errorf("EpochOf(%v) = %d, want %d", lsn, got, want)
		}
	}
	if got := witness.EpochOf(epochs[:1], 0x50); got != 1 {
		t.Errorf("EpochOf(before the first start) = %d, want 1", got)
	}
	if diff := cmp.Diff(map[uint32]envelope.LSN{2: 0x1000, 3: 0x2000}, witness.Left(epochs)); diff != "" {
		t.Errorf("Left() differs (-want +got):\n%s", diff)
	}
}
