package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/receipt"
)

// receipts deletes the old receipts of a consumer, the way a running service
// does.
func (c *cleanupCmd) receipts(e *env, conn *pgx.Conn) error {
	box := consumerBox{conn: conn, schema: c.Schema, consumer: c.Consumer}
	cleaner := receipt.Cleaner{
		Schema: c.Schema, Consumer: c.Consumer,
		Within: func(ctx context.Context, do func(receipt.Tx) error) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return do(pgxTx{tx}) })
		},
	}
	found, err := cleaner.Any(e.ctx)
	if err != nil {
		return box.explain(err)
	}
	if !found {
		if err := box.known(e); err != nil {
			return err
		}
	}
	kept, err := cleaner.Kept(e.ctx)
	if err != nil {
		return box.explain(err)
	}
	if cleaner.Retention = c.ReceiptRetention; cleaner.Retention == 0 {
		if kept.ForEver {
			return fmt.Errorf("the service keeps the receipts of consumer %q for ever; give --receipt-retention if some are to be deleted all the same", c.Consumer)
		}
		cleaner.Retention = kept.Retention
	}
	old, err := cleaner.Count(e.ctx)
	if err != nil {
		return box.explain(err)
	}
	fmt.Fprintf(e.stdout, "%d receipts and %d counts of attempts of consumer %q are older than %v.\n", old.Receipts, old.Attempts, c.Consumer, cleaner.Retention)
	if kept.ForEver || cleaner.Retention < kept.Retention {
		fmt.Fprintf(e.stdout, "The service keeps them longer (%s): an event whose receipt is deleted is applied again when it comes again.\n", kept)
	}
	switch {
	case c.DryRun, old.Receipts == 0 && old.Attempts == 0:
		return nil
	case !c.Yes:
		if yes, err := ask(e, "Delete them?"); err != nil || !yes {
			return err
		}
	}
	bar := progress{out: e.stderr, total: old.Receipts}
	cleaner.Progress, cleaner.Patience = bar.show, cleanupPatience
	done, err := cleaner.Run(e.ctx)
	bar.end()
	fmt.Fprintf(e.stdout, "deleted: %d receipts, %d counts of attempts\n", done.Receipts, done.Attempts)
	switch {
	case e.ctx.Err() != nil:
		return errors.New("stopped before all were deleted; run it again for the rest")
	case err != nil:
		return err
	case done.Busy:
		return fmt.Errorf("another cleaner of consumer %q is at it, such as the running service; it deletes the rest", c.Consumer)
	}
	return nil
}

// pgxTx is a transaction as package receipt wants it.
type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) Query(ctx context.Context, statement string, args []any, each func(func(...any) error) error) error {
	rows, err := t.tx.Query(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
