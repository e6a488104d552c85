package reconcile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/walrelay/walrelay/envelope"
)

// As long as positions rise from message to message, every aggregate is in
// order and nothing needs to be remembered. Where one does not rise, which is no
// fault between two aggregates of a shared stream, the stream is read once more
// and each aggregate looked at by itself.

// A placed is a live message in its aggregate.
type placed struct {
	aggregate key
	seq       uint64
	position  envelope.Position
}

// indexBits are those of a position's index in a record; the epoch has the rest.
const indexBits = 40

func orderRecord(hash *hasher, h nats.Header, seq uint64, p envelope.Position) *[recordBytes]byte {
	kind, known := one(h, envelope.HeaderAggregateType), h[envelope.HeaderAggregateType] != nil
	id := one(h, envelope.HeaderAggregateID)
	if !known {
		kind = "\x00" // lean: two types with one id count as one aggregate
	}
	if id == "" && h[envelope.HeaderAggregateID] == nil {
		kind = "\x01"
	}
	k := hash.key(kind + "\x00" + id)
	var b [recordBytes]byte
	copy(b[:], k[:])
	binary.LittleEndian.PutUint64(b[16:], seq)
	binary.LittleEndian.PutUint64(b[24:], uint64(p.Commit))
	binary.LittleEndian.PutUint64(b[32:], uint64(p.Epoch)<<indexBits|min(p.Index, 1<<indexBits-1))
	return &b
}

func readPlaced(b []byte) (p placed) {
	copy(p.aggregate[:], b)
	p.seq = binary.LittleEndian.Uint64(b[16:])
	last := binary.LittleEndian.Uint64(b[32:])
	p.position = envelope.Position{
		Epoch:  uint32(last >> indexBits),
		Commit: envelope.LSN(binary.LittleEndian.Uint64(b[24:])), Index: last & (1<<indexBits - 1),
	}
	return p
}

// disordered finds the live messages of a stream that stand behind one of a
// later position of their aggregate. A position that was there before is a copy
// and is found as such.
func disordered(s *spill, stream uint16, limit int) (first, error) {
	var f first
	var b []byte
	var all []placed
	for part := range partitions {
		var err error
		if b, err = s.read(part, b[:0]); err != nil {
			return f, err
		}
		all = all[:0]
		for at := 0; at < len(b); at += recordBytes {
			all = append(all, readPlaced(b[at:]))
		}
		slices.SortFunc(all, func(a, b placed) int {
			return cmp.Or(bytes.Compare(a.aggregate[:], b.aggregate[:]), cmp.Compare(a.seq, b.seq))
		})
		for rest := all; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].aggregate == rest[0].aggregate {
				n++
			}
			aggregate(rest[:n], func(p, behind placed) {
				f.add(limit, entry{ref: p.seq, stream: stream}, entry{ref: behind.seq, stream: stream})
			})
			rest = rest[n:]
		}
	}
	f.trim(limit)
	return f, nil
}

// aggregate goes through the messages of one aggregate.
func aggregate(messages []placed, found func(p, behind placed)) {
	newest := messages[0]
	var seen map[envelope.Position]bool // made when it is needed first
	for i, p := range messages {
		if p.position.Compare(newest.position) >= 0 {
			newest = p
			if seen != nil {
				seen[p.position] = true
			}
			continue
		}
		if seen == nil {
			seen = make(map[envelope.Position]bool)
			for _, q := range messages[:i] {
				seen[q.position] = true
			}
		}
		if !seen[p.position] {
			found(p, newest)
		}
		seen[p.position] = true
	}
}
