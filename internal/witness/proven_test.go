package witness_test

import (
	"testing"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/witness"
)

func TestRecordEndStepsBackOverAPagesHeader(t *testing.T) {
	t.Parallel()
	for next, want := range map[envelope.LSN]envelope.LSN{
		0x16B3748:          0x16B3748,
		0x2000000 + 40:     0x2000000,          // a segment's first page has the long header
		0x2000000 + 24:     0x2000000 + 24,     // within that header: not a place for a record
		0x2000000 + 8192:   0x2000000 + 8192,   // a page's beginning is an end already
		0x2002000 + 24:     0x2002000,          // another page has the short one
		0x2002000 + 40:     0x2002000 + 40,     // and there 40 is a place like any other
		0x1_2004000 + 24:   0x1_2004000,        // beyond 32 bits
		0x1_20040000 + 512: 0x1_20040000 + 512, // anywhere
		0x7FFF002000 - 8:   0x7FFF002000 - 8,   // the last place of a page
		0x7FFF002000 + 48:  0x7FFF002000 + 48,  // behind its first record
	} {
		if got := witness.RecordEnd(next, 8192, 16<<20); got != want {
			t.Errorf("RecordEnd(%v) = %v, want %v", next, got, want)
		}
	}
}
