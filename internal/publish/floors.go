package publish

import "github.com/walrelay/walrelay/envelope"

const (
	floorStep  = 64   // sequences between two floors
	floorsMost = 1024 // floors kept
)

// A floor says that events at pos or later, as far as they are stored, are
// stored behind sequence seq.
type floor struct {
	pos envelope.Position
	seq uint64
}

// floors tells from where a stream must be read to see all events from a
// position on, although lanes store in no order. It keeps the stream's end as
// it was when one event or another was sent first; positions ascend.
type floors struct {
	list []floor
	from envelope.Position // positions up to it are of before: they may be stored anywhere behind the first floor
}

// begin starts anew: events up to most may be stored behind seq already.
func (f *floors) begin(seq uint64, most envelope.Position) {
	f.list, f.from = append(f.list[:0], floor{seq: seq}), most
}

// sent notes that the event at pos is about to be sent for the first time, to a
// stream that has had end messages.
func (f *floors) sent(pos envelope.Position, end uint64) {
	if len(f.list) == 0 {
		f.list = append(f.list, floor{})
	}
	last := f.list[len(f.list)-1]
	if end < last.seq+floorStep || pos.Compare(f.from) <= 0 || pos.Compare(last.pos) <= 0 {
		return
	}
	if len(f.list) == floorsMost {
		kept := f.list[:1]
		for i := 2; i < floorsMost; i += 2 {
			kept = append(kept, f.list[i])
		}
		f.list = kept
	}
	f.list = append(f.list, floor{pos, end})
}

// found notes that the event at pos stands at seq, stored by another process.
func (f *floors) found(pos envelope.Position, seq uint64) {
	for i := range f.list {
		if fl := &f.list[i]; fl.pos.Compare(pos) <= 0 && fl.seq >= seq {
			fl.seq = seq - 1
		}
	}
}

// at gives the sequence behind which all events at next or later are stored.
// What is before next is forgotten.
func (f *floors) at(next envelope.Position) uint64 {
	if len(f.list) == 0 {
		return 0
	}
	k := 0
	for k+1 < len(f.list) && f.list[k+1].pos.Compare(next) <= 0 {
		k++
	}
	f.list = append(f.list[:0], f.list[k:]...)
	return f.list[0].seq
}
