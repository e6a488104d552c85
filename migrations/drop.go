package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Ours says whether a publication is there, and whether migrate made it.
func Ours(ctx context.Context, conn *pgx.Conn, publication string) (exists, ours bool, err error) {
	err = conn.QueryRow(ctx, `SELECT coalesce(obj_description(oid, 'pg_publication') = $2, false) FROM pg_publication WHERE pubname = $1`,
		publication, publicationComment).Scan(&ours)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("look for publication %q: %w", publication, err)
	}
	return true, ours, nil
}

// DropPublication drops one that migrate made. Its tables stay.
func DropPublication(ctx context.Context, conn *pgx.Conn, publication string) error {
	if _, err := conn.Exec(ctx, "DROP PUBLICATION "+quote(publication)); err != nil {
		return fmt.Errorf("drop publication %q: %w", publication, err)
	}
	return nil
}
