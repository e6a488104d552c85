package slot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// readBuffer is what one read takes at most: large enough that a backlog
	// costs few system calls, small enough to stay in the cache.
	readBuffer = 256 << 10
	// maxFrame bounds one message. A PostgreSQL row has at most 1 GB; what
	// claims more is not PostgreSQL.
	maxFrame = 1<<30 + 1<<20
)

// frames reads the messages of PostgreSQL's protocol into one buffer. A message
// is valid until the next call. The buffer grows for a row that does not fit and
// goes back to its usual size after it, so a large row costs its size once.
type frames struct {
	conn net.Conn
	buf  []byte
	r, w int
	// beforeRead is called before a read that may block.
	beforeRead func()
	gather     gathering
}

// A gathering lets a busy stream fill the socket's buffer before it is read
// again. PostgreSQL sends each row, and each begin and commit, by a system call
// of its own, and where the reader already sleeps in the next read that call has
// to wake it: for transactions of one row that costs both sides more than all
// the rest. So a slower reader drains them faster.
type gathering struct {
	began time.Time // of the last read
	quick int       // reads in a row that returned at once with little
}

const (
	// gatherWithin is the longest wait of a read that returned at once. Events
	// that come further apart than this are not waited with.
	gatherWithin = 100 * time.Microsecond
	// gatherAfter is how many such reads in a row make a busy stream: one
	// transaction alone can make three.
	gatherAfter = 8
	// gatherPause is how long is waited then. What arrives meanwhile is far
	// from filling the socket's buffer.
	gatherPause = 200 * time.Microsecond
	// gatherBelow is a read that is large enough as it is.
	gatherBelow = readBuffer / 4
)

func (g *gathering) before() {
	if g.quick >= gatherAfter {
		time.Sleep(gatherPause) //nolint:forbidigo // shorter than to hear of an end would take
	}
	g.began = time.Now()
}

func (g *gathering) after(n int) {
	if n < gatherBelow && time.Since(g.began) < gatherWithin {
		g.quick++
	} else {
		g.quick = 0
	}
}

func (f *frames) next() (kind byte, body []byte, err error) {
	for {
		if f.w-f.r >= 5 {
			n := int(binary.BigEndian.Uint32(f.buf[f.r+1:]))
			if n < 4 || n > maxFrame {
				return 0, nil, fmt.Errorf("message of %d bytes: this is not PostgreSQL's protocol", n)
			}
			if f.w-f.r >= n+1 {
				kind, body = f.buf[f.r], f.buf[f.r+5:f.r+1+n:f.r+1+n]
				f.r += n + 1
				return kind, body, nil
			}
			if n+1 > len(f.buf) {
				f.resize(n + 1)
			}
		}
		if err := f.fill(); err != nil {
			return 0, nil, err
		}
	}
}

func (f *frames) fill() error {
	switch {
	case f.buf == nil:
		f.buf = make([]byte, readBuffer)
	case f.r == f.w:
		f.r, f.w = 0, 0
		if len(f.buf) > readBuffer {
			f.buf = make([]byte, readBuffer)
		}
	case f.w == len(f.buf):
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	f.gather.before()
	if f.beforeRead != nil {
		f.beforeRead()
	}
	n, err := f.conn.Read(f.buf[f.w:])
	f.gather.after(n)
	f.w += n
	if n > 0 {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (f *frames) resize(n int) {
	b := make([]byte, n)
	f.w = copy(b, f.buf[f.r:f.w])
	f.r, f.buf = 0, b
}

func putLength(b []byte) { binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1)) } //nolint:gosec // a command of ours, short

// serverError reads an ErrorResponse or NoticeResponse.
func serverError(body []byte) error {
	var e pgproto3.ErrorResponse
	if err := e.Decode(body); err != nil {
		return fmt.Errorf("read the server's error: %w", err)
	}
	return pgconn.ErrorResponseToPgError(&e)
}

// pgEpoch is PostgreSQL's: timestamps count microseconds from it.
var pgEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
