package reconcile

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
)

const (
	// partitions is how many parts a spill has. A few are in memory at a time: of
	// ten million events that is three megabytes each.
	partitions = 256
	// blockRecords is how many records of a part are written at a time.
	blockRecords = 256
	recordBytes  = 40
)

// A spill holds records of a fixed size, parted by their key, in a temporary
// file: memory does not grow with their number but for two words a block. What
// fills no block stays in memory, so that little never meets the disk.
//
// A record is key (16 bytes) and 24 bytes more. One goroutine writes.
type spill struct {
	dir     string
	file    *os.File
	size    int64
	parts   [partitions]part
	records uint64
}

type part struct {
	open   []byte  // what is not written yet
	blocks []int64 // where the written ones begin
}

// add takes one record; its first byte chooses the part.
func (s *spill) add(record *[recordBytes]byte) error {
	p := &s.parts[record[0]]
	s.records++
	p.open = append(p.open, record[:]...)
	if len(p.open) < blockRecords*recordBytes {
		return nil
	}
	if s.file == nil {
		file, err := os.CreateTemp(s.dir, "walrelay-verify-")
		if err != nil {
			return fmt.Errorf("make a temporary file: %w; TMPDIR names another folder", err)
		}
		s.file = file
		// Where the system allows it, nothing is left behind whatever happens.
		_ = os.Remove(file.Name())
	}
	if _, err := s.file.WriteAt(p.open, s.size); err != nil {
		return fmt.Errorf("write a temporary file: %w; TMPDIR names another folder", err)
	}
	p.blocks = append(p.blocks, s.size)
	s.size += int64(len(p.open))
	p.open = p.open[:0]
	return nil
}

// read appends the records of one part to b.
func (s *spill) read(n int, b []byte) ([]byte, error) {
	p := &s.parts[n]
	for _, at := range p.blocks {
		start := len(b)
		b = slices.Grow(b, blockRecords*recordBytes)[:start+blockRecords*recordBytes]
		if _, err := s.file.ReadAt(b[start:], at); err != nil {
			return b, fmt.Errorf("read a temporary file: %w", err)
		}
	}
	return append(b, p.open...), nil
}

// close removes the file.
func (s *spill) close() {
	if s.file != nil {
		_ = s.file.Close()
		_ = os.Remove(s.file.Name())
	}
}

// A key is a hash of an event id, or of an aggregate.
type key [16]byte

// What a record of an event is of.
const (
	ofRow uint8 = iota + 1
	ofMessage
	ofLetter
)

// Flags of a record.
const (
	// Of a row: what the router makes of it, and what is known of its delivery.
	flagProven uint8 = 1 << iota
	flagNewer        // was committed behind the snapshot, or may have been
	flagSkip
	flagUnrouted
	flagRefused
	// Of a message.
	flagForced // Walrelay-Event-Id differs from Nats-Msg-Id
)

// An entry is one record about an event: 40 bytes.
type entry struct {
	key    key
	digest uint64 // of what both sides must agree on
	// ref is a message's sequence, or a row's place: table<<48 | block<<16 |
	// offset, with the table's number among those met.
	ref    uint64
	when   tick // created_at, 0 if not known
	of     uint8
	flags  uint8
	stream uint16 // number of the stream; noStream for none
}

const noStream = 1<<16 - 1

func (e *entry) encode(b *[recordBytes]byte) {
	copy(b[:16], e.key[:])
	binary.LittleEndian.PutUint64(b[16:], e.digest)
	binary.LittleEndian.PutUint64(b[24:], e.ref)
	binary.LittleEndian.PutUint32(b[32:], uint32(e.when))
	b[36], b[37] = e.of, e.flags
	binary.LittleEndian.PutUint16(b[38:], e.stream)
}

func (e *entry) decode(b []byte) {
	copy(e.key[:], b)
	e.digest = binary.LittleEndian.Uint64(b[16:])
	e.ref = binary.LittleEndian.Uint64(b[24:])
	e.when = tick(binary.LittleEndian.Uint32(b[32:]))
	e.of, e.flags = b[36], b[37]
	e.stream = binary.LittleEndian.Uint16(b[38:])
}
