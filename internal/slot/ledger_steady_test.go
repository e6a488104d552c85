package slot_test

import (
	"testing"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/slot"
)

// flight is how many transactions are ahead of their acknowledgements.
const flight = 64

// ledgerStep lets one transaction of n events pass, and settles one that came
// before it, event by event.
func ledgerStep(l *slot.Ledger, tx uint64, n int) error {
	l.Begin()
	l.Commit(envelope.LSN(tx), n)
	l.Keepalive(envelope.LSN(tx))
	if tx <= flight {
		return nil
	}
	for range n {
		if err := l.Stored(tx-flight, 1); err != nil {
			return err
		}
	}
	return nil
}

// Not parallel: AllocsPerRun counts what any goroutine allocates.
func TestTheLedgerAllocatesNothingInTheLongRun(t *testing.T) {
	var l slot.Ledger
	tx := uint64(0)
	step := func() {
		tx++
		if err := ledgerStep(&l, tx, 3); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 * flight {
		step()
	}
	if got := testing.AllocsPerRun(1000, step); got != 0 {
		t.Errorf("%v allocations a transaction, want 0", got)
	}
	if got := l.Confirmed(); got != envelope.LSN(tx-flight) {
		t.Errorf("confirmed %v, want %v", got, envelope.LSN(tx-flight))
	}
}
