// Command payment charges cards through a provider whose answers get lost, and
// charges each order at most once: with a provider that honours idempotency
// keys, with one that can only be asked, and with one that offers nothing.
//
//	go run ./examples/payment
//
// It starts a PostgreSQL of its own and removes it afterwards.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
	"github.com/walrelay/walrelay/idempotency"
	"github.com/walrelay/walrelay/internal/testenv"
)

func main() {
	testenv.Main() // the sandbox needs it; a service does not
	if err := run(context.Background(), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "payment:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	box, err := sandbox.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	store, err := idempotency.New(ctx, box.Pool, idempotency.Config{Scope: "payment"})
	if err != nil {
		return err
	}
	s := &shop{store: store, out: out, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}}
	for _, step := range []func(context.Context) error{s.naive, s.honoured, s.asked, s.declined, s.uncertain} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// A shop takes money for orders.
type shop struct {
	store *idempotency.Store
	http  *http.Client
	out   io.Writer
}

func (s *shop) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// pay charges an order once, however often it is called.
func (s *shop) pay(ctx context.Context, p *provider, order string, o idempotency.Options) (string, error) {
	c := client{p.URL, s.http}
	// The key names the fact: this order's charge. A second charge of the
	// same order would be another fact, and have another name.
	key := idempotency.Key("charge", order)
	return idempotency.DoJSON(ctx, s.store, key, o, func(ctx context.Context, call idempotency.Call) (string, error) {
		return c.charge(ctx, order, call.Key)
	})
}

func (s *shop) naive(ctx context.Context) error {
	s.say("1. Without keys: call, and call again when no answer comes.")
	p := newProvider(false, false)
	defer p.Close()
	p.loseAnswers(1)
	c := client{p.URL, s.http}
	answer, err := c.charge(ctx, "order-1", "")
	for range 3 {
		if err == nil {
			break
		}
		answer, err = c.charge(ctx, "order-1", "")
	}
	if err != nil {
		return err
	}
	return s.check(p, "order-1", 2, "   %s: the first answer was lost, the customer has paid %d times.", answer)
}

func (s *shop) honoured(ctx context.Context) error {
	s.say("2. The provider honours keys for a day: repeat with the same key.")
	p := newProvider(true, false)
	defer p.Close()
	p.loseAnswers(2)
	o := idempotency.Options{KeyHonouredFor: 24 * time.Hour}
	var answer string
	for attempt := 1; ; attempt++ {
		var err error
		answer, err = s.pay(ctx, p, "order-2", o)
		if err == nil {
			s.say("   attempt %d: %s", attempt, answer)
			break
		}
		if attempt == 5 {
			return err
		}
		s.say("   attempt %d: no answer", attempt)
	}
	again, err := s.pay(ctx, p, "order-2", o)
	if err != nil {
		return err
	}
	return s.check(p, "order-2", 1, "   once more: %s, from the table. The customer has paid %d time.", again)
}

func (s *shop) asked(ctx context.Context) error {
	s.say("3. The provider knows no keys, but can be asked: ask before calling again.")
	p := newProvider(false, true)
	defer p.Close()
	p.loseAnswers(1)
	o := idempotency.Options{Probe: func(ctx context.Context, _ idempotency.Call) (idempotency.Verdict, error) {
		s.say("   asking the provider about order-3")
		return client{p.URL, s.http}.probe(ctx, "order-3")
	}}
	if _, err := s.pay(ctx, p, "order-3", o); !errors.Is(err, idempotency.ErrUncertain) {
		return fmt.Errorf("first attempt: %w, want an uncertain outcome", err)
	}
	s.say("   attempt 1: no answer")
	answer, err := s.pay(ctx, p, "order-3", o)
	if err != nil {
		return err
	}
	return s.check(p, "order-3", 1, "   attempt 2: %s, found. The customer has paid %d time.", answer)
}

func (s *shop) declined(ctx context.Context) error {
	s.say("4. A declined card is an answer, and is stored like one.")
	p := newProvider(true, true)
	defer p.Close()
	_, err := s.pay(ctx, p, "order-declined", idempotency.Options{})
	s.say("   %v", err)
	_, err = s.pay(ctx, p, "order-declined", idempotency.Options{})
	if _, ok := errors.AsType[*idempotency.FailedError](err); !ok {
		return fmt.Errorf("repeat: %w, want the stored failure", err)
	}
	return s.check(p, "order-declined", 0, "   once more: the same, and the provider is not called (%[2]d charges).", "")
}

func (s *shop) uncertain(ctx context.Context) error {
	s.say("5. The provider offers nothing: one call, and then a person finds out.")
	p := newProvider(false, false)
	defer p.Close()
	p.loseAnswers(1)
	for range 2 {
		_, err := s.pay(ctx, p, "order-5", idempotency.Options{})
		if !errors.Is(err, idempotency.ErrUncertain) {
			return fmt.Errorf("pay: %w, want an uncertain outcome", err)
		}
		s.say("   %v", idempotency.ErrUncertain)
	}
	effects, err := s.store.Uncertain(ctx, 0)
	if err != nil {
		return err
	}
	for _, e := range effects {
		s.say("   to be reconciled: %s, after %d attempt", e.Key, e.Attempts)
		// Somebody has looked at the provider's statement.
		verdict := idempotency.Verdict{Outcome: idempotency.OutcomeDone, Value: []byte(`"line 7 of the statement"`)}
		if err := s.store.Resolve(ctx, e, verdict, "ann"); err != nil {
			return err
		}
	}
	answer, err := s.pay(ctx, p, "order-5", idempotency.Options{})
	if err != nil {
		return err
	}
	return s.check(p, "order-5", 1, "   resolved by hand: %s. The customer has paid %d time.", answer)
}

// check says how often the provider has charged, and fails where that is not
// what this program promises.
func (s *shop) check(p *provider, order string, want int, format, answer string) error {
	got := p.charged(order)
	s.say(format, answer, got)
	if got != want {
		return fmt.Errorf("%s was charged %d times, want %d", order, got, want)
	}
	return nil
}
