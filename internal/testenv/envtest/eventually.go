package envtest

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Eventually calls check every few milliseconds until it returns nil. When that
// does not come within the deadline the test fails with check's last error.
func Eventually(tb testing.TB, deadline time.Duration, check func() error) {
	tb.Helper()
	// Cleanup functions wait for things too, when the test's context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), deadline)
	defer cancel()
	var last error
	err := until(ctx, func() error {
		last = check()
		return last
	})
	if err != nil {
		tb.Fatalf("not within %s: %v", deadline, last)
	}
}

// until calls check until it returns nil, or returns its last error when ctx
// has ended.
func until(ctx context.Context, check func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		last := check()
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(last, ctx.Err())
		case <-tick.C:
		}
	}
}
