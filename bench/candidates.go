package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay"
	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/testenv/pgbin"
)

// The candidates.
const (
	reader    = "reader"      // PostgreSQL alone: decoded and confirmed as it comes
	recv      = "recvlogical" // PostgreSQL alone, by its own pg_recvlogical
	publisher = "publisher"   // JetStream alone: ready-made messages through our publisher
	single    = "one-by-one"  // JetStream alone, each message when the one before is stored
	proto     = "proto"       // a pipeline that knows no failure
	protoSame = "proto-same"  // the same with all the headers of a relay
	relay     = "relay"
	poll      = "poll"       // polling, one message after the other
	pollBatch = "poll-batch" // polling a thousand rows, published asynchronously
)

func candidates() []string {
	return []string{reader, recv, publisher, single, proto, protoSame, relay, pollBatch, poll}
}

// A job is what the process of a candidate gets to know.
type job struct {
	Candidate, Database, NATS, Source, Schema string
	Rows, Size                                int
	End                                       envelope.LSN
	Lanes                                     bool
	Batches                                   string
	Retention                                 time.Duration
	Streams, Types                            []string // the event types that each one takes
}

// candidate is the process that is measured.
func candidate(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return fmt.Errorf("read the candidate's task: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if dir := os.Getenv("BENCH_PROFILE"); dir != "" {
		end, err := profile(dir, j.Candidate)
		if err != nil {
			return err
		}
		defer end()
	}
	return j.run(ctx)
}

func (j job) run(ctx context.Context) error {
	switch j.Candidate {
	case reader:
		return read(ctx, j)
	case publisher:
		return publishReady(ctx, j)
	case single:
		return runSingle(ctx, j)
	case recv:
		return runRecvlogical(ctx, j)
	case proto:
		return runProto(ctx, j, plainHeaders())
	case protoSame:
		return runProto(ctx, j, sameHeaders(&j))
	case poll:
		return runPoll(ctx, j, 1)
	case pollBatch:
		return runPoll(ctx, j, 1000)
	case relay:
		debug.SetGCPercent(150) // as the command has it
		cfg := walrelay.Config{DatabaseURL: j.Database, NATS: j.NATS, Source: j.Source, Publication: baseSlot, Schema: j.Schema, AtomicBatches: j.Batches, Retention: j.Retention}
		if j.Lanes {
			cfg.Streams = []walrelay.Stream{{Name: strings.ToUpper(j.Source), Shared: true}}
		}
		if len(j.Streams) > 1 {
			for i, stream := range j.Streams {
				cfg.Routes = append(cfg.Routes, walrelay.Route{EventTypes: j.Types[i : i+1], Stream: stream})
			}
		}
		r, err := walrelay.New(cfg)
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
	return fmt.Errorf("no candidate %q; there are %s", j.Candidate, strings.Join(candidates(), ", "))
}

// read is PostgreSQL alone: everything is decoded, and confirmed as it comes.
func read(ctx context.Context, j job) error {
	cfg, err := pgconn.ParseConfig(j.Database)
	if err != nil {
		return fmt.Errorf("read our own URL: %w", err)
	}
	c, err := slot.Connect(ctx, slot.Config{Postgres: cfg, Slot: j.Source, Publication: baseSlot})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Start(ctx, 0); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, c.Interrupt)()
	var f slot.Frame
	var d decode.Decoder
	var m decode.Message
	for last := envelope.LSN(0); last < j.End; {
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
	return c.Status(j.End, false)
}

// runRecvlogical has PostgreSQL's own program write everything to nowhere.
func runRecvlogical(ctx context.Context, j job) error {
	program := "pg_recvlogical"
	if version, err := pgbin.DefaultVersion(); err == nil {
		if dir, ok := pgbin.Find(version); ok { //nolint:contextcheck // its look at a version bounds itself; else that of the path is taken
			program = filepath.Join(dir, program)
		}
	}
	cmd := exec.CommandContext(ctx, program, "--dbname", j.Database, "--slot", j.Source, "--start", "--no-loop", "--endpos", j.End.String(),
		"--option", "proto_version=1", "--option", "publication_names="+baseSlot, "--file", os.DevNull)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_recvlogical: %w: %s", err, out)
	}
	return nil
}

// readyMade is message n as the relay would make it.
func readyMade(j *job, n int) publish.Message {
	pos := envelope.Position{Epoch: 1, Commit: 0x1000000, Index: uint64(n)}
	return publish.Message{
		Subject: "outbox." + j.Source + ".order.placed",
		Headers: []envelope.Header{
			{Name: envelope.HeaderSource, Value: j.Source},
			{Name: envelope.HeaderPosition, Value: pos.String()},
			{Name: envelope.HeaderCommittedAt, Value: "2026-01-02T03:04:05.678901Z"},
			{Name: envelope.HeaderAggregateType, Value: "order"},
			{Name: envelope.HeaderAggregateID, Value: "123"},
			{Name: envelope.HeaderEventType, Value: "placed"},
			{Name: envelope.HeaderCreatedAt, Value: "2026-01-02 03:04:05.678901+00"},
		},
		MsgID: uuid.NewString(), Body: fmt.Appendf(nil, `{"n": %d, "x": %q}`, n, strings.Repeat("x", max(0, j.Size-20))),
	}
}

// publishReady is JetStream alone: ready-made messages with the headers of a
// relay go through our publisher.
func publishReady(ctx context.Context, j job) error {
	conn, err := publish.Open(ctx, publish.ConnConfig{URLs: j.NATS, Name: "bench"})
	if err != nil {
		return err
	}
	defer conn.Close()
	s := publish.New(conn, publish.Config{Stream: strings.ToUpper(j.Source), Source: j.Source, Stored: func(publish.StoredRun) {}})
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
	for n := range j.Rows {
		m := readyMade(&j, n)
		pos := envelope.Position{Epoch: 1, Commit: 0x1000000, Index: uint64(n)}
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
