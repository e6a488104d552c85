package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What a stream's leader says is asked for directly: the client's own get may be
// answered by a follower that lags.
const (
	requestTimeout = 20 * time.Second
	codeNoMessage  = 10037
	codeNoStream   = 10059
)

// A streamState is a stream's end and what it has removed, as its leader has it.
type streamState struct {
	Created time.Time `json:"created"`
	Config  struct {
		FirstSeq  uint64 `json:"first_seq"`
		Retention string `json:"retention"`
	} `json:"config"`
	State struct {
		Messages  uint64    `json:"messages"`
		FirstSeq  uint64    `json:"first_seq"`
		FirstTime time.Time `json:"first_ts"`
		LastSeq   uint64    `json:"last_seq"`
		LastTime  time.Time `json:"last_ts"`
		Deleted   uint64    `json:"num_deleted"`
	} `json:"state"`
	At time.Time `json:"ts"`
}

// A stored is one message as the leader has it.
type stored struct {
	Subject string      `json:"subject"`
	Seq     uint64      `json:"seq"`
	Headers []byte      `json:"hdrs"`
	Body    []byte      `json:"data"`
	Time    time.Time   `json:"time"`
	header  nats.Header // decoded
}

type apiError struct {
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

// A leader asks the leaders of streams.
type leader struct {
	nc     *nats.Conn
	domain string // JetStream's; empty for the default
}

func (c *Config) leader() leader { return leader{nc: c.NATS, domain: c.Domain} }

func (c *Config) jetStream() (jetstream.JetStream, error) {
	if c.Domain == "" {
		return jetstream.New(c.NATS)
	}
	return jetstream.NewWithDomain(c.NATS, c.Domain)
}

func (l leader) subject(rest string) string {
	if l.domain == "" {
		return "$JS.API." + rest
	}
	return "$JS." + l.domain + ".API." + rest
}

func ask(ctx context.Context, l leader, stream, what string, body []byte, into any) (*apiError, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	m, err := l.nc.RequestWithContext(ctx, l.subject("STREAM."+what+"."+stream), body)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, errors.New("JetStream is not enabled there: enable it on the server and for the account")
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("ask for stream %q: no answer within %v: the stream may have no leader", stream, requestTimeout)
	case err != nil:
		return nil, fmt.Errorf("ask for stream %q: %w", stream, err)
	}
	var failed struct {
		Error *apiError `json:"error"`
	}
	if err := errors.Join(json.Unmarshal(m.Data, &failed), json.Unmarshal(m.Data, into)); err != nil {
		return nil, fmt.Errorf("answer about stream %q: %w", stream, err)
	}
	return failed.Error, nil
}

func askState(ctx context.Context, l leader, stream string) (streamState, error) {
	var s streamState
	failed, err := ask(ctx, l, stream, "INFO", nil, &s)
	switch {
	case err != nil:
		return s, err
	case failed != nil && failed.Code == codeNoStream:
		return s, fmt.Errorf("stream %q does not exist; correct the routes, or run walrelay migrate --stream %s", stream, stream)
	case failed != nil:
		return s, fmt.Errorf("ask for stream %q: %s (%d)", stream, failed.Description, failed.Code)
	}
	return s, nil
}

// askMessage reads the message at a sequence, or with next the first one from
// there on; nil means that there is none.
func askMessage(ctx context.Context, l leader, stream string, seq uint64, next bool) (*stored, error) {
	request := map[string]any{"seq": seq}
	if next {
		request["next_by_subj"] = ">"
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Message stored `json:"message"`
	}
	failed, err := ask(ctx, l, stream, "MSG.GET", body, &answer)
	switch {
	case err != nil:
		return nil, err
	case failed != nil && failed.Code == codeNoMessage:
		return nil, nil //nolint:nilnil // there is none, which is no error
	case failed != nil:
		return nil, fmt.Errorf("read message %d of stream %q: %s (%d)", seq, stream, failed.Description, failed.Code)
	}
	m := &answer.Message
	if len(m.Headers) > 0 {
		if m.header, err = nats.DecodeHeadersMsg(m.Headers); err != nil {
			return nil, fmt.Errorf("read message %d of stream %q: %w", seq, stream, err)
		}
	}
	return m, nil
}
