package deadletter

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// AcceptFor is how long an acceptance lasts.
const AcceptFor = time.Hour

// Accept lets the refusals of one reason through, however many they are, for
// the next hour. Who asked is recorded.
func Accept(ctx context.Context, q Querier, schema, source, reason, by string) error {
	_, err := q.Exec(ctx, `INSERT INTO `+pgx.Identifier{schema, "job"}.Sanitize()+` (source, kind, arguments, state, asked_by, ended_at)
		VALUES ($1, 'accept', jsonb_build_object('reason', $2::text, 'until', clock_timestamp() + make_interval(secs => $4)), 'done', $3, clock_timestamp())`,
		source, reason, by, AcceptFor.Seconds())
	if err != nil {
		return fmt.Errorf("accept dead letters of reason %q: %w", reason, err)
	}
	return nil
}

// Accepted says whether the refusals of a reason are let through now.
func Accepted(ctx context.Context, q Querier, schema, source, reason string) (bool, error) {
	var yes bool
	err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+pgx.Identifier{schema, "job"}.Sanitize()+`
		WHERE source = $1 AND kind = 'accept' AND arguments->>'reason' = $2 AND (arguments->>'until')::timestamptz > clock_timestamp())`,
		source, reason).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("look whether dead letters of reason %q are accepted: %w", reason, err)
	}
	return yes, nil
}
