package slot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// ErrStopped is what Next returns after Interrupt.
var ErrStopped = errors.New("reading was stopped")

// ErrShutdown says that the server is shutting down and waits for the relay to
// let go of the slot.
var ErrShutdown = errors.New("the server is shutting down")

// ErrSilent says that the server sent nothing for too long although it was
// asked to: the connection is half-open.
var ErrSilent = errors.New("the server sent nothing for too long; the connection counts as lost")

// ErrEnded says that the server ended the stream of its own accord.
var ErrEnded = errors.New("the server ended the replication stream")

// A Frame is one message of the replication stream.
type Frame struct {
	// Data is a message of the output plugin, valid until the next call of
	// Next; nil in a keepalive.
	Data []byte
	// WALEnd is, in a keepalive, the end of what the server has processed:
	// everything that was committed up to it has been sent before.
	WALEnd envelope.LSN
	// ReplyRequested says that the server wants a status at once.
	ReplyRequested bool
}

// Next reads the next message. It returns ErrStopped after Interrupt,
// ErrShutdown when the server waits for us to leave, ErrSilent on a half-open
// connection, ErrEnded, a *pgconn.PgError as the server sent it, or what the
// socket says.
func (c *Conn) Next(f *Frame) error {
	if c.frames.beforeRead == nil {
		c.frames.beforeRead = c.armSilence
	}
	for {
		if c.stopping.Load() { // also where more is buffered
			return ErrStopped
		}
		kind, body, err := c.frames.next()
		if err != nil {
			return c.readError(err)
		}
		switch kind {
		case 'd':
			return c.frame(body, f)
		case 'E':
			return serverError(body)
		case 'N':
			c.notice(body)
		case 'c', 'C', 'Z':
			return ErrEnded
		case 'S', 'A': // a parameter's value or a notification: nothing of ours depends on it
		default:
			return fmt.Errorf("unexpected message %q in the replication stream", kind)
		}
	}
}

// Buffered says whether the next message is here already, so that Next would
// not wait.
func (c *Conn) Buffered() bool {
	f := &c.frames
	return f.w-f.r >= 5 && f.w-f.r >= 1+int(binary.BigEndian.Uint32(f.buf[f.r+1:]))
}

func (c *Conn) frame(b []byte, f *Frame) error {
	switch {
	case len(b) >= 25 && b[0] == 'w':
		*f = Frame{Data: b[25:]}
		c.shutdown.data()
		return nil
	case len(b) == 18 && b[0] == 'k':
		*f = Frame{WALEnd: envelope.LSN(binary.BigEndian.Uint64(b[1:])), ReplyRequested: b[17] != 0}
		if !f.ReplyRequested {
			return nil
		}
		if c.shutdown.replyRequested(time.Now()) {
			return ErrShutdown
		}
		return nil
	default:
		return fmt.Errorf("replication message of %d bytes is neither data nor a keepalive", len(b))
	}
}

// armSilence sets how long the coming read may wait. Time spent elsewhere, as
// behind a full window, does not count.
func (c *Conn) armSilence() {
	_ = c.net.SetReadDeadline(time.Now().Add(c.cfg.Silence))
	if c.stopping.Load() { // after setting, or an Interrupt in between would be undone
		_ = c.net.SetReadDeadline(time.Unix(1, 0))
	}
}

func (c *Conn) readError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if c.stopping.Load() {
			return ErrStopped
		}
		return ErrSilent
	}
	return fmt.Errorf("read the replication stream: %w", err)
}

// Status tells the server that everything up to confirmed is stored; zero says
// nothing of it. Written, flushed and applied are always the same, set on
// purpose. With ask the server answers at once, so that its silence means
// something.
func (c *Conn) Status(confirmed envelope.LSN, ask bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	b := c.out[:]
	b[0] = 'd'
	binary.BigEndian.PutUint32(b[1:], 38)
	b[5] = 'r'
	binary.BigEndian.PutUint64(b[6:], uint64(confirmed))
	binary.BigEndian.PutUint64(b[14:], uint64(confirmed))
	binary.BigEndian.PutUint64(b[22:], uint64(confirmed))
	binary.BigEndian.PutUint64(b[30:], uint64(now.Sub(pgEpoch).Microseconds())) //nolint:gosec // after 2000
	b[38] = 0
	if ask {
		b[38] = 1
	}
	// A server that does not read any more must not hold the status timer for
	// ever: it is the sign of life.
	_ = c.net.SetWriteDeadline(now.Add(c.cfg.Silence))
	if _, err := c.net.Write(b); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	c.shutdown.status(now)
	return nil
}

// shutdownWatch recognises a server that shuts down: it asks for replies again
// although it has just had one, and sends nothing else. A server that only
// wants a sign of life asks once in half of its timeout.
type shutdownWatch struct {
	lastStatus atomic.Int64 // Unix nanoseconds; written by the status timer
	requests   int          // the reader's own
}

const shutdownWithin = time.Second

func (w *shutdownWatch) data() { w.requests = 0 }

func (w *shutdownWatch) status(now time.Time) { w.lastStatus.Store(now.UnixNano()) }

// replyRequested says whether the server is shutting down.
func (w *shutdownWatch) replyRequested(now time.Time) bool {
	last := w.lastStatus.Load()
	if last == 0 || now.Sub(time.Unix(0, last)) > shutdownWithin {
		w.requests = 0
		return false
	}
	w.requests++
	return w.requests >= 2
}
