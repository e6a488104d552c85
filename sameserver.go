package walrelay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/slot"
)

// checkSameServer sees that the SQL connection and the replication connection
// lead to the same database of the same primary. Two URLs may say otherwise,
// and of several hosts the first one can come or go between two connects.
func (s *session) checkSameServer(ctx context.Context) error {
	var (
		standby          bool
		system, database string
		timeline         int64
	)
	err := s.sql.do(ctx, func(ctx context.Context, q *pgx.Conn) error {
		return q.QueryRow(ctx, `SELECT pg_is_in_recovery(), system_identifier::text, current_database()::text,
			CASE WHEN pg_is_in_recovery() THEN 0
				ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END
			FROM pg_control_system()`).Scan(&standby, &system, &database, &timeline)
	})
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" {
		return nil // somebody took the right away that everybody has; the slot's own checks remain
	}
	if err != nil {
		return fmt.Errorf("compare the servers behind both connections: %w", err)
	}
	server := s.repl.Server()
	differ := func(problem string) error {
		return &slot.MisfitError{
			Object: "the replication connection", Problem: problem,
			Fix: "let --database-url and --replication-url lead to the same database of the primary",
		}
	}
	switch {
	case standby:
		return &slot.MisfitError{
			Object: "the SQL connection", Problem: "leads to a standby, where nothing can be written",
			Fix: "name the primary, or all hosts: of several the primary is taken",
		}
	case system != server.SystemID:
		return differ(fmt.Sprintf("leads to another cluster (system identifier %s) than the SQL connection (%s)", server.SystemID, system))
	case database != server.Database:
		return differ(fmt.Sprintf("leads to database %q, the SQL connection to %q", server.Database, database))
	case timeline != int64(server.Timeline):
		return differ(fmt.Sprintf("leads to a server on timeline %d, the SQL connection to one on timeline %d", server.Timeline, timeline))
	}
	return nil
}
