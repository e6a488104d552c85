package decode

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/walrelay/walrelay/envelope"
)

// A reader walks through one message. Its first error stays, and from then on
// every method returns zero without moving, so that a caller may read several
// fields and ask once.
type reader struct {
	b    []byte
	at   int
	kind Kind
	err  *Error
}

func (r *reader) left() int { return len(r.b) - r.at }

// fail records a problem with the part that begins at byte at, unless there is
// one already.
func (r *reader) fail(what string, at int, format string, args ...any) {
	if r.err == nil {
		r.err = &Error{Message: r.kind, What: what, At: at, Problem: fmt.Sprintf(format, args...)}
	}
}

// take returns the next n bytes. Their capacity ends with them, so that
// appending to a value can never write into the message behind it.
func (r *reader) take(n int, what string) []byte {
	if r.err != nil {
		return nil
	}
	if n > r.left() {
		r.fail(what, r.at, "needs %d bytes and %d are left", n, r.left())
		return nil
	}
	b := r.b[r.at : r.at+n : r.at+n]
	r.at += n
	return b
}

func (r *reader) byte(what string) byte {
	b := r.take(1, what)
	if b == nil {
		return 0
	}
	return b[0]
}

func (r *reader) uint16(what string) uint16 {
	b := r.take(2, what)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func (r *reader) uint32(what string) uint32 {
	b := r.take(4, what)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func (r *reader) uint64(what string) uint64 {
	b := r.take(8, what)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func (r *reader) lsn(what string) envelope.LSN { return envelope.LSN(r.uint64(what)) }

// secondsTo2000 is the distance of PostgreSQL's epoch from Unix'.
const secondsTo2000 = 946_684_800

// time reads microseconds since 2000. Whole seconds are split off first because
// the sum with Unix' epoch would overflow in microseconds.
func (r *reader) time(what string) time.Time {
	us := int64(r.uint64(what)) //nolint:gosec // the field is signed on the wire
	return time.Unix(secondsTo2000+us/1e6, us%1e6*1e3).UTC()
}

// length reads the length of what follows and checks that so much is there.
func (r *reader) length(what string) int {
	at := r.at
	n := r.uint32(what)
	if r.err != nil {
		return 0
	}
	if int64(n) > int64(r.left()) {
		r.fail(what, at, "announces %d bytes and %d are left", n, r.left())
		return 0
	}
	return int(n)
}

// text reads bytes up to a zero byte, which it drops.
func (r *reader) text(what string) []byte {
	if r.err != nil {
		return nil
	}
	n := bytes.IndexByte(r.b[r.at:], 0)
	if n < 0 {
		r.fail(what, r.at, "no zero byte ends it in the %d bytes left", r.left())
		return nil
	}
	text := r.take(n, what)
	r.at++
	return text
}

// end checks that nothing is left.
func (r *reader) end() {
	if r.err == nil && r.left() > 0 {
		r.fail("end", r.at, "%d bytes are left over", r.left())
	}
}
