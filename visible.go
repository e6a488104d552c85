package walrelay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgreSQL decodes a transaction as soon as its commit is written. Where that
// waits for a synchronous standby, its writer and everybody who looks learn of
// it only when the standby has confirmed, and an event can reach a consumer
// before its row can be read. With Config.WaitVisible the reader waits likewise:
// an event is passed on once a snapshot sees its transaction. One snapshot
// serves for all transactions that it sees, so a relay that is behind asks
// rarely, and one that is not asks once a transaction.
//
// The commit stands in the write-ahead log all the while: whatever ends the
// session meanwhile, the slot sends the transaction again.

// visibleSoon is how long a commit that waits is nothing to speak of.
const visibleSoon = time.Second

// awaitVisible waits until others see the open transaction.
func (r *reader) awaitVisible(ctx context.Context) error {
	if !r.s.cfg.WaitVisible || r.visible {
		return nil
	}
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if seen, err := r.isVisible(ctx); seen || err != nil {
			return err
		}
		if time.Since(began) > visibleSoon {
			break
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
	return r.hold(ctx, fmt.Sprintf("transaction %d is committed and nobody can see it yet: a synchronous standby has not confirmed it (wait_visible)", r.xid), r.isVisible)
}

// isVisible asks the newest snapshot that is known, then PostgreSQL for
// another one.
func (r *reader) isVisible(ctx context.Context) (bool, error) {
	if r.snapshot.sees(r.xid) {
		r.visible = true
		return true, nil
	}
	err := r.s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var text string
		if err := conn.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&text); err != nil {
			return fmt.Errorf("ask for a snapshot: %w", err)
		}
		var err error
		r.snapshot, err = parseSnapshot(text)
		return err
	})
	if err != nil {
		return false, err
	}
	r.visible = r.snapshot.sees(r.xid)
	return r.visible, nil
}
