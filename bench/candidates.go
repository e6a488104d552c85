package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/slot"
)

func candidates() []string { return []string{"reader", "publisher", "proto", "relay"} }

// candidate is the process that is measured.
func candidate(args []string) error {
	if len(args) != 7 {
		return fmt.Errorf("candidate wants 7 arguments, not %d", len(args))
	}
	name, database, broker, source := args[0], args[1], args[2], args[3]
	rows, err := strconv.Atoi(args[4])
	if err != nil {
		return fmt.Errorf("rows: %w", err)
	}
	size, err := strconv.Atoi(args[5])
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	end, err := envelope.ParseLSN(args[6])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if dir := os.Getenv("BENCH_PROFILE"); dir != "" {
		f, err := os.Create(filepath.Join(dir, name+".pprof"))
		if err != nil {
			return fmt.Errorf("make the profile: %w", err)
		}
		defer f.Close() //nolint:errcheck // the profile is whole or useless
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("start the profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	switch name {
	case "reader":
		return read(ctx, database, source, end)
	case "publisher":
		return publishReady(ctx, broker, source, rows, size)
	case "proto":
		return runProto(ctx, database, broker, source)
	case "relay":
		r, err := walrelay.New(walrelay.Config{DatabaseURL: database, NATS: broker, Source: source, Publication: baseSlot})
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
	return fmt.Errorf("no candidate %q; there are %s", name, strings.Join(candidates(), ", "))
}

// read is PostgreSQL alone: everything is decoded, and confirmed as it comes.
func read(ctx context.Context, database, source string, end envelope.LSN) error {
	cfg, err := pgconn.ParseConfig(database)
	if err != nil {
		return fmt.Errorf("read our own URL: %w", err)
	}
	c, err := slot.Connect(ctx, slot.Config{Postgres: cfg, Slot: source, Publication: baseSlot})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Start(ctx, 0); err != nil {
		return err
	}
	var f slot.Frame
	var d decode.Decoder
	var m decode.Message
	for last := envelope.LSN(0); last < end; {
		if err := c.Next(&f); err != nil {
			return err
		}
		if f.Data == nil {
			last = f.WALEnd
			if err := c.Status(last, false); err != nil {
				return err
			}
			continue
		}
		if err := d.Decode(f.Data, &m); err != nil {
			return err
		}
		if m.Kind == decode.KindCommit {
			last = m.EndLSN
		}
	}
	return c.Status(end, false)
}

// publishReady is JetStream alone: ready-made messages with the headers of a
// relay go through our publisher.
func publishReady(ctx context.Context, broker, source string, rows, size int) error {
	conn, err := publish.Open(ctx, publish.ConnConfig{URLs: broker, Name: "bench"})
	if err != nil {
		return err
	}
	defer conn.Close()
	s := publish.New(conn, publish.Config{Stream: strings.ToUpper(source), Source: source, Stored: func(publish.StoredRun) {}})
	tail, err := s.Tail(ctx)
	if err != nil {
		return err
	}
	s.Begin(ctx, tail, 0)
	// The parent interrupts as soon as the stream holds everything, which is
	// before the last acknowledgements are read.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(work) }()
	defer func() {
		stop()
		<-ended //nolint:errcheck // it ends because it was told to
	}()
	subject := "outbox." + source + ".order.placed"
	headers := []envelope.Header{
		{Name: envelope.HeaderSource, Value: source},
		{Name: envelope.HeaderPosition, Value: ""},
		{Name: envelope.HeaderCommittedAt, Value: "2026-01-02T03:04:05.678901Z"},
		{Name: envelope.HeaderAggregateType, Value: "order"},
		{Name: envelope.HeaderAggregateID, Value: "123"},
		{Name: envelope.HeaderEventType, Value: "placed"},
		{Name: envelope.HeaderCreatedAt, Value: "2026-01-02 03:04:05.678901+00"},
	}
	filler := strings.Repeat("x", max(0, size-20))
	for n := range rows {
		pos := envelope.Position{Epoch: 1, Commit: 0x1000000, Index: uint64(n)}
		headers[1].Value = pos.String()
		m := publish.Message{
			Subject: subject, Headers: headers, MsgID: uuid.NewString(), Body: fmt.Appendf(nil, `{"n": %d, "x": %q}`, n, filler),
		}
		if err := s.Send(ctx, 1, pos, &m); err != nil {
			return err
		}
	}
	if err := s.Drain(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done() // the parent looks at the stream and then ends us
	return nil
}
