package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
)

// pollTable is a table as those who poll have it: with a column that says
// whether a row is published.
const pollTable = "walrelay_bench_poll"

// runPoll is the relay that users write: rows that are not marked are read in
// order, published and marked. One by one, or a thousand at a time with
// asynchronous publishing; then in a batch nothing keeps the order where a
// message is lost, which never happens here.
func runPoll(ctx context.Context, j job, batch int) error {
	db, err := pgx.Connect(ctx, j.Database)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer db.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it ends with the process
	nc, err := nats.Connect(j.NATS)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1024))
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	subject := "outbox." + j.Source + ".order.placed"
	for {
		n, err := pollOnce(ctx, db, js, subject, batch)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case n > 0:
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func pollOnce(ctx context.Context, db *pgx.Conn, js jetstream.JetStream, subject string, batch int) (n int, err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing
	most := 100
	if batch > 1 {
		most = batch
	}
	rows, err := tx.Query(ctx, `SELECT seq, id::text, payload::text FROM `+pollTable+` WHERE published_at IS NULL ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED`, most)
	if err != nil {
		return 0, fmt.Errorf("read the table: %w", err)
	}
	type event struct {
		Seq         int64
		ID, Payload string
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	if err != nil {
		return 0, fmt.Errorf("read the table: %w", err)
	}
	var seqs []int64
	var acks []jetstream.PubAckFuture
	for _, e := range events {
		seqs = append(seqs, e.Seq)
		m := &nats.Msg{Subject: subject, Data: []byte(e.Payload), Header: nats.Header{envelope.HeaderMsgID: []string{e.ID}}}
		if batch == 1 {
			if _, err := js.PublishMsg(ctx, m); err != nil {
				return 0, fmt.Errorf("publish: %w", err)
			}
			continue
		}
		ack, err := js.PublishMsgAsync(m)
		if err != nil {
			return 0, fmt.Errorf("publish: %w", err)
		}
		acks = append(acks, ack)
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return 0, fmt.Errorf("publish: %w", err)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if len(seqs) > 0 {
		if _, err := tx.Exec(ctx, `UPDATE `+pollTable+` SET published_at = now() WHERE seq = ANY($1)`, seqs); err != nil {
			return 0, fmt.Errorf("mark: %w", err)
		}
	}
	return len(events), tx.Commit(ctx)
}

// fillPoll gives the pollers a copy of the first rows of the outbox, none of
// them published.
func (g *ground) fillPoll(ctx context.Context, rows int) error {
	for _, sql := range []string{
		`DROP TABLE IF EXISTS ` + pollTable,
		fmt.Sprintf(`CREATE TABLE %s AS SELECT seq, id, payload, NULL::timestamptz AS published_at FROM %s.outbox ORDER BY seq LIMIT %d`, pollTable, schema, rows),
		`ALTER TABLE ` + pollTable + ` ADD PRIMARY KEY (seq)`,
		`CREATE INDEX ON ` + pollTable + ` (seq) WHERE published_at IS NULL`,
		`ANALYZE ` + pollTable,
	} {
		if _, err := g.db.Exec(ctx, sql); err != nil {
			return fmt.Errorf("make the table to be polled: %w", err)
		}
	}
	return nil
}

// runSingle publishes ready-made messages one after the other, each when the
// one before it is acknowledged: what a server that syncs every write is
// measured against.
func runSingle(ctx context.Context, j job) error {
	nc, err := nats.Connect(j.NATS)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	for n := range j.Rows {
		m := readyMade(&j, n)
		msg := &nats.Msg{Subject: m.Subject, Data: m.Body, Header: nats.Header{envelope.HeaderMsgID: []string{m.MsgID}}}
		for _, h := range m.Headers {
			msg.Header[h.Name] = []string{h.Value}
		}
		if _, err := js.PublishMsg(ctx, msg); err != nil {
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return fmt.Errorf("publish: %w", err)
		}
	}
	<-ctx.Done()
	return nil
}
