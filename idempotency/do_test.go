package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walrelay/walrelay/idempotency"
)

type (
	store  = idempotency.Store
	call   = idempotency.Call
	option = idempotency.Options
)

func returns(value string) func(context.Context, call) ([]byte, error) {
	return func(context.Context, call) ([]byte, error) { return []byte(value), nil }
}

func fails(err error) func(context.Context, call) ([]byte, error) {
	return func(context.Context, call) ([]byte, error) { return nil, err }
}

func never(t *testing.T) func(context.Context, call) ([]byte, error) {
	return func(_ context.Context, c call) ([]byte, error) {
		t.Errorf("key %s was called, want no call", c.Key)
		return nil, nil
	}
}

var (
	errProvider = errors.New("provider says no")
	honoured    = option{KeyHonouredFor: time.Hour}
)

func TestARepeatReturnsTheStoredResultAndCallsNobody(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		first, err := s.Do(t.Context(), "k", option{}, func(_ context.Context, c call) ([]byte, error) {
			if want := (call{Key: "k", Token: 1, Attempt: 1}); c != want {
				t.Errorf("call = %+v, want %+v", c, want)
			}
			return []byte("\x00\xff"), nil
		})
		if err != nil || first.Replayed {
			t.Fatalf("first Do = %+v, %v", first, err)
		}
		again, err := s.Do(t.Context(), "k", option{}, never(t))
		if err != nil || !again.Replayed || string(again.Value) != "\x00\xff" || again.Token != 1 {
			t.Errorf("second Do = %+v, %v, want the stored result", again, err)
		}
	})
}

func TestAFinalFailureIsRepeated(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		_, err := s.Do(t.Context(), "k", option{}, fails(idempotency.Final(errProvider)))
		if !errors.Is(err, errProvider) || errors.Is(err, idempotency.ErrUncertain) {
			t.Errorf("first Do: %v, want the provider's error", err)
		}
		_, err = s.Do(t.Context(), "k", honoured, never(t))
		var failed *idempotency.FailedError
		if !errors.As(err, &failed) || failed.Reason != errProvider.Error() {
			t.Errorf("second Do: %v, want a FailedError with the reason", err)
		}
	})
}

func TestACallThatWasNotDoneIsMadeAgain(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		if _, err := s.Do(t.Context(), "k", option{}, fails(idempotency.NotDone(errProvider))); !errors.Is(err, errProvider) || errors.Is(err, idempotency.ErrUncertain) {
			t.Errorf("first Do: %v, want the provider's error", err)
		}
		if listed, err := s.Uncertain(t.Context(), 0); err != nil || len(listed) != 0 {
			t.Errorf("Uncertain = %v, %v, want none", listed, err)
		}
		result, err := s.Do(t.Context(), "k", option{}, returns("v"))
		if err != nil || string(result.Value) != "v" || result.Token != 2 || result.Replayed {
			t.Errorf("second Do = %+v, %v, want a call with token 2", result, err)
		}
	})
}

func TestAnErrorSaysNothingOfTheEffect(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		for range 2 { // the second time it is stored
			_, err := s.Do(t.Context(), "k", option{}, fails(errProvider))
			if !errors.Is(err, idempotency.ErrUncertain) {
				t.Errorf("Do: %v, want ErrUncertain", err)
			}
		}
		listed, err := s.Uncertain(t.Context(), 0)
		if err != nil || len(listed) != 1 {
			t.Fatalf("Uncertain = %v, %v, want one", listed, err)
		}
		got := listed[0]
		got.At = time.Time{}
		if diff := cmp.Diff(idempotency.Effect{Key: "k", Token: 1, Attempts: 1, Reason: errProvider.Error()}, got); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
	})
}

func TestAProviderThatHonoursKeysIsCalledAgainWithTheSameKey(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, url string) {
		_, err := s.Do(t.Context(), "k", honoured, fails(errProvider))
		if !errors.Is(err, errProvider) || errors.Is(err, idempotency.ErrUncertain) {
			t.Errorf("first Do: %v, want the provider's error alone", err)
		}
		// The provider has forgotten the key.
		execute(t, url, `UPDATE walrelay.effect SET at = at - interval '61 min'`)
		if _, err := s.Do(t.Context(), "k", honoured, never(t)); !errors.Is(err, idempotency.ErrUncertain) {
			t.Errorf("Do after an hour: %v, want ErrUncertain", err)
		}
		execute(t, url, `UPDATE walrelay.effect SET at = at + interval '61 min'`)
		result, err := s.Do(t.Context(), "k", honoured, func(_ context.Context, c call) ([]byte, error) {
			if want := (call{Key: "k", Token: 2, Attempt: 2}); c != want {
				t.Errorf("call = %+v, want %+v", c, want)
			}
			return []byte("v"), nil
		})
		if err != nil || string(result.Value) != "v" {
			t.Errorf("Do within the hour = %+v, %v", result, err)
		}
	})
}

