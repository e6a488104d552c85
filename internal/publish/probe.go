package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Await waits until there is a connection, or says why there was none when ctx
// ended.
func (c *Conn) Await(ctx context.Context) error {
	if c.await(ctx) == nil {
		return nil
	}
	return &noConnectionError{last: c.Status().LastError}
}

// Permissions are what the server lets a user do. Without any list he may do
// everything.
type Permissions struct {
	Publish, Subscribe Permission
}

// A Permission lists filters of subjects. An empty list of what is allowed
// allows all that is not denied.
type Permission struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// permissionsWithin is how long the server may take to tell them: a user who
// may not ask gets no answer.
const permissionsWithin = 2 * time.Second

// Permissions asks the server what the connection's user may do. Servers before
// 2.10, and users who may not ask, get no answer: false.
func (c *Conn) Permissions(ctx context.Context) (Permissions, bool) {
	nc, err := c.client()
	if err != nil {
		return Permissions{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, permissionsWithin)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	const subject = "$SYS.REQ.USER.INFO"
	go c.cancelWhenDenied(cancel, stop, time.Now(), subject)
	m, err := nc.RequestWithContext(ctx, subject, nil)
	if err != nil {
		return Permissions{}, false
	}
	var wire struct {
		Data *struct {
			Permissions struct {
				Publish   Permission `json:"publish"`
				Subscribe Permission `json:"subscribe"`
			} `json:"permissions"`
		} `json:"data"`
	}
	if json.Unmarshal(m.Data, &wire) != nil || wire.Data == nil {
		return Permissions{}, false
	}
	return Permissions{Publish: wire.Data.Permissions.Publish, Subscribe: wire.Data.Permissions.Subscribe}, true
}

// An Account is what an account uses of JetStream and may use; a limit of -1 is
// none.
type Account struct {
	Memory, Store       uint64
	MaxMemory, MaxStore int64
	Streams, MaxStreams int
	Domain              string
}

// Account asks for the account's limits, which a relay needs no right for: an
// error may mean just that.
func (c *Conn) Account(ctx context.Context) (Account, error) {
	data, err := c.request(ctx, "INFO", nil)
	if err != nil {
		return Account{}, err
	}
	var wire struct {
		Error   *wireError `json:"error"`
		Memory  uint64     `json:"memory"`
		Store   uint64     `json:"storage"`
		Streams int        `json:"streams"`
		Domain  string     `json:"domain"`
		Limits  struct {
			MaxMemory  int64 `json:"max_memory"`
			MaxStore   int64 `json:"max_storage"`
			MaxStreams int   `json:"max_streams"`
		} `json:"limits"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return Account{}, fmt.Errorf("answer about the account: %w", err)
	}
	if wire.Error != nil {
		return Account{}, wire.Error.api()
	}
	return Account{
		Memory: wire.Memory, Store: wire.Store, Streams: wire.Streams, Domain: wire.Domain,
		MaxMemory: wire.Limits.MaxMemory, MaxStore: wire.Limits.MaxStore, MaxStreams: wire.Limits.MaxStreams,
	}, nil
}

// ServerVersion is the version of the server that we are connected to; empty
// without a connection.
func (c *Conn) ServerVersion() string {
	nc, err := c.client()
	if err != nil {
		return ""
	}
	return nc.ConnectedServerVersion()
}

// Look asks once for a stream and its end, as Tail does for ever, and sees that
// messages can be read.
func (c *Conn) Look(ctx context.Context, stream, source string) (Tail, StreamInfo, error) {
	info, err := c.StreamInfo(ctx, stream)
	if err != nil {
		return Tail{}, info, err
	}
	tail, err := New(c, Config{Stream: stream, Source: source}).tailOnce(ctx)
	if err == nil && tail.Empty {
		_, _, err = c.GetFromLeader(ctx, stream, 1)
	}
	return tail, info, err
}
