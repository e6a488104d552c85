package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/decode"
	"github.com/walrelay/walrelay/internal/slot"
)

// prototype is a pipeline that knows no failure: slot, decode, publish with a window
// and the chain's header, acknowledgements, confirm. It says what is reachable with the same two
// servers and the same client libraries; the relay is measured against it.
type prototype struct {
	nc     *nats.Conn
	msg    nats.Msg
	prefix string

	mu     sync.Mutex
	room   sync.Cond
	acked  uint64
	failed error
}

const protoWindow = 4096

// plainHeaders are five of about the size of ours.
func plainHeaders() nats.Header {
	h := nats.Header{}
	for i := range 5 {
		h["Walrelay-Header-"+strconv.Itoa(i)] = []string{"0000000012345678"}
	}
	return h
}

// sameHeaders are those of a relay, with values of that length.
func sameHeaders(j *job) nats.Header {
	h := nats.Header{envelope.HeaderExpectedStream: {strings.ToUpper(j.Source)}}
	for _, header := range readyMade(j, 0).Headers {
		h[header.Name] = []string{header.Value}
	}
	return h
}

func runProto(ctx context.Context, j job, headers nats.Header) error {
	source := j.Source
	nc, err := nats.Connect(j.NATS, nats.ReconnectBufSize(-1))
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	p := &prototype{nc: nc, prefix: nats.NewInbox() + "."}
	p.room.L = &p.mu
	sub, err := nc.Subscribe(p.prefix+"*", p.ack)
	if err != nil {
		return fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("take off the subscription's limits: %w", err)
	}
	p.msg.Subject = "outbox." + source + ".order.placed"
	p.msg.Header = headers
	p.msg.Header[envelope.HeaderMsgID], p.msg.Header[envelope.HeaderExpectedLastSeq] = []string{""}, []string{""}
	cfg, err := pgconn.ParseConfig(j.Database)
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
	defer context.AfterFunc(ctx, c.Interrupt)()
	err = p.relay(c)
	if ctx.Err() != nil {
		return nil // the parent has seen enough
	}
	return err
}

func (p *prototype) relay(c *slot.Conn) error {
	var f slot.Frame
	var d decode.Decoder
	var m decode.Message
	var ledger slot.Ledger
	sent, lastStatus := uint64(0), time.Now()
	for {
		if err := c.Next(&f); err != nil {
			return err
		}
		if f.Data == nil {
			if err := c.Status(ledger.Confirmed(), false); err != nil {
				return err
			}
			continue
		}
		if err := d.Decode(f.Data, &m); err != nil {
			return err
		}
		switch m.Kind {
		case decode.KindInsert:
			id := m.Tuple[m.Relation.Column("id")].Data
			body := m.Tuple[m.Relation.Column("payload")].Data
			if err := p.publish(sent, id, body); err != nil {
				return err
			}
			sent++
		case decode.KindCommit:
			if time.Since(lastStatus) > 100*time.Millisecond {
				lastStatus = time.Now()
				if err := c.Status(0, false); err != nil {
					return err
				}
			}
		case decode.KindBegin, decode.KindRelation, decode.KindUpdate, decode.KindDelete, decode.KindTruncate,
			decode.KindType, decode.KindOrigin, decode.KindMessage:
		}
	}
}

func (p *prototype) publish(n uint64, id, body []byte) error {
	p.mu.Lock()
	for n-p.acked >= protoWindow && p.failed == nil {
		p.room.Wait()
	}
	err := p.failed
	p.mu.Unlock()
	if err != nil {
		return err
	}
	p.msg.Header["Nats-Msg-Id"][0] = string(id)
	p.msg.Header["Nats-Expected-Last-Sequence"][0] = strconv.FormatUint(n, 10)
	p.msg.Reply = p.prefix + strconv.FormatUint(n, 10)
	p.msg.Data = body
	return p.nc.PublishMsg(&p.msg)
}

func (p *prototype) ack(m *nats.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !bytes.Contains(m.Data, []byte(`"seq":`)) || strings.Contains(string(m.Data), `"error"`) {
		p.failed = fmt.Errorf("acknowledgement: %s", m.Data)
	}
	p.acked++
	p.room.Signal()
}