func TestOneOfManyCallersCalls(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		var calls, progress atomic.Int32
		release := make(chan struct{})
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				_, err := s.Do(t.Context(), "k", option{}, func(context.Context, call) ([]byte, error) {
					calls.Add(1)
					<-release
					return nil, nil
				})
				var p *idempotency.InProgressError
				switch {
				case err == nil:
				case errors.Is(err, idempotency.ErrInProgress) && errors.As(err, &p) && p.Remaining > 0 && p.Remaining <= time.Minute:
					if progress.Add(1) == 19 {
						close(release)
					}
				default:
					t.Errorf("Do: %v, want ErrInProgress with what remains", err)
				}
			})
		}
		all.Wait()
		if calls.Load() != 1 || progress.Load() != 19 {
			t.Errorf("%d calls, %d in progress; want 1 and 19", calls.Load(), progress.Load())
		}
	})
}

func TestAnExpiredLeaseIsTakenOverAndTheOldHolderIsRejected(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, url string) {
		result, err := s.Do(t.Context(), "k", honoured, func(_ context.Context, old call) ([]byte, error) {
			expire(t, url)
			inner, err := s.Do(t.Context(), "k", honoured, func(_ context.Context, c call) ([]byte, error) {
				if c.Token <= old.Token {
					t.Errorf("token of the taker = %d, want more than %d", c.Token, old.Token)
				}
				return []byte("taker"), nil
			})
			if err != nil || string(inner.Value) != "taker" {
				t.Errorf("taker's Do = %+v, %v", inner, err)
			}
			return []byte("old"), nil
		})
		if !errors.Is(err, idempotency.ErrLeaseLost) {
			t.Errorf("old holder's Do = %+v, %v, want ErrLeaseLost", result, err)
		}
		again, err := s.Do(t.Context(), "k", honoured, never(t))
		if err != nil || string(again.Value) != "taker" {
			t.Errorf("Do afterwards = %q, %v, want the taker's result", again.Value, err)
		}
	})
}

func TestAnExpiredLeaseWithNobodyToAskIsUncertainUntilItsHolderTells(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, url string) {
		_, err := s.Do(t.Context(), "k", option{}, func(context.Context, call) ([]byte, error) {
			expire(t, url)
			listed, err := s.Uncertain(t.Context(), 0)
			if err != nil || len(listed) != 1 || !listed[0].LeaseOver {
				t.Errorf("Uncertain = %+v, %v, want one whose lease is over", listed, err)
			}
			if _, err := s.Do(t.Context(), "k", option{}, never(t)); !errors.Is(err, idempotency.ErrUncertain) {
				t.Errorf("other caller's Do: %v, want ErrUncertain", err)
			}
			return []byte("late, but nobody else has acted"), nil
		})
		if err != nil {
			t.Errorf("the holder's Do: %v, want its outcome stored", err)
		}
		if again, err := s.Do(t.Context(), "k", option{}, never(t)); err != nil || len(again.Value) == 0 {
			t.Errorf("Do afterwards = %+v, %v, want the holder's result", again, err)
		}
	})
}

func TestAPausedHolderIsRejectedAfterResolve(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, url string) {
		_, err := s.Do(t.Context(), "k", option{}, func(context.Context, call) ([]byte, error) {
			expire(t, url)
			listed, err := s.Uncertain(t.Context(), 0)
			if err != nil || len(listed) != 1 {
				t.Fatalf("Uncertain = %v, %v", listed, err)
			}
			verdict := idempotency.Verdict{Outcome: idempotency.OutcomeFailed, Reason: "by hand"}
			if err := s.Resolve(t.Context(), listed[0], verdict, "ann"); err != nil {
				t.Error(err)
			}
			if err := s.Resolve(t.Context(), listed[0], verdict, "bob"); !errors.Is(err, idempotency.ErrLeaseLost) {
				t.Errorf("second Resolve: %v, want ErrLeaseLost", err)
			}
			return nil, idempotency.Final(errProvider)
		})
		if !errors.Is(err, idempotency.ErrLeaseLost) {
			t.Errorf("holder's Do: %v, want ErrLeaseLost", err)
		}
		var failed *idempotency.FailedError
		if _, err := s.Do(t.Context(), "k", option{}, never(t)); !errors.As(err, &failed) || failed.Reason != "by hand" {
			t.Errorf("Do afterwards: %v, want the resolved failure", err)
		}
	})
}

