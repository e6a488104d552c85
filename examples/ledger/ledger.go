package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/outbox"
)

// Posted is a fact: this much was posted to this account.
type Posted struct {
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

var posted = outbox.Type[Posted]("account", "account.posted")

const subject = "outbox." + sandbox.Source + ".account.>"

// A ledger is the service that posts, and its consumers.
type ledger struct {
	box *sandbox.Sandbox
	out io.Writer
}

func (l *ledger) say(format string, args ...any) { fmt.Fprintf(l.out, format+"\n", args...) }

// post writes events in transactions of ten.
func (l *ledger) post(ctx context.Context, n int) error {
	for first := 0; first < n; first += 10 {
		events := make([]outbox.Event, 0, 10)
		for i := first; i < min(first+10, n); i++ {
			account := []string{"ann", "bob", "eve"}[i%3]
			events = append(events, posted.New(account, Posted{Account: account, Cents: int64(i*37%1000 - 300)}))
		}
		if err := pgx.BeginFunc(ctx, l.box.Pool, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, events...) }); err != nil {
			return err
		}
	}
	return nil
}

// deliver gives the whole stream to both consumers, from its beginning.
func (l *ledger) deliver(ctx context.Context) error {
	stream, err := l.box.JetStream.Stream(ctx, sandbox.Stream)
	if err != nil {
		return fmt.Errorf("look up the stream: %w", err)
	}
	if err := sandbox.Until(ctx, func() error {
		info, err := stream.Info(ctx)
		if err == nil && info.State.Msgs != postings {
			err = fmt.Errorf("the stream has %d messages, want %d", info.State.Msgs, postings)
		}
		return err
	}); err != nil {
		return err
	}
	if err := l.deltas(ctx, stream); err != nil {
		return err
	}
	return l.facts(ctx, stream)
}

// deltas is the wrong consumer: it adds what comes. A redelivery, which no
// broker can exclude, counts twice.
func (l *ledger) deltas(ctx context.Context, stream jetstream.Stream) error {
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return fmt.Errorf("make the consumer of deltas: %w", err)
	}
	for range postings {
		m, err := consumer.Next()
		if err != nil {
			return fmt.Errorf("next delta: %w", err)
		}
		var p Posted
		if err := json.Unmarshal(m.Data(), &p); err != nil {
			return fmt.Errorf("read a delta: %w", err)
		}
		if _, err := l.box.Pool.Exec(ctx, `INSERT INTO delta AS d VALUES ($1, $2)
			ON CONFLICT (account) DO UPDATE SET cents = d.cents + excluded.cents`, p.Account, p.Cents); err != nil {
			return err
		}
	}
	return nil
}

// facts is the right one. The entry alone would do, also without receipts: it
// says what is, and not what to add. The running total is an addition, and is
// made only where the entry is new.
func (l *ledger) facts(ctx context.Context, stream jetstream.Stream) error {
	// As if all acknowledgements had been lost.
	if err := l.box.Redeliver(ctx, "ledger"); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return err
	}
	consumer, err := inbox.New(inbox.Config{ //nolint:contextcheck // New bounds its look at the tables by itself
		Name: "ledger", DB: l.box.Pool, JetStream: l.box.JetStream, Stream: sandbox.Stream, Subjects: []string{subject}, Batch: 50,
	})
	if err != nil {
		return err
	}
	inbox.On(consumer, posted.Name(), func(ctx context.Context, tx pgx.Tx, e inbox.Event[Posted]) error {
		tag, err := tx.Exec(ctx, `INSERT INTO entry (event_id, account, cents) VALUES ($1, $2, $3)
			ON CONFLICT (event_id) DO NOTHING`, e.ID, e.Data.Account, e.Data.Cents)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO total AS t VALUES ($1, $2)
			ON CONFLICT (account) DO UPDATE SET cents = t.cents + excluded.cents`, e.Data.Account, e.Data.Cents)
		return err
	})
	stop := sandbox.Background(ctx, consumer.Run)
	err = sandbox.Until(ctx, func() error {
		c, err := stream.Consumer(ctx, "ledger")
		if err != nil {
			return err
		}
		if floor := c.CachedInfo().AckFloor.Stream; floor != postings {
			return fmt.Errorf("%d messages are acknowledged, want %d", floor, postings)
		}
		return nil
	})
	return errors.Join(err, stop())
}

func (l *ledger) show(ctx context.Context) error {
	for _, row := range []struct{ what, query string }{
		{"committed by the service", `SELECT sum((payload->>'cents')::bigint) FROM walrelay.outbox`},
		{"facts: sum of the entries", `SELECT sum(cents) FROM entry`},
		{"facts: running total", `SELECT sum(cents) FROM total`},
		{"deltas: added up", `SELECT sum(cents) FROM delta`},
	} {
		n, err := l.box.Number(ctx, row.query)
		if err != nil {
			return err
		}
		l.say("   %-28s %8d cents", row.what, n)
	}
	return nil
}

// wrong counts accounts whose running total is not the sum of their entries.
const wrong = `SELECT count(*) FROM (SELECT account, sum(cents) AS cents FROM entry GROUP BY account) AS e
	FULL JOIN total AS t USING (account) WHERE e.cents IS DISTINCT FROM t.cents`

// lose corrupts the running total, finds it, and rebuilds it.
func (l *ledger) lose(ctx context.Context) error {
	l.say("Somebody corrects a total by hand, and deletes another:")
	if _, err := l.box.Pool.Exec(ctx, `UPDATE total SET cents = cents + 1 WHERE account = 'ann'`); err != nil {
		return err
	}
	if _, err := l.box.Pool.Exec(ctx, `DELETE FROM total WHERE account = 'bob'`); err != nil {
		return err
	}
	found, err := l.box.Number(ctx, wrong)
	if err != nil {
		return err
	}
	l.say("   compared with the facts, %d totals are wrong", found)
	if found != 2 {
		return fmt.Errorf("%d totals are wrong, want 2", found)
	}
	// New entries wait for the lock until the rebuilt totals are committed.
	return pgx.BeginFunc(ctx, l.box.Pool, func(tx pgx.Tx) error {
		for _, statement := range []string{
			`LOCK TABLE entry IN SHARE MODE`,
			`DELETE FROM total`,
			`INSERT INTO total SELECT account, sum(cents) FROM entry GROUP BY account`,
		} {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// verdict fails unless the ways that should be right are, and the other is not.
func (l *ledger) verdict(ctx context.Context) error {
	for _, check := range []struct {
		what  string
		want  int64
		query string
	}{
		{"totals that differ from the facts, rebuilt", 0, wrong},
		{"entries without an event", 0, `SELECT count(*) FROM entry WHERE NOT EXISTS (SELECT FROM walrelay.outbox AS o WHERE o.id = event_id)`},
		{"events without an entry", 0, `SELECT count(*) FROM walrelay.outbox AS o WHERE NOT EXISTS (SELECT FROM entry WHERE event_id = o.id)`},
		{"accounts whose deltas are wrong", 3, `SELECT count(*) FROM delta JOIN total USING (account) WHERE delta.cents <> total.cents`},
	} {
		got, err := l.box.Number(ctx, check.query)
		if err != nil {
			return err
		}
		l.say("%s: %d", check.what, got)
		if got != check.want {
			return fmt.Errorf("%s: %d, want %d", check.what, got, check.want)
		}
	}
	return nil
}
