package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walrelay/walrelay"
)

type tailCmd struct {
	broker `embed:""`

	Stream string `help:"JetStream stream." default:"WALRELAY"`
	From   string `help:"Where to begin: start, end, a sequence, or a time such as 10m (ago) or 2026-01-02T15:04:05Z." default:"end"`
	Count  int    `help:"End after so many messages; 0 goes on until stopped." default:"0"`
	JSON   bool   `name:"json" help:"One JSON object a message."`
}

// Run shows messages with an ordered consumer, which leaves nothing behind on
// the server.
func (c *tailCmd) Run(e *env) error {
	if c.NATS == "" {
		return &usageError{&walrelay.ConfigError{Field: "NATS", Reason: "is not set; give a URL such as nats://127.0.0.1:4222"}}
	}
	cfg, err := c.from(time.Now())
	if err != nil {
		return &usageError{err}
	}
	nc, err := c.connect("walrelay tail", nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := c.jetStream(nc)
	if err != nil {
		return err
	}
	consumer, err := js.OrderedConsumer(e.ctx, c.Stream, cfg)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("stream %q does not exist; walrelay migrate --stream %s makes it", c.Stream, c.Stream)
	}
	if err != nil {
		return fmt.Errorf("read stream %q: %w", c.Stream, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read stream %q: %w", c.Stream, err)
	}
	defer context.AfterFunc(e.ctx, messages.Stop)()
	for n := 0; c.Count == 0 || n < c.Count; n++ {
		msg, err := messages.Next()
		if e.ctx.Err() != nil || errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read stream %q: %w", c.Stream, err)
		}
		if err := c.show(e, msg); err != nil {
			return err
		}
	}
	return nil
}

func (c *tailCmd) from(now time.Time) (jetstream.OrderedConsumerConfig, error) {
	var cfg jetstream.OrderedConsumerConfig
	switch c.From {
	case "start":
		cfg.DeliverPolicy = jetstream.DeliverAllPolicy
		return cfg, nil
	case "end", "":
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
		return cfg, nil
	}
	var seq uint64
	if _, err := fmt.Sscanf(c.From+"\n", "%d\n", &seq); err == nil && seq > 0 && !strings.ContainsAny(c.From, "-.:smhT") {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, seq
		return cfg, nil
	}
	at, err := time.Parse(time.RFC3339, c.From)
	if err != nil {
		ago, derr := time.ParseDuration(c.From)
		if derr != nil || ago < 0 {
			return cfg, fmt.Errorf("--from %q: use start, end, a sequence, a duration such as 10m, or a time such as 2026-01-02T15:04:05Z", c.From)
		}
		at = now.Add(-ago)
	}
	cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &at
	return cfg, nil
}

type shownMessage struct {
	Sequence uint64            `json:"sequence"`
	Subject  string            `json:"subject"`
	Time     time.Time         `json:"time"`
	Headers  map[string]string `json:"headers"`
	Body     json.RawMessage   `json:"body,omitempty"` // where it is JSON
	Text     string            `json:"text,omitempty"` // where it is other text
	Bytes    []byte            `json:"bytes,omitempty"`
}

func (c *tailCmd) show(e *env, msg jetstream.Msg) error {
	meta, err := msg.Metadata()
	if err != nil {
		return fmt.Errorf("read the message's metadata: %w", err)
	}
	headers := make(map[string]string, len(msg.Headers()))
	for name, values := range msg.Headers() {
		headers[name] = strings.Join(values, ", ")
	}
	if c.JSON {
		shown := shownMessage{Sequence: meta.Sequence.Stream, Subject: msg.Subject(), Time: meta.Timestamp, Headers: headers}
		switch body := msg.Data(); {
		case json.Valid(body):
			shown.Body = body
		case utf8.Valid(body):
			shown.Text = string(body)
		default:
			shown.Bytes = body
		}
		return json.NewEncoder(e.stdout).Encode(shown)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "#%d  %s  %s\n", meta.Sequence.Stream, meta.Timestamp.UTC().Format(time.RFC3339Nano), msg.Subject())
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintf(&b, "    %s: %s\n", name, headers[name])
	}
	if utf8.Valid(msg.Data()) {
		fmt.Fprintf(&b, "  %s\n", msg.Data())
	} else {
		fmt.Fprintf(&b, "  (%d bytes)\n", len(msg.Data()))
	}
	_, err = fmt.Fprint(e.stdout, b.String())
	return err
}
