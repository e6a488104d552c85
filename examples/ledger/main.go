// Command ledger keeps a balance in three ways, while every event is delivered
// twice, and shows which of them survive: deltas are not among them.
//
//	go run ./examples/ledger
//
// "Add 5" is wrong when it is done twice. "Entry 7 says 5" is not, because an
// entry that is there already is the same entry. So the events are facts; the
// ledger stores them under their event ids; and the running total is only a
// sum that is kept at hand, checked against the facts, and rebuilt from them.
//
// The program starts servers of its own and removes them afterwards.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/walrelay/walrelay/examples/internal/sandbox"
	"github.com/walrelay/walrelay/internal/testenv"
)

func main() {
	testenv.Main() // the sandbox needs it; a service does not
	if err := run(context.Background(), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "ledger:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

var schema = []string{
	// Facts. The event's id is the key: no entry can be there twice.
	`CREATE TABLE entry (
		event_id uuid PRIMARY KEY, account text NOT NULL, cents bigint NOT NULL, at timestamptz NOT NULL DEFAULT now())`,
	// What is derived from them.
	`CREATE TABLE total (account text PRIMARY KEY, cents bigint NOT NULL DEFAULT 0)`,
	// The wrong way: nothing but the sum, and no receipts.
	`CREATE TABLE delta (account text PRIMARY KEY, cents bigint NOT NULL DEFAULT 0)`,
}

// postings is the number of events.
const postings = 200

func run(ctx context.Context, out io.Writer) (err error) {
	box, err := sandbox.Open(ctx, schema...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	if err := box.StartRelay(ctx); err != nil {
		return err
	}
	l := &ledger{box: box, out: out}
	if err := l.post(ctx, postings); err != nil {
		return err
	}
	l.say("%d postings on three accounts are committed, and so are their events.", postings)

	for _, round := range []string{"Once around", "The whole stream again"} {
		l.say("%s:", round)
		if err := l.deliver(ctx); err != nil {
			return err
		}
		if err := l.show(ctx); err != nil {
			return err
		}
	}
	if err := l.lose(ctx); err != nil {
		return err
	}
	return l.verdict(ctx)
}
