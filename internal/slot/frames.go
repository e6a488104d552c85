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
	if f.beforeRead != nil {
		f.beforeRead()
	}
	n, err := f.conn.Read(f.buf[f.w:])
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
