package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// An Effect is a key whose outcome is not known.
type Effect struct {
	// Scope and Key name it. Scope is Config.Scope, or that and a caller of
	// [Middleware].
	Scope, Key string
	// Token is that of the last attempt.
	Token int64
	// Attempts were made.
	Attempts int
	// At is the time of the first attempt.
	At time.Time
	// LeaseOver says that a lease ran out and nobody has come since; false
	// says that an attempt ended without telling.
	LeaseOver bool
	// Reason is the text of the last error, if there was one.
	Reason string
}

// Uncertain lists effects whose outcome is not known, the oldest first: those
// that Do reported with [ErrUncertain], and those whose holder died and that
// nobody has repeated since. limit bounds the list; zero means 100.
func (s *Store) Uncertain(ctx context.Context, limit int) ([]Effect, error) {
	if limit <= 0 {
		limit = 100
	}
	return s.list(ctx, time.Time{}, "", "", limit)
}

// list pages through the uncertain effects in order of time, scope and key.
func (s *Store) list(ctx context.Context, after time.Time, scope, key string, limit int) ([]Effect, error) {
	var effects []Effect
	err := s.db.query(ctx, `SELECT scope, key, token, attempts, at, state = 'running', coalesce(error, '') FROM `+s.effect+`
WHERE (state = 'uncertain' OR state = 'running' AND lease_until <= clock_timestamp())
	AND (scope = $1 OR starts_with(scope, $1 || '/')) AND (at, scope, key) > ($2::timestamptz, $3, $4)
ORDER BY at, scope, key LIMIT $5`, []any{s.cfg.Scope, after, scope, key, limit}, func(scan func(...any) error) error {
		var e Effect
		if err := scan(&e.Scope, &e.Key, &e.Token, &e.Attempts, &e.At, &e.LeaseOver, &e.Reason); err != nil {
			return err
		}
		effects = append(effects, e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the uncertain effects of %s: %w", s.effect, err)
	}
	return effects, nil
}

// Resolve ends an effect that [Store.Uncertain] has listed, by what somebody
// has found out. by is who: it is kept. A holder that comes back later is
// rejected. ErrLeaseLost says that the effect is not as it was listed.
func (s *Store) Resolve(ctx context.Context, e Effect, v Verdict, by string) error {
	end, err := v.ending()
	if err != nil {
		return fmt.Errorf("resolve key %q: %w", e.Key, err)
	}
	// The token ascends and the holder goes, so that nobody else's end fits.
	updated, err := s.db.exec(ctx, durable+`UPDATE `+s.effect+` AS e SET state = $4, token = token + 1, holder = '', lease_until = NULL,
	result = $5, error = $6, resolved_by = $7, ended_at = CASE WHEN $4 = 'running' THEN NULL ELSE clock_timestamp() END
FROM durable WHERE scope = $1 AND key = $2 AND token = $3
	AND (state = 'uncertain' OR state = 'running' AND lease_until <= clock_timestamp())`,
		e.Scope, e.Key, e.Token, end.state, end.result, sql.NullString{String: printable(end.failure), Valid: end.failure != ""}, by)
	if err != nil {
		return fmt.Errorf("resolve key %q in %s: %w", e.Key, s.effect, err)
	}
	if updated == 0 {
		return fmt.Errorf("resolve key %q, token %d: %w; list it again", e.Key, e.Token, ErrLeaseLost)
	}
	return nil
}

func (v Verdict) ending() (ending, error) {
	switch v.Outcome {
	case OutcomeDone:
		return ending{state: stateDone, result: v.Value}, nil
	case OutcomeNotDone:
		return ending{state: stateRunning}, nil
	case OutcomeFailed:
		return ending{state: stateFailed, failure: v.Reason}, nil
	case OutcomeUnknown:
	}
	return ending{}, errors.New("the verdict knows no outcome; say OutcomeDone, OutcomeNotDone or OutcomeFailed")
}

// A Summary counts what [Store.Reconcile] found.
type Summary struct {
	// Done, NotDone and Failed were resolved so.
	Done, NotDone, Failed int
	// Unknown could not be resolved, and stay listed.
	Unknown int
}

// Reconcile asks the provider about every uncertain effect, one at a time, each
// under a lease of its own; zero means one minute. Effects that others take in
// the meantime are left to them. The error joins those of the probe and does
// not end the round, except when ctx ends or the database fails.
func (s *Store) Reconcile(ctx context.Context, lease time.Duration, probe Probe) (Summary, error) {
	var sum Summary
	if probe == nil {
		return sum, errors.New("reconcile: the probe is nil; give one, or use Resolve")
	}
	o := Options{Lease: lease, Probe: probe}
	if err := o.complete("-"); err != nil {
		return sum, fmt.Errorf("reconcile: %w", err)
	}
	var problems []error
	var last Effect
	for {
		page, err := s.list(ctx, last.At, last.Scope, last.Key, 100)
		if err != nil {
			return sum, errors.Join(append(problems, err)...)
		}
		if len(page) == 0 {
			return sum, errors.Join(problems...)
		}
		for _, e := range page {
			outcome, err := s.reconcile(ctx, e, o)
			var a answer
			switch {
			case errors.As(err, &a):
				continue
			case ctx.Err() != nil:
				return sum, errors.Join(append(problems, context.Cause(ctx))...)
			case err != nil && len(problems) < maxProblems:
				problems = append(problems, err)
			}
			sum.count(outcome)
		}
		last = page[len(page)-1]
	}
}

// maxProblems bounds the errors of one round.
const maxProblems = 100

func (sum *Summary) count(o Outcome) {
	switch o {
	case OutcomeDone:
		sum.Done++
	case OutcomeNotDone:
		sum.NotDone++
	case OutcomeFailed:
		sum.Failed++
	case OutcomeUnknown:
		sum.Unknown++
	}
}

func (s *Store) reconcile(ctx context.Context, e Effect, o Options) (Outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Lease, errLeaseOver)
	defer cancel()
	c, replay, err := s.claim(ctx, e.Scope, e.Key, o)
	if err != nil {
		return OutcomeUnknown, err
	}
	switch {
	case replay != nil:
		return OutcomeUnknown, answer{errGone}
	case !c.probe: // set free, or deleted, since it was listed
		return OutcomeUnknown, errors.Join(answer{errGone}, s.settle(ctx, c, ending{state: stateRunning}))
	}
	v, err := s.ask(ctx, c, o.Probe)
	if err != nil || v.Outcome != OutcomeNotDone {
		return v.Outcome, err
	}
	return v.Outcome, s.settle(ctx, c, ending{state: stateRunning})
}

// ask calls the probe under a lease, and stores every verdict but
// OutcomeNotDone, after which the caller goes on with the lease.
func (s *Store) ask(ctx context.Context, c claim, probe Probe) (v Verdict, err error) {
	returned := false
	defer func() {
		if !returned {
			_ = s.settle(ctx, c, ending{state: stateUncertain, failure: "the probe panicked"})
		}
	}()
	v, err = probe(ctx, c.Call)
	returned = true
	if err != nil {
		return Verdict{}, errors.Join(fmt.Errorf("key %q: ask the provider: %w", c.Key, err),
			s.settle(ctx, c, ending{state: stateUncertain, failure: err.Error()}))
	}
	if v.Outcome == OutcomeNotDone {
		return v, nil
	}
	end, err := v.ending()
	if err != nil {
		end = ending{state: stateUncertain, failure: "the provider does not know"}
	}
	return v, s.settle(ctx, c, end)
}

// answered is what Do returns for a verdict.
func (s *Store) answered(c claim, v Verdict, err error) (Result, error) {
	result := Result{Value: v.Value, Replayed: true, Token: c.Token}
	switch {
	case err != nil && v.Outcome == OutcomeUnknown:
		return Result{Token: c.Token}, fmt.Errorf("key %q: %w: %w", c.Key, ErrUncertain, err)
	case err != nil:
		return result, err
	case v.Outcome == OutcomeDone:
		return result, nil
	case v.Outcome == OutcomeFailed:
		return Result{Token: c.Token}, &FailedError{Key: c.Key, Reason: v.Reason}
	}
	return Result{Token: c.Token}, fmt.Errorf("key %q: %w, the provider does not know either; find out and call Resolve", c.Key, ErrUncertain)
}

// Cleanup deletes effects that ended longer ago than age, in batches that hold
// no lock for long, and returns their number. What is in progress or uncertain
// stays. After that a repeat of the key is a new call: age must be longer than
// anything can repeat it.
func (s *Store) Cleanup(ctx context.Context, age time.Duration) (int64, error) {
	if age <= 0 {
		return 0, fmt.Errorf("clean up %s: age is %s; set how long a repeat must find the result, such as 30 days", s.effect, age)
	}
	var total int64
	for {
		n, err := s.db.exec(ctx, `DELETE FROM `+s.effect+` WHERE (scope, key) IN (
	SELECT scope, key FROM `+s.effect+` WHERE state IN ('done', 'failed') AND (scope = $1 OR starts_with(scope, $1 || '/'))
		AND at < clock_timestamp() - $2::bigint * interval '1 microsecond'
		AND ended_at < clock_timestamp() - $2::bigint * interval '1 microsecond'
	LIMIT 1000 FOR UPDATE SKIP LOCKED)`, s.cfg.Scope, age.Microseconds())
		total += n
		if err != nil {
			return total, fmt.Errorf("clean up %s: %w", s.effect, err)
		}
		if n == 0 {
			return total, nil
		}
	}
}

// printable is a text that PostgreSQL stores, of a bounded length.
func printable(s string) string {
	if len(s) > maxFailure {
		s = s[:maxFailure]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}
