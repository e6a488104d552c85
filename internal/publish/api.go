package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// A StoredMessage is one message as the stream's leader has it.
type StoredMessage struct {
	Subject string
	Seq     uint64
	Header  nats.Header
	Body    []byte
	Time    time.Time
}

// A StreamInfo is what a stream's leader says of it.
type StreamInfo struct {
	// Created is when the stream was made: another time is another stream.
	Created time.Time
	// FirstSeq and LastSeq are the sequences of its oldest and newest
	// message. LastSeq does not fall when messages are removed.
	FirstSeq, LastSeq uint64
	// Messages and Bytes are what it holds.
	Messages, Bytes uint64
	// Leader is the server that leads, "" outside a cluster.
	Leader string
	// Facts is its configuration.
	Facts StreamFacts
}

func (c *Conn) apiSubject(rest string) string {
	switch {
	case c.cfg.APIPrefix != "":
		return c.cfg.APIPrefix + "." + rest
	case c.cfg.JSDomain != "":
		return "$JS." + c.cfg.JSDomain + ".API." + rest
	default:
		return "$JS.API." + rest
	}
}

// request asks JetStream's API once and gives the answer's bytes.
func (c *Conn) request(ctx context.Context, rest string, body []byte) ([]byte, error) {
	nc, err := c.client()
	if err != nil {
		return nil, err
	}
	subject := c.apiSubject(rest)
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	// A refused publish is answered only through onError: do not wait for
	// an answer that cannot come.
	stop := make(chan struct{})
	defer close(stop)
	go c.cancelWhenDenied(cancel, stop, asked, subject)
	m, err := nc.RequestWithContext(ctx, subject, body)
	switch {
	case err == nil:
		return m.Data, nil
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("JetStream not enabled: nobody answers on %q; enable it on the server and for the account, or correct the domain or API prefix", subject)
	}
	if why := c.deniedSince(asked, subject); why != "" {
		return nil, errors.New(why)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("no answer on %q within %v: the stream may have no leader", subject, c.cfg.RequestTimeout)
	}
	return nil, fmt.Errorf("ask on %q: %w", subject, err)
}

func (c *Conn) cancelWhenDenied(cancel func(), stop <-chan struct{}, asked time.Time, subject string) {
	for {
		c.mu.Lock()
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		if c.deniedSince(asked, subject) != "" {
			cancel()
			return
		}
		select {
		case <-changed:
		case <-stop:
			return
		}
	}
}

// StreamInfo asks the leader of stream for its end and configuration. An
// [*APIError] is JetStream's answer, such as 10059 for a missing stream.
func (c *Conn) StreamInfo(ctx context.Context, stream string) (StreamInfo, error) {
	data, err := c.request(ctx, "STREAM.INFO."+stream, nil)
	if err != nil {
		return StreamInfo{}, err
	}
	var wire struct {
		Error   *wireError `json:"error"`
		Created time.Time  `json:"created"`
		Config  wireConfig `json:"config"`
		State   struct {
			Messages uint64 `json:"messages"`
			Bytes    uint64 `json:"bytes"`
			FirstSeq uint64 `json:"first_seq"`
			LastSeq  uint64 `json:"last_seq"`
		} `json:"state"`
		Cluster *struct {
			Name   string `json:"name"`
			Leader string `json:"leader"`
		} `json:"cluster"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return StreamInfo{}, fmt.Errorf("answer about stream %q: %w", stream, err)
	}
	if wire.Error != nil {
		return StreamInfo{}, wire.Error.api()
	}
	info := StreamInfo{
		Created: wire.Created, FirstSeq: wire.State.FirstSeq, LastSeq: wire.State.LastSeq,
		Messages: wire.State.Messages, Bytes: wire.State.Bytes, Facts: wire.Config.facts(stream),
	}
	if wire.Cluster != nil {
		info.Leader = wire.Cluster.Leader
		// A group without a leader is answered for by any of its members.
		if wire.Cluster.Name != "" && info.Leader == "" {
			return StreamInfo{}, &APIError{Code: codeNotLeader, Description: "no leader elected"}
		}
	}
	return info, nil
}

// GetFromLeader reads the message at seq from the stream's leader; false means
// that there is none. The client's own get may be answered by a follower that
// lags, so it is never used.
func (c *Conn) GetFromLeader(ctx context.Context, stream string, seq uint64) (StoredMessage, bool, error) {
	return c.get(ctx, stream, append(strconv.AppendUint([]byte(`{"seq":`), seq, 10), '}'))
}

// nextFromLeader reads the first message at seq or behind it.
func (c *Conn) nextFromLeader(ctx context.Context, stream string, seq uint64) (StoredMessage, bool, error) {
	return c.get(ctx, stream, append(strconv.AppendUint([]byte(`{"seq":`), seq, 10), `,"next_by_subj":">"}`...))
}

func (c *Conn) get(ctx context.Context, stream string, which []byte) (StoredMessage, bool, error) {
	data, err := c.request(ctx, "STREAM.MSG.GET."+stream, which)
	if err != nil {
		return StoredMessage{}, false, err
	}
	var wire struct {
		Error   *wireError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Body    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return StoredMessage{}, false, fmt.Errorf("answer about a message of stream %q: %w", stream, err)
	}
	switch {
	case wire.Error != nil && wire.Error.Code == codeNoMessage:
		return StoredMessage{}, false, nil
	case wire.Error != nil:
		return StoredMessage{}, false, wire.Error.api()
	}
	m := StoredMessage{Subject: wire.Message.Subject, Seq: wire.Message.Seq, Body: wire.Message.Body, Time: wire.Message.Time}
	if len(wire.Message.Header) > 0 {
		m.Header, err = nats.DecodeHeadersMsg(wire.Message.Header)
		if err != nil {
			return StoredMessage{}, false, fmt.Errorf("headers at sequence %d of stream %q: %w", m.Seq, stream, err)
		}
	}
	return m, true, nil
}
