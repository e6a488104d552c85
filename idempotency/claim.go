package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
)

// A claim is a lease that we hold.
type claim struct {
	Call
	scope string
	// holder is ours alone: a token can come again after a commit whose
	// outcome nobody knows, or after the key's row was deleted by age.
	holder string
	// probe says that the provider must be asked first.
	probe bool
	// age is how long ago the first attempt was when we took the lease.
	age time.Duration
}

// durable makes the commit of its statement outlast a crash of the server,
// whatever the role's settings: an intent that is forgotten is a second call.
const durable = `WITH durable AS MATERIALIZED (SELECT set_config('synchronous_commit', 'on', true))
`

// conflicts bounds how often a statement is repeated that met another one.
const conflicts = 10

// claim takes the lease of a key, or says why not. A stored result comes as
// replay.
func (s *Store) claim(ctx context.Context, scope, key string, o Options) (c claim, replay *Result, err error) {
	holder, err := uuid.NewRandom()
	if err != nil {
		return c, nil, fmt.Errorf("key %q: make a holder's id: %w", key, err)
	}
	c = claim{Call: Call{Key: key, Token: 1, Attempt: 1}, scope: scope, holder: holder.String()}
	for range conflicts {
		var inserted int64
		inserted, err = s.db.exec(ctx, durable+`INSERT INTO `+s.effect+` (scope, key, request, state, token, lease_until, holder, attempts)
SELECT $1, $2, $3, 'running', 1, clock_timestamp() + $4::bigint * interval '1 microsecond', $5, 1 FROM durable
ON CONFLICT (scope, key) DO NOTHING`, scope, key, o.request(), o.Lease.Microseconds(), c.holder)
		if err == nil && inserted == 1 {
			return c, nil, nil
		}
		if err == nil {
			replay, err = s.takeOver(ctx, &c, o)
		}
		// The row was deleted in between, or a stricter isolation level than
		// read committed met another caller.
		if errors.Is(err, errGone) || sqlState(err) == "40001" || sqlState(err) == "40P01" {
			continue
		}
		break
	}
	if err != nil && sqlState(err) == "" {
		s.release(ctx, c, err)
	}
	return c, replay, s.explain(key, err)
}

// release gives back a lease that we may hold without knowing, when the
// connection broke during the commit: nothing was called, and without this the
// outcome would be uncertain for ever. One try: the database may be down.
func (s *Store) release(ctx context.Context, c claim, err error) {
	if _, ok := errors.AsType[answer](err); ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_, _ = s.db.exec(ctx, `UPDATE `+s.effect+` SET lease_until = NULL
WHERE scope = $1 AND key = $2 AND holder = $3 AND state = 'running'`, c.scope, c.Key, c.holder)
}

const releaseTimeout = 2 * time.Second

var errGone = errors.New("the row is gone")

// An answer is an error that says what the table says, and is no trouble.
type answer struct{ error }

func (a answer) Unwrap() error { return a.error }

func (s *Store) explain(key string, err error) error {
	if _, ok := errors.AsType[answer](err); ok || err == nil {
		return err
	}
	return fmt.Errorf("key %q: write the intent to %s: %w", key, s.effect, err)
}

