package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Options say how one kind of call is made. The same options belong to every
// attempt of a key.
type Options struct {
	// Lease is how long one attempt may take: the callback's context ends
	// with it, and not before it has run out may another caller take over.
	// Set it longer than the provider takes to finish or drop a request.
	// Zero means one minute.
	Lease time.Duration
	// Request is what the key stands for, such as the body of a request. Its
	// hash is kept, and the same key with another request is ErrMismatch.
	// Nil is not compared.
	Request []byte
	// KeyHonouredFor is how long the provider promises to recognise a key
	// that it has seen. Within that time from the first attempt a call whose
	// outcome is not known is made again. Zero means that it promises
	// nothing.
	KeyHonouredFor time.Duration
	// Probe asks the provider what became of a call whose outcome is not
	// known. Nil means that it cannot be asked.
	Probe Probe
}

// A Call is one attempt.
type Call struct {
	// Key is what the provider is given; it is the same in all attempts.
	Key string
	// Token ascends with each attempt of the key: a provider that refuses
	// lower ones is fenced from holders that were paused. It begins anew
	// when the key's row has been deleted by age.
	Token int64
	// Attempt counts from 1.
	Attempt int
}

// A Result is what a call has come to.
type Result struct {
	// Value is what the callback returned. In a replay of nil it is nil or
	// empty.
	Value []byte
	// Replayed says that it was stored before and nothing was called.
	Replayed bool
	// Token is that of the attempt.
	Token int64
}

// A Probe asks the provider what became of the call with this key. An error is
// the same as [OutcomeUnknown].
type Probe func(ctx context.Context, call Call) (Verdict, error)

// An Outcome is what is known of a call.
type Outcome int

const (
	// OutcomeUnknown leaves the key as it is.
	OutcomeUnknown Outcome = iota
	// OutcomeDone says that the call took effect.
	OutcomeDone
	// OutcomeNotDone says that it did not and will not, also not late: it
	// may be made again.
	OutcomeNotDone
	// OutcomeFailed says that it failed for good.
	OutcomeFailed
)

// A Verdict ends an uncertain outcome.
type Verdict struct {
	Outcome Outcome
	// Value is the result, for OutcomeDone.
	Value []byte
	// Reason is the failure, for OutcomeFailed.
	Reason string
}

const defaultLease = time.Minute

// Do makes a call at most once for key, within what the package says about
// outcomes that are not known.
//
// fn is called by one caller at a time, and again only if no earlier attempt
// has taken effect, or the provider recognises the key. What it returns is
// stored; its errors are described with [Final] and [NotDone], and any other is
// returned with [ErrUncertain], unless KeyHonouredFor lets the next Do call
// again. A panic of fn passes through and leaves the outcome unknown.
//
// Where the call was made and the database cannot be told within
// Config.SettleTimeout, Do returns [ErrNotStored] beside the Result.
func (s *Store) Do(ctx context.Context, key string, o Options, fn func(ctx context.Context, call Call) ([]byte, error)) (Result, error) {
	return s.do(ctx, s.cfg.Scope, key, o, fn)
}

// DoJSON is [Store.Do] for results that encoding/json can carry.
func DoJSON[T any](ctx context.Context, s *Store, key string, o Options, fn func(ctx context.Context, call Call) (T, error)) (T, error) {
	var value T
	result, err := s.Do(ctx, key, o, func(ctx context.Context, call Call) ([]byte, error) {
		v, err := fn(ctx, call)
		if err != nil {
			return nil, err
		}
		value = v
		encoded, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encode the result: %w", err)
		}
		return encoded, nil
	})
	if err != nil || !result.Replayed {
		return value, err
	}
	if err := json.Unmarshal(result.Value, &value); err != nil {
		return value, fmt.Errorf("key %q: decode the stored result: %w", key, err)
	}
	return value, nil
}

func (s *Store) do(ctx context.Context, scope, key string, o Options, fn func(context.Context, Call) ([]byte, error)) (Result, error) {
	if err := o.complete(key); err != nil {
		return Result{}, fmt.Errorf("key %.80q: %w", key, err)
	}
	// The lease begins later in the database, so that this deadline is never
	// after its end.
	ctx, cancel := context.WithTimeoutCause(ctx, o.Lease, errLeaseOver)
	defer cancel()
	c, replay, err := s.claim(ctx, scope, key, o)
	if err != nil {
		return Result{}, err
	}
	if replay != nil {
		return *replay, nil
	}
	if c.probe {
		v, err := s.ask(ctx, c, o.Probe)
		if err != nil || v.Outcome != OutcomeNotDone {
			return s.answered(c, v, err)
		}
	}
	return s.call(ctx, c, o, fn)
}

var errLeaseOver = errors.New("the lease has run out")

func (o *Options) complete(key string) error {
	if o.Lease == 0 {
		o.Lease = defaultLease
	}
	switch {
	case key == "" || len(key) > maxKey:
		return fmt.Errorf("has %d bytes; use 1 to %d, as idempotency.Key gives", len(key), maxKey)
	case !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0:
		return errors.New("is not UTF-8 without NUL; use idempotency.Key")
	case o.Lease < time.Millisecond:
		return fmt.Errorf("Options.Lease is %s; leave it zero for %s, or set a millisecond or more", o.Lease, defaultLease)
	case o.KeyHonouredFor < 0:
		return fmt.Errorf("Options.KeyHonouredFor is %s; leave it zero where the provider promises nothing", o.KeyHonouredFor)
	}
	return nil
}

func (o *Options) request() []byte {
	if o.Request == nil {
		return nil
	}
	sum := sha256.Sum256(o.Request)
	return sum[:]
}

// call makes the call and stores what it has come to.
func (s *Store) call(ctx context.Context, c claim, o Options, fn func(context.Context, Call) ([]byte, error)) (result Result, err error) {
	// Also a panic and a runtime.Goexit come past here; the deferred call
	// tells nobody's outcome to nobody but the table.
	returned := false
	defer func() {
		if !returned {
			_ = s.settle(ctx, c, ending{state: stateUncertain, failure: "the callback panicked"})
		}
	}()
	value, err := fn(ctx, c.Call)
	returned = true

	result = Result{Value: value, Token: c.Token}
	var final *finalError
	var notDone *notDoneError
	switch {
	case err == nil:
		return result, s.settle(ctx, c, ending{state: stateDone, result: value})
	case errors.As(err, &final):
		return result, errors.Join(fmt.Errorf("key %q: the call has failed for good: %w", c.Key, err),
			s.settle(ctx, c, ending{state: stateFailed, failure: err.Error()}))
	case errors.As(err, &notDone):
		return result, errors.Join(fmt.Errorf("key %q: the call was not made: %w", c.Key, err),
			s.settle(ctx, c, ending{state: stateRunning, failure: err.Error()}))
	}
	serr := s.settle(ctx, c, ending{state: stateUncertain, failure: err.Error()})
	if c.age+o.Lease < o.KeyHonouredFor {
		return result, errors.Join(fmt.Errorf("key %q: call, which may be repeated with the same key: %w", c.Key, err), serr)
	}
	return result, errors.Join(fmt.Errorf("key %q: %w: %w", c.Key, ErrUncertain, err), serr)
}
