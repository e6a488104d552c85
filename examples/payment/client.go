package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/walrelay/walrelay/idempotency"
)

// A client speaks the provider's protocol and says what each answer means for
// package idempotency. This is the part to write with the manual at hand.
type client struct {
	url  string
	http *http.Client
}

// charge asks for money. The key goes along in every attempt.
func (c client) charge(ctx context.Context, reference, key string) (string, error) {
	status, answer, err := c.do(ctx, http.MethodPost, reference, key)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return "", idempotency.NotDone(err) // nothing was sent
	case err != nil:
		return "", err // it may have been charged or not: nobody can tell from here
	case status == http.StatusPaymentRequired:
		return "", idempotency.Final(errors.New("the card was declined")) // an answer
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return "", idempotency.NotDone(fmt.Errorf("status %d", status)) // by the manual
	case status != http.StatusOK:
		return "", fmt.Errorf("status %d", status)
	}
	return answer, nil
}

// probe asks what became of a charge.
func (c client) probe(ctx context.Context, reference string) (idempotency.Verdict, error) {
	status, answer, err := c.do(ctx, http.MethodGet, reference, "")
	if err != nil {
		return idempotency.Verdict{}, err
	}
	switch status {
	case http.StatusOK:
		value, err := json.Marshal(answer)
		return idempotency.Verdict{Outcome: idempotency.OutcomeDone, Value: value}, err
	case http.StatusNotFound:
		return idempotency.Verdict{Outcome: idempotency.OutcomeNotDone}, nil
	}
	return idempotency.Verdict{}, fmt.Errorf("status %d", status)
}

func (c client) do(ctx context.Context, method, reference, key string) (status int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+"/charges/"+reference, http.NoBody)
	if err != nil {
		return 0, "", fmt.Errorf("make the request: %w", err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, "", err //nolint:wrapcheck // it names method and URL
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode == http.StatusOK {
		err = json.NewDecoder(resp.Body).Decode(&answer)
	}
	return resp.StatusCode, answer, err
}
