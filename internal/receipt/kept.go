package receipt

import (
	"context"
	"fmt"
	"time"
)

// DefaultRetention is how long receipts are kept where nobody says otherwise.
const DefaultRetention = 30 * 24 * time.Hour

// Kept is how long the running service keeps the receipts of a consumer: the
// longest time that one of its processes has noted, or [DefaultRetention].
type Kept struct {
	Retention time.Duration
	ForEver   bool
}

func (k Kept) String() string {
	if k.ForEver {
		return "for ever"
	}
	return k.Retention.String()
}

// Kept reads what the service has noted.
func (c Cleaner) Kept(ctx context.Context) (k Kept, err error) {
	var milliseconds int64
	err = c.Within(ctx, func(tx Tx) error {
		return tx.Query(ctx, c.text(`SELECT coalesce(bool_or(kept_for_ever), false), coalesce((extract(epoch FROM max(receipt_retention)) * 1000)::bigint, 0)
			FROM $SCHEMA.consumer WHERE consumer = $1`), []any{c.Consumer}, func(scan func(...any) error) error { return scan(&k.ForEver, &milliseconds) })
	})
	if err != nil {
		return k, fmt.Errorf("read how long receipts of consumer %q are kept: %w", c.Consumer, err)
	}
	if k.Retention = time.Duration(milliseconds) * time.Millisecond; k.Retention == 0 {
		k.Retention = DefaultRetention
	}
	return k, nil
}

// Any says whether the consumer has receipts at all: a service in another
// language leaves nothing else.
func (c Cleaner) Any(ctx context.Context) (found bool, err error) {
	err = c.Within(ctx, func(tx Tx) error {
		return tx.Query(ctx, c.text(`SELECT EXISTS (SELECT FROM $SCHEMA.receipt WHERE consumer = $1)`), []any{c.Consumer},
			func(scan func(...any) error) error { return scan(&found) })
	})
	if err != nil {
		return false, fmt.Errorf("look for receipts of consumer %q: %w", c.Consumer, err)
	}
	return found, nil
}