func TestEachVerdictResolves(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		for _, outcome := range []idempotency.Outcome{idempotency.OutcomeDone, idempotency.OutcomeNotDone, idempotency.OutcomeFailed} {
			key := idempotency.Key("k", fmt.Sprint(outcome))
			if _, err := s.Do(t.Context(), key, option{}, fails(errProvider)); !errors.Is(err, idempotency.ErrUncertain) {
				t.Fatal(err)
			}
			listed, err := s.Uncertain(t.Context(), 1)
			if err != nil || len(listed) != 1 {
				t.Fatalf("Uncertain = %v, %v", listed, err)
			}
			if err := s.Resolve(t.Context(), listed[0], idempotency.Verdict{}, "ann"); err == nil {
				t.Error("Resolve without an outcome is taken")
			}
			if err := s.Resolve(t.Context(), listed[0], idempotency.Verdict{Outcome: outcome, Value: []byte("v"), Reason: "r"}, "ann"); err != nil {
				t.Fatal(err)
			}
			result, err := s.Do(t.Context(), key, option{}, returns("called"))
			got := fmt.Sprintf("%s %v", result.Value, err)
			want := map[idempotency.Outcome]string{
				idempotency.OutcomeDone: "v <nil>", idempotency.OutcomeNotDone: "called <nil>",
				idempotency.OutcomeFailed: ` key "` + key + `": the call has failed for good: r`,
			}[outcome]
			if got != want {
				t.Errorf("outcome %d: Do = %s, want %s", outcome, got, want)
			}
		}
	})
}

func TestAProviderThatCanBeAskedIsAskedBeforeItIsCalledAgain(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, url string) {
		for _, tc := range []struct {
			name    string
			verdict idempotency.Verdict
			err     error
			want    string
		}{
			{"done", idempotency.Verdict{Outcome: idempotency.OutcomeDone, Value: []byte("v")}, nil, "v replayed=true <nil>"},
			{"not done", idempotency.Verdict{Outcome: idempotency.OutcomeNotDone}, nil, "called replayed=false <nil>"},
			{"failed", idempotency.Verdict{Outcome: idempotency.OutcomeFailed, Reason: "r"}, nil, " replayed=false failed"},
			{"unknown", idempotency.Verdict{}, nil, " replayed=false uncertain"},
			{"error", idempotency.Verdict{}, errProvider, " replayed=false uncertain"},
		} {
			key := idempotency.Key("k", tc.name)
			_, _ = s.Do(t.Context(), key, option{}, func(context.Context, call) ([]byte, error) {
				expire(t, url) // a crash, as the next caller sees it
				asked := 0
				o := option{Probe: func(_ context.Context, c call) (idempotency.Verdict, error) {
					asked++
					if c.Key != key || c.Token != 2 {
						t.Errorf("%s: probe for %+v, want key and token 2", tc.name, c)
					}
					return tc.verdict, tc.err
				}}
				result, err := s.Do(t.Context(), key, o, returns("called"))
				var failed *idempotency.FailedError
				got := fmt.Sprintf("%s replayed=%t %v", result.Value, result.Replayed, err)
				switch {
				case errors.As(err, &failed):
					got = fmt.Sprintf("%s replayed=%t failed", result.Value, result.Replayed)
				case errors.Is(err, idempotency.ErrUncertain):
					got = fmt.Sprintf("%s replayed=%t uncertain", result.Value, result.Replayed)
				}
				if got != tc.want || asked != 1 {
					t.Errorf("%s: Do = %s, asked %d times; want %s and once", tc.name, got, asked, tc.want)
				}
				return nil, nil
			})
		}
	})
}

func TestReconcileAsksAboutEveryUncertainEffect(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, url string) {
		execute(t, url, `INSERT INTO walrelay.effect (key, state, lease_until, holder, attempts)
			SELECT 'k' || n, CASE WHEN n % 2 = 0 THEN 'uncertain' ELSE 'running' END, CASE WHEN n % 2 = 1 THEN clock_timestamp() END, 'h', 1 FROM generate_series(1, 240) AS n`)
		sum, err := s.Reconcile(t.Context(), 0, func(_ context.Context, c call) (idempotency.Verdict, error) {
			var n int
			if _, err := fmt.Sscanf(c.Key, "k%d", &n); err != nil {
				t.Error(err)
			}
			if n%4 == 0 {
				return idempotency.Verdict{}, errProvider
			}
			return idempotency.Verdict{Outcome: idempotency.Outcome(n % 4)}, nil
		})
		if want := (idempotency.Summary{Done: 60, NotDone: 60, Failed: 60, Unknown: 60}); sum != want {
			t.Errorf("Reconcile = %+v, want %+v", sum, want)
		}
		if !errors.Is(err, errProvider) {
			t.Errorf("Reconcile: %v, want the probe's errors", err)
		}
		if listed, err := s.Uncertain(t.Context(), 1000); err != nil || len(listed) != 60 {
			t.Errorf("Uncertain = %d effects, %v, want 60", len(listed), err)
		}
		if result, err := s.Do(t.Context(), "k2", option{}, returns("v")); err != nil || string(result.Value) != "v" || result.Token != 3 {
			t.Errorf("Do after NotDone = %+v, %v, want a call with token 3", result, err)
		}
	})
}

