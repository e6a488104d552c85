package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/internal/deadletter"
)

// consumerBox is the dead letters of one consumer.
type consumerBox struct {
	conn             *pgx.Conn
	schema, consumer string
}

// known refuses the name of a consumer that this database has never seen: a
// slip of the pen would look like good news.
func (b consumerBox) known(e *env) error {
	names, err := deadletter.ConsumerNames(e.ctx, b.conn, b.schema)
	if err != nil {
		return b.explain(err)
	}
	if slices.Contains(names, b.consumer) {
		return nil
	}
	if len(names) == 0 {
		return fmt.Errorf("no consumer %q: none has run with this database and schema %q yet", b.consumer, b.schema)
	}
	return fmt.Errorf("no consumer %q in this database; there is %s", b.consumer, strings.Join(names, ", "))
}

// explain says what to run where the tables are missing or old.
func (b consumerBox) explain(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == "42P01" || pgErr.Code == "42703" || pgErr.Code == "3F000") {
		return fmt.Errorf("schema %q lacks tables of this version; run `walrelay migrate --consumer` on the consumer's database: %w", b.schema, err)
	}
	return err
}

// pages calls each for all letters of a filter, oldest first.
func (b consumerBox) pages(e *env, f deadletter.ConsumerFilter, each func(l *deadletter.ConsumerLetter) error) error {
	if err := b.known(e); err != nil {
		return err
	}
	f.Consumer, f.Limit = b.consumer, 1000
	for {
		letters, err := deadletter.ListConsumer(e.ctx, b.conn, b.schema, f)
		if err != nil {
			return b.explain(err)
		}
		for i := range letters {
			if err := each(&letters[i]); err != nil {
				return err
			}
		}
		if len(letters) < f.Limit {
			return nil
		}
		f.After = letters[len(letters)-1].ID
	}
}

func (b consumerBox) list(e *env, f deadletter.ConsumerFilter, asJSON bool) error {
	table := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	encoder := json.NewEncoder(e.stdout)
	if !asJSON {
		_, _ = fmt.Fprintln(table, "ID\tRECORDED\tREASON\tAGGREGATE\tEVENT\tSEQUENCE\tATTEMPTS\tSTATE\tEVENT ID\tERROR")
	}
	err := b.pages(e, f, func(l *deadletter.ConsumerLetter) error {
		if asJSON {
			return encoder.Encode(l)
		}
		_, err := fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", l.ID, stamp(l.At), l.Reason, oneLine(l.Aggregate), oneLine(l.EventType),
			l.Sequence, l.Attempts, consumerState(l), oneLine(l.EventID), oneLine(l.Error))
		return err
	})
	return errors.Join(err, table.Flush())
}

func consumerState(l *deadletter.ConsumerLetter) string {
	switch {
	case !l.ResolvedAt.IsZero():
		return firstOf(l.Resolution, "resolved")
	case !l.RequeueAt.IsZero():
		return "to be tried again"
	}
	return "open"
}

func (b consumerBox) show(e *env, id int64, asJSON bool) error {
	l, err := deadletter.GetConsumer(e.ctx, b.conn, b.schema, b.consumer, id)
	if errors.Is(err, deadletter.ErrNone) {
		return errors.Join(b.known(e), fmt.Errorf("%w; walrelay deadletters --consumer %s list --all shows which there are", err, b.consumer))
	}
	if err != nil {
		return b.explain(err)
	}
	if asJSON {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(l)
	}
	return printConsumerLetter(e.stdout, &l)
}

func printConsumerLetter(out io.Writer, l *deadletter.ConsumerLetter) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", name, value) // Flush tells
		}
	}
	line("id", fmt.Sprint(l.ID))
	line("consumer", l.Consumer)
	line("state", consumerState(l))
	line("reason", l.Reason)
	line("error", printable(l.Error))
	line("attempts", fmt.Sprint(l.Attempts))
	line("event id", oneLine(l.EventID))
	line("event type", oneLine(l.EventType))
	line("aggregate", oneLine(l.Aggregate))
	line("stream", fmt.Sprintf("%s, sequence %d", l.Stream, l.Sequence))
	line("subject", oneLine(l.Subject))
	line("stored", stamp(l.StoredAt))
	line("recorded", stamp(l.At))
	line("resolved", stamp(l.ResolvedAt))
	line("resolved by", oneLine(l.ResolvedBy))
	for _, s := range l.History {
		line("history", historyLine(s))
	}
	line("headers", string(l.Headers))
	switch {
	case l.Payload == nil && l.PayloadSize > 0:
		line("payload", fmt.Sprintf("%d bytes, too large to be copied; a requeue reads them from the stream", l.PayloadSize))
	case utf8.Valid(l.Payload) && !strings.ContainsFunc(string(l.Payload), hostile):
		line("payload", string(l.Payload))
	default:
		line("payload", fmt.Sprintf("%d bytes that are no plain text; --json shows them in base64", len(l.Payload)))
	}
	return w.Flush()
}

