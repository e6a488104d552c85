package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walrelay/walrelay/idempotency"
	"github.com/walrelay/walrelay/outbox"
)

// Headers that the provider sends.
const (
	headerHappened  = "Provider-Happened-At" // of the payment: the same in every delivery
	headerSent      = "Provider-Sent-At"     // of this delivery
	headerSignature = "Provider-Signature"
)

// maxBody bounds a webhook; this provider's are small.
const maxBody = 64 << 10

// maxAge is how old a delivery may be: a recorded one must not be good for ever.
const maxAge = 5 * time.Minute

// PaymentReceived is what the provider says, and what we publish.
type PaymentReceived struct {
	Invoice string `json:"invoice"`
	Cents   int64  `json:"cents"`
}

// A receiver takes the provider's webhooks. What it does is the whole of a good
// inbound webhook: check who speaks, write down the fact once, answer. The work
// is done by a consumer, since a provider that waits delivers again.
type receiver struct {
	pool   *pgxpool.Pool
	secret []byte
	now    func() time.Time
}

func (h receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
		return
	}
	// The signature is over the bytes as they came, before anything reads them.
	if !h.genuine(r.Header, body) {
		http.Error(w, "signature", http.StatusUnauthorized)
		return
	}
	happened, err := time.Parse(time.RFC3339, r.Header.Get(headerHappened))
	var payment PaymentReceived
	if err := errors.Join(err, json.Unmarshal(body, &payment)); err != nil {
		http.Error(w, "not a payment", http.StatusBadRequest) // it will not become better
		return
	}
	// This provider gives its deliveries no id. Without one the fact is named
	// by its content and by when it happened, not by when it was sent.
	key := idempotency.WebhookKey("provider", body, happened)
	ctx := r.Context()
	err = pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		created, err := idempotency.CreateOrMatch(ctx, tx, idempotency.Record{Table: "webhook", Key: map[string]any{"key": key}})
		if err != nil || !created {
			return err // a repeat: the event is in the outbox
		}
		return outbox.Append(ctx, tx, received.New(payment.Invoice, payment))
	})
	if _, invalid := errors.AsType[*outbox.InvalidError](err); invalid {
		http.Error(w, "not a payment", http.StatusBadRequest)
		return
	}
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	// Only now: 2xx tells the provider to forget it.
	w.WriteHeader(http.StatusNoContent)
}

// received is the event that a webhook becomes.
var received = outbox.Type[PaymentReceived]("invoice", "payment.received")

func (h receiver) genuine(header http.Header, body []byte) bool {
	given, err := hex.DecodeString(header.Get(headerSignature))
	if err != nil || !hmac.Equal(given, sign(h.secret, header, body)) {
		return false
	}
	sent, err := strconv.ParseInt(header.Get(headerSent), 10, 64)
	age := h.now().Sub(time.Unix(sent, 0))
	return err == nil && age < maxAge && age > -maxAge
}

// sign covers all that is believed: the body and both times.
func sign(secret []byte, header http.Header, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	for _, part := range []string{header.Get(headerHappened), header.Get(headerSent)} {
		mac.Write([]byte(part))
		mac.Write([]byte{'\n'})
	}
	mac.Write(body)
	return mac.Sum(nil)
}