// takeOver looks at the row of a key and takes its lease where it may.
func (s *Store) takeOver(ctx context.Context, c *claim, o Options) (replay *Result, err error) {
	var verdict error
	err = s.db.inTx(ctx, func(q querier) error {
		r, err := s.lock(ctx, q, c.scope, c.Key)
		if err != nil {
			return err
		}
		switch decide(r, o.request(), o) {
		case stepMismatch:
			verdict = answer{fmt.Errorf("key %q: %w; use a new key for a new fact", c.Key, ErrMismatch)}
		case stepReplay:
			replay = &Result{Value: r.result, Replayed: true, Token: r.token}
		case stepFailed:
			verdict = answer{&FailedError{Key: c.Key, Reason: r.failure}}
		case stepWait:
			verdict = answer{&InProgressError{Key: c.Key, Remaining: r.remaining}}
		case stepUncertain:
			verdict = answer{fmt.Errorf("key %q: %w; find out with the provider and call Resolve", c.Key, ErrUncertain)}
			return s.doubt(ctx, q, c, r)
		case stepProbe:
			c.probe = true
			return s.take(ctx, q, c, r, o)
		case stepCall:
			return s.take(ctx, q, c, r, o)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return replay, verdict
}

// lock reads the row of a key and keeps others from it. The lease is measured
// after the wait for the lock.
func (s *Store) lock(ctx context.Context, q querier, scope, key string) (row, error) {
	if _, err := q.exec(ctx, `SELECT set_config('synchronous_commit', 'on', true)`); err != nil {
		return row{}, err
	}
	var r row
	var remaining sql.NullInt64
	var age int64
	found := false
	err := q.query(ctx, `SELECT state, token, attempts, request, result, coalesce(error, ''),
	(extract(epoch FROM lease_until - clock_timestamp()) * 1000000)::bigint,
	(extract(epoch FROM clock_timestamp() - at) * 1000000)::bigint
FROM (SELECT * FROM `+s.effect+` WHERE scope = $1 AND key = $2 FOR UPDATE) AS locked`,
		[]any{scope, key}, func(scan func(...any) error) error {
			found = true
			return scan(&r.state, &r.token, &r.attempts, &r.request, &r.result, &r.failure, &remaining, &age)
		})
	if err != nil {
		return row{}, err
	}
	if !found {
		return row{}, errGone
	}
	r.leased, r.remaining = remaining.Valid, time.Duration(remaining.Int64)*time.Microsecond
	r.age = time.Duration(age) * time.Microsecond
	return r, nil
}

func (s *Store) take(ctx context.Context, q querier, c *claim, r row, o Options) error {
	c.Token, c.Attempt, c.age = r.token+1, r.attempts+1, r.age
	_, err := q.exec(ctx, `UPDATE `+s.effect+` SET state = 'running', token = $3, attempts = $4, holder = $5, request = coalesce(request, $6),
	lease_until = clock_timestamp() + $7::bigint * interval '1 microsecond', ended_at = NULL, resolved_by = NULL
WHERE scope = $1 AND key = $2`, c.scope, c.Key, c.Token, c.Attempt, c.holder, o.request(), o.Lease.Microseconds())
	return err
}

// doubt notes that nobody knows. The holder stays: if it lives after all, it
// alone can tell.
func (s *Store) doubt(ctx context.Context, q querier, c *claim, r row) error {
	if r.state == stateUncertain {
		return nil
	}
	_, err := q.exec(ctx, `UPDATE `+s.effect+` SET state = 'uncertain', lease_until = NULL, ended_at = clock_timestamp(),
	error = 'the lease ran out before the outcome was stored' WHERE scope = $1 AND key = $2`, c.scope, c.Key)
	return err
}

// An ending is what becomes of a row whose lease we hold.
type ending struct {
	state   string
	result  []byte
	failure string
}

// maxFailure bounds the text of an error that is kept.
const maxFailure = 2000

// settle stores how a call ended, if the lease is still ours. It outlasts the
// caller's context: the call was made, and its outcome is worth some seconds.
func (s *Store) settle(ctx context.Context, c claim, e ending) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.SettleTimeout)
	defer cancel()
	var updated int64
	store := func() (err error) {
		// The same end twice is no error: the first commit may have been
		// done without our hearing of it.
		updated, err = s.db.exec(ctx, durable+`UPDATE `+s.effect+` AS e SET state = $5, lease_until = NULL, result = $6, error = $7,
	ended_at = CASE WHEN $5 = 'running' THEN NULL ELSE clock_timestamp() END
FROM durable WHERE scope = $1 AND key = $2 AND token = $3 AND holder = $4 AND (state IN ('running', 'uncertain') OR state = $5)`,
			c.scope, c.Key, c.Token, c.holder, e.state, e.result, sql.NullString{String: printable(e.failure), Valid: e.failure != ""})
		return err
	}
	patience := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(0))
	if err := backoff.Retry(store, backoff.WithContext(patience, ctx)); err != nil {
		return fmt.Errorf("key %q: %w in %s: %w", c.Key, ErrNotStored, s.effect, err)
	}
	if updated == 0 {
		return fmt.Errorf("key %q, token %d: %w", c.Key, c.Token, ErrLeaseLost)
	}
	return nil
}
