package reconcile

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"strings"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/router"
)

// Hashes are of one process and one run: nobody can make two values meet on
// purpose.
type hasher struct{ a, b maphash.Seed }

func newHasher() *hasher { return &hasher{a: maphash.MakeSeed(), b: maphash.MakeSeed()} }

func (h *hasher) key(id string) (k key) {
	binary.LittleEndian.PutUint64(k[:], maphash.String(h.a, id))
	binary.LittleEndian.PutUint64(k[8:], maphash.String(h.b, id))
	return k
}

// A digest sums up what a row decides of its message: stream, subject, headers
// and body. Headers count in any order.
type digest uint64

func (h *hasher) begin(stream int, subject string) digest {
	return digest(stir(maphash.String(h.a, subject) + uint64(stream))) //nolint:gosec // a number of a stream is not negative
}

func (h *hasher) header(d digest, name, value string) digest {
	if !identity(name) {
		return d
	}
	return d + digest(stir(maphash.String(h.a, name)^bits.RotateLeft64(maphash.String(h.b, value), 17)))
}

// body adds the body, or where that is nil for want of it the number of its
// bytes alone.
func (h *hasher) body(d digest, size int, body []byte) digest {
	d += digest(stir(uint64(size) + 1)) //nolint:gosec // a size is not negative
	if len(body) > 0 {
		d += digest(stir(maphash.Bytes(h.b, body)))
	}
	return d
}

// stir spreads every bit over all, so that sums of two hashes do not meet.
func stir(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	return x ^ x>>31
}

// identity says whether a header is the row's to decide. Position, times of the
// commit, origin and mark tell of a delivery, and Nats-* is for the server; the
// id is compared by itself.
func identity(name string) bool {
	switch name {
	case envelope.HeaderEventID, envelope.HeaderPosition, envelope.HeaderCommittedAt, envelope.HeaderOrigin, envelope.HeaderMark, envelope.HeaderLate,
		envelope.HeaderSignature:
		return false
	}
	return !strings.HasPrefix(name, "Nats-")
}

// routed gives the digest of the message that the router made.
func (h *hasher) routed(r *router.Routed, bodies bool) uint64 {
	m := &r.Message
	d := h.begin(r.StreamIndex, m.Subject)
	for i := range m.Headers {
		d = h.header(d, m.Headers[i].Name, m.Headers[i].Value)
	}
	if bodies {
		return uint64(h.body(d, len(m.Body), m.Body))
	}
	return uint64(h.body(d, len(m.Body), nil))
}
