// Command webhook receives payments as webhooks from a provider that delivers
// them again and again, and credits each of them once.
//
//	go run ./examples/webhook
//
// The way is: webhook, outbox, relay, stream, consumer. It starts servers of
// its own and removes them afterwards.
package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/internal/testenv"
)

func main() {
	testenv.Main() // the sandbox needs it; a service does not
	if err := run(context.Background(), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "webhook:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

var secret = []byte("shared with the provider")

func run(ctx context.Context, out io.Writer) (err error) {
	box, err := sandbox.Open(ctx,
		`CREATE TABLE webhook (key text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())`,
		`CREATE TABLE invoice (id text PRIMARY KEY, paid_cents bigint NOT NULL DEFAULT 0)`,
		`INSERT INTO invoice (id) VALUES ('I-1'), ('I-2')`,
	)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	if err := box.StartRelay(ctx); err != nil {
		return err
	}
	consumer, err := newConsumer(box) //nolint:contextcheck // inbox.New bounds its look at the tables by itself
	if err != nil {
		return err
	}
	stop := sandbox.Background(ctx, consumer.Run)
	defer func() { err = errors.Join(err, stop()) }()

	server := httptest.NewServer(receiver{pool: box.Pool, secret: secret, now: time.Now})
	defer server.Close()
	p := provider{url: server.URL, client: server.Client(), out: out}
	return p.play(ctx, box)
}

// newConsumer credits payments. Its effect is an addition, which must not
// happen twice: the receipt that inbox commits with it sees to that.
func newConsumer(box *sandbox.Sandbox) (*inbox.Consumer, error) {
	consumer, err := inbox.New(inbox.Config{
		Name: "billing", DB: box.Pool, JetStream: box.JetStream,
		Stream: sandbox.Stream, Subjects: []string{"outbox." + sandbox.Source + ".invoice.>"},
	})
	if err != nil {
		return nil, err
	}
	inbox.On(consumer, received.Name(), func(ctx context.Context, tx pgx.Tx, e inbox.Event[PaymentReceived]) error {
		tag, err := tx.Exec(ctx, `UPDATE invoice SET paid_cents = paid_cents + $1 WHERE id = $2`, e.Data.Cents, e.Data.Invoice)
		if err == nil && tag.RowsAffected() == 0 {
			return inbox.Permanent(errors.New("no such invoice"))
		}
		return err
	})
	return consumer, nil
}

// A provider sends webhooks.
type provider struct {
	url    string
	client *http.Client
	out    io.Writer
}

func (p provider) play(ctx context.Context, box *sandbox.Sandbox) error {
	morning := time.Date(2026, 1, 2, 8, 0, 0, 0, time.UTC)
	evening := morning.Add(12 * time.Hour)
	const body = `{"invoice":"I-1","cents":1999}`
	for _, step := range []struct {
		what     string
		body     string
		happened time.Time
		sent     time.Time
		key      []byte
		times    int
		want     int
	}{
		{"a payment of 19.99", body, morning, time.Now(), secret, 1, http.StatusNoContent},
		{"the same, delivered again", body, morning, time.Now(), secret, 1, http.StatusNoContent},
		{"the same, by another worker that writes JSON in its own way", "{\n \"cents\": 1999,\n \"invoice\": \"I-1\"\n}", morning, time.Now(), secret, 1, http.StatusNoContent},
		{"the same, twenty times at once", body, morning, time.Now(), secret, 20, http.StatusNoContent},
		{"a second payment of the same sum, in the evening", body, evening, time.Now(), secret, 3, http.StatusNoContent},
		{"a payment for another invoice, five times", `{"invoice":"I-2","cents":500}`, morning, time.Now(), secret, 5, http.StatusNoContent},
		{"a forged one", `{"invoice":"I-2","cents":999999}`, morning, time.Now(), []byte("guessed"), 1, http.StatusUnauthorized},
		{"a recorded one, played back after an hour", body, morning, time.Now().Add(-time.Hour), secret, 1, http.StatusUnauthorized},
		{"one that is no payment", `{"invoice":""}`, morning, time.Now(), secret, 1, http.StatusBadRequest},
	} {
		fmt.Fprintf(p.out, "%-60s -> %d\n", step.what, step.want)
		var deliveries errgroup.Group
		for range step.times {
			deliveries.Go(func() error {
				got, err := p.deliver(ctx, step.body, step.happened, step.sent, step.key)
				if err == nil && got != step.want {
					err = fmt.Errorf("%s: status %d, want %d", step.what, got, step.want)
				}
				return err
			})
		}
		if err := deliveries.Wait(); err != nil {
			return err
		}
	}
	return p.compare(ctx, box)
}

func (p provider) deliver(ctx context.Context, body string, happened, sent time.Time, key []byte) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewBufferString(body))
	if err != nil {
		return 0, fmt.Errorf("make a delivery: %w", err)
	}
	req.Header.Set(headerHappened, happened.Format(time.RFC3339))
	req.Header.Set(headerSent, strconv.FormatInt(sent.Unix(), 10))
	req.Header.Set(headerSignature, hex.EncodeToString(sign(key, req.Header, []byte(body))))
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("deliver: %w", err)
	}
	return resp.StatusCode, resp.Body.Close()
}

// compare waits for the consumer and looks at the books: thirty genuine
// deliveries of three payments.
func (p provider) compare(ctx context.Context, box *sandbox.Sandbox) error {
	for _, want := range []struct {
		what  string
		n     int64
		query string
	}{
		{"payments written down", 3, `SELECT count(*) FROM webhook`},
		{"events in the outbox", 3, `SELECT count(*) FROM walrelay.outbox`},
		{"events applied", 3, `SELECT count(*) FROM walrelay.receipt WHERE consumer = 'billing'`},
		{"cents paid on I-1", 2 * 1999, `SELECT paid_cents FROM invoice WHERE id = 'I-1'`},
		{"cents paid on I-2", 500, `SELECT paid_cents FROM invoice WHERE id = 'I-2'`},
	} {
		if err := box.Await(ctx, want.n, want.query); err != nil {
			return fmt.Errorf("%s: %w", want.what, err)
		}
		fmt.Fprintf(p.out, "%-60s    %d\n", want.what, want.n)
	}
	return nil
}
