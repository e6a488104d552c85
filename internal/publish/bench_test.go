package publish_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/testenv"
	"github.com/walrelay/walrelay/internal/testenv/envtest"
)

// BenchmarkSend publishes 256-byte events with five headers to one replica on
// file. Allocations are the client's: one for the headers of a message, and
// those of each acknowledgement.
func BenchmarkSend(b *testing.B) {
	b.Run("chain", func(b *testing.B) {
		benchmarkSend(b, func(conn *publish.Conn, cfg publish.Config) publish.Publisher { return publish.New(conn, cfg) })
	})
	// A thousand keys in turn.
	b.Run("lanes", func(b *testing.B) {
		benchmarkSend(b, func(conn *publish.Conn, cfg publish.Config) publish.Publisher { return publish.NewLanes(conn, cfg) })
	})
}

func benchmarkSend(b *testing.B, build func(*publish.Conn, publish.Config) publish.Publisher) {
	b.Helper()
	srv := envtest.NATS(b, testenv.NATSConfig{})
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "EV", Subjects: []string{"ev.>"}}); err != nil {
		b.Fatal(err)
	}
	conn, err := publish.Open(b.Context(), publish.ConnConfig{URLs: srv.URL()})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	s := build(conn, publish.Config{Stream: "EV", Source: "bench", Stored: func(publish.StoredRun) {}})
	tail, err := s.Tail(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	s.Begin(b.Context(), tail, 0)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	m := publish.Message{Subject: "ev.order.placed", Body: make([]byte, 256), Headers: []envelope.Header{
		{Name: envelope.HeaderSource, Value: "bench"},
		{Name: envelope.HeaderPosition, Value: "1/0/16B3748/0"},
		{Name: envelope.HeaderAggregateType, Value: "order"},
		{Name: envelope.HeaderAggregateID, Value: "42"},
		{Name: envelope.HeaderEventType, Value: "order.placed"},
	}}
	var names [1000]string
	for i := range names {
		names[i] = "order " + strconv.Itoa(i)
	}
	id := make([]byte, 0, 32)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		id = strconv.AppendInt(id[:0], int64(i), 10)
		m.MsgID = string(id)
		m.Key = names[i%len(names)]
		if err := s.Send(ctx, uint64(i), envelope.Position{Epoch: 1, Commit: envelope.LSN(i)}, &m); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Drain(ctx); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}
