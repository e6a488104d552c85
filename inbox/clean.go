package inbox

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/walrelay/walrelay/internal/receipt"
)

// cleanEvery is how often old receipts are looked for; never more often than
// takes a twentieth of the time.
const cleanEvery = time.Minute

// receiptTx is a unit as package receipt wants it.
type receiptTx struct{ u unit }

func (t receiptTx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	return t.u.exec(ctx, statement, args...)
}

func (t receiptTx) Query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) error {
	return t.u.query(ctx, statement, args, each)
}

// clean deletes old receipts from time to time, until ctx ends.
func (s *session) clean(ctx context.Context) error {
	for !ended(ctx) {
		began := time.Now()
		s.c.cleanOnce(ctx)
		_ = pause(ctx, max(jitter(cleanEvery), 20*time.Since(began))) // the loop looks at ctx
	}
	return nil
}

// cleanOnce deletes old receipts. Where another process is at it, it leaves
// them to that one.
func (c *Consumer) cleanOnce(ctx context.Context) {
	keep := c.cfg.ReceiptRetention
	noted := keep.Milliseconds()
	if keep < 0 {
		noted = -1 // also where it is less than a millisecond
	}
	err := c.within(ctx, func(u unit) error {
		_, err := u.exec(ctx, c.sql.keeps, c.cfg.Name, noted)
		return err
	})
	if err != nil {
		c.log.DebugContext(ctx, "retention not noted", slog.Any("err", err))
	}
	if keep < 0 || err != nil {
		return
	}
	began := time.Now()
	done, err := receipt.Cleaner{
		Schema: c.cfg.Schema, Consumer: c.cfg.Name, Retention: keep,
		Within: func(ctx context.Context, do func(receipt.Tx) error) error {
			return c.within(ctx, func(u unit) error { return do(receiptTx{u}) })
		},
	}.Run(ctx)
	c.tele.cleaned.Add(ctx, done.Receipts, metric.WithAttributes(c.tele.consumer))
	c.tele.cleaning.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(c.tele.consumer))
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.log.WarnContext(ctx, "old receipts not deleted; tried again later", slog.Any("err", err))
	case done.Receipts > 0:
		c.log.DebugContext(ctx, "old receipts deleted", slog.Int64("count", done.Receipts), slog.Duration("took", time.Since(began)))
	}
}