func historyLine(s deadletter.ConsumerStep) string {
	parts := []string{stamp(s.At) + " " + s.Did}
	if s.By != "" {
		parts[0] += " by " + printable(s.By)
	}
	for _, more := range []string{s.Why, s.Error} {
		if more != "" {
			parts = append(parts, printable(more))
		}
	}
	return strings.Join(parts, ": ")
}

// printable quotes a text that would steer a terminal.
func printable(s string) string {
	if strings.ContainsFunc(s, hostile) || strings.ContainsAny(s, "\t\n") {
		return fmt.Sprintf("%q", s)
	}
	return s
}

// mostShown is how many dead letters are shown before a question.
const mostShown = 20

// choose finds the open letters that a change is for, and says which they are.
func (b consumerBox) choose(e *env, f deadletter.ConsumerFilter, what string) ([]int64, error) {
	var letters []deadletter.ConsumerLetter
	wanted := slices.Clone(f.IDs)
	err := b.pages(e, f, func(l *deadletter.ConsumerLetter) error {
		letters = append(letters, *l)
		wanted = slices.DeleteFunc(wanted, func(id int64) bool { return id == l.ID })
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("no open dead letter of consumer %q has the id %s; walrelay deadletters --consumer %s list shows which there are",
			b.consumer, strings.Trim(fmt.Sprint(wanted), "[]"), b.consumer)
	}
	if len(letters) == 0 {
		fmt.Fprintln(e.stdout, "no open dead letter")
		return nil, nil
	}
	fmt.Fprintf(e.stdout, "%s: %d of consumer %q\n", what, len(letters), b.consumer)
	table := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
	ids := make([]int64, len(letters))
	for i := range letters {
		l := &letters[i]
		if ids[i] = l.ID; i < mostShown {
			_, _ = fmt.Fprintf(table, "  %d\t%s\t%s\t%s\t%s\t%s\n", l.ID, l.Reason, oneLine(l.Aggregate), oneLine(l.EventType), oneLine(l.EventID), oneLine(l.Error))
		}
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	if more := len(letters) - mostShown; more > 0 {
		fmt.Fprintf(e.stdout, "  and %d more\n", more)
	}
	return ids, nil
}

// ask chooses letters, shows them as what, asks the question, which holds their
// number, and has do change them. No ids means that nothing was changed.
func (b consumerBox) ask(e *env, c *chosen, what, question string, do func(q deadletter.Querier, ids []int64) ([]int64, error)) (ids []int64, done int, err error) {
	filter, err := c.filter()
	if err != nil {
		return nil, 0, err
	}
	if ids, err = b.choose(e, filter, what); err != nil || len(ids) == 0 {
		return nil, 0, err
	}
	if yes, err := c.confirmed(e, fmt.Sprintf(question, len(ids))); err != nil || !yes {
		return nil, 0, err
	}
	done, err = b.change(e, ids, func(q deadletter.Querier) ([]int64, error) { return do(q, ids) })
	return ids, done, err
}

// change makes a change in a transaction that does not wait long for a handler
// that has one of the letters, and says which it was not made to.
func (b consumerBox) change(e *env, ids []int64, do func(q deadletter.Querier) ([]int64, error)) (int, error) {
	var done []int64
	err := pgx.BeginFunc(e.ctx, b.conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(e.ctx, `SELECT set_config('lock_timeout', '10s', true), set_config('synchronous_commit',
			CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' ELSE current_setting('synchronous_commit') END, true)`)
		if err == nil {
			done, err = do(tx)
		}
		return err
	})
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "55P03" {
		return 0, fmt.Errorf("the service is trying one of them at this moment; nothing was changed, repeat it soon: %w", err)
	}
	if err != nil {
		return 0, b.explain(err)
	}
	if left := len(ids) - len(done); left > 0 {
		fmt.Fprintf(e.stdout, "left as they were, since they are being tried or were dealt with meanwhile: %d\n", left)
	}
	return len(done), nil
}

// await waits until the service is through with letters.
func (b consumerBox) await(e *env, ids []int64, patience time.Duration) error {
	ended := time.NewTimer(patience)
	defer ended.Stop()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		applied, failed, waiting := 0, 0, 0
		err := b.pages(e, deadletter.ConsumerFilter{IDs: ids, All: true}, func(l *deadletter.ConsumerLetter) error {
			switch {
			case l.Resolution == "requeued":
				applied++
			case l.RequeueAt.IsZero():
				failed++
			default:
				waiting++
			}
			return nil
		})
		if err != nil {
			return err
		}
		timeout := false
		if waiting > 0 {
			select {
			case <-e.ctx.Done():
				return e.ctx.Err()
			case <-ended.C:
				timeout = true
			case <-look.C:
				continue
			}
		}
		fmt.Fprintf(e.stdout, "applied: %d, failed again: %d, not tried yet: %d\n", applied, failed, waiting)
		switch {
		case timeout:
			return fmt.Errorf("%d were not tried within %v: does a service run as consumer %q?", waiting, patience, b.consumer)
		case failed > 0:
			return errCheckFailed
		}
		return nil
	}
}