func TestTheSameKeyWithAnotherRequestIsRefused(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		if _, err := s.Do(t.Context(), "k", option{Request: []byte("a")}, returns("v")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(t.Context(), "k", option{Request: []byte("b")}, never(t)); !errors.Is(err, idempotency.ErrMismatch) {
			t.Errorf("Do with another request: %v, want ErrMismatch", err)
		}
		if result, err := s.Do(t.Context(), "k", option{Request: []byte("a")}, never(t)); err != nil || !result.Replayed {
			t.Errorf("Do with the same request = %+v, %v", result, err)
		}
	})
}

func TestTheCallbacksContextEndsWithTheLease(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		_, err := s.Do(t.Context(), "k", option{Lease: 50 * time.Millisecond}, func(ctx context.Context, _ call) ([]byte, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		if !errors.Is(err, idempotency.ErrUncertain) {
			t.Errorf("Do: %v, want ErrUncertain", err)
		}
	})
}

func TestAnOutcomeIsStoredThoughTheCallersContextHasEnded(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := s.Do(ctx, "k", option{}, func(context.Context, call) ([]byte, error) {
			cancel()
			return []byte("v"), nil
		}); err != nil {
			t.Errorf("Do: %v", err)
		}
		if again, err := s.Do(t.Context(), "k", option{}, never(t)); err != nil || string(again.Value) != "v" {
			t.Errorf("Do afterwards = %+v, %v", again, err)
		}
	})
}

func TestAPanicAndAGoexitLeaveTheOutcomeUncertain(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		for key, end := range map[string]func(){"panic": func() { panic("handler") }, "goexit": runtime.Goexit} {
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				_, _ = s.Do(t.Context(), key, option{}, func(context.Context, call) ([]byte, error) {
					end()
					return nil, nil
				})
			}()
			if got := <-done; (got != nil) != (key == "panic") {
				t.Errorf("%s: recovered %v", key, got)
			}
			if _, err := s.Do(t.Context(), key, option{}, never(t)); !errors.Is(err, idempotency.ErrUncertain) {
				t.Errorf("%s: Do afterwards: %v, want ErrUncertain", key, err)
			}
		}
	})
}

func TestJSONResultsComeBackAsTheyWere(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		type charge struct{ ID string }
		for range 2 {
			got, err := idempotency.DoJSON(t.Context(), s, "k", option{}, func(context.Context, call) (charge, error) {
				return charge{"ch_1"}, nil
			})
			if err != nil || got.ID != "ch_1" {
				t.Errorf("DoJSON = %+v, %v", got, err)
			}
		}
	})
}

func TestCleanupKeepsWhatIsYoungOrOpen(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, url string) {
		execute(t, url, `INSERT INTO walrelay.effect (key, state, at, ended_at)
			SELECT state || age, state, clock_timestamp() - age * interval '1 day', clock_timestamp() - age * interval '1 day'
			FROM unnest(ARRAY['running', 'done', 'failed', 'uncertain']) AS state, unnest(ARRAY[1, 40]) AS age`)
		n, err := s.Cleanup(t.Context(), 30*24*time.Hour)
		if err != nil || n != 2 {
			t.Errorf("Cleanup = %d, %v, want the 2 old ones that have ended", n, err)
		}
		if _, err := s.Cleanup(t.Context(), 0); err == nil {
			t.Error("Cleanup of age 0 is taken")
		}
	})
}

func TestWrongOptionsAreNamed(t *testing.T) {
	drivers(t, func(t *testing.T, s *store, _ string) {
		for want, do := range map[string]func() error{
			"0 bytes":    func() error { _, err := s.Do(t.Context(), "", option{}, never(t)); return err },
			"1025 bytes": func() error { _, err := s.Do(t.Context(), strings.Repeat("k", 1025), option{}, never(t)); return err },
			"NUL":        func() error { _, err := s.Do(t.Context(), "\x00", option{}, never(t)); return err },
			"Lease":      func() error { _, err := s.Do(t.Context(), "k", option{Lease: -1}, never(t)); return err },
			"Honoured":   func() error { _, err := s.Do(t.Context(), "k", option{KeyHonouredFor: -1}, never(t)); return err },
		} {
			if err := do(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want an error about %s", err, want)
			}
		}
	})
}
