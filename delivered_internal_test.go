package walrelay

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// I7: what was delivered is remembered whole, in memory or beside it.
func TestWhatWasDeliveredIsRememberedBeyondMemory(t *testing.T) {
	for _, c := range []struct {
		name    string
		most    int
		noFile  bool
		inMind  int // at most
		trouble string
	}{
		{name: "in memory", most: 1000, inMind: 100},
		{name: "in a file", most: 7, inMind: 7},
		{name: "no file can be had", most: 7, noFile: true, inMind: 100, trouble: "TMPDIR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.noFile {
				t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
			}
			var d delivery
			d.add("before it is wanted")
			d.begin(c.most)
			t.Cleanup(d.end)
			want := map[keyed]bool{}
			for i := range 100 {
				d.add(fmt.Sprint(i))
				want[keyOf(fmt.Sprint(i))] = true
			}
			for range 2 { // it is read once for each portion
				got := map[keyed]bool{}
				if err := d.each(func(k keyed) error { got[k] = true; return nil }); err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%d are remembered, want %d", len(got), len(want))
				}
			}
			if len(d.keys) > c.inMind {
				t.Errorf("%d are in memory, want %d at most", len(d.keys), c.inMind)
			}
			if err := d.trouble(); c.trouble == "" && err != nil || c.trouble != "" && (err == nil || !strings.Contains(err.Error(), c.trouble)) {
				t.Errorf("trouble = %v, want one that has %q", err, c.trouble)
			}
			d.end()
			d.add("afterwards")
			if err := d.each(func(keyed) error { return fmt.Errorf("something is remembered") }); err != nil {
				t.Error(err)
			}
		})
	}
}
