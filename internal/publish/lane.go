package publish

import (
	"time"
	"unsafe"
)

// A phase is where a lane stands.
type phase uint8

const (
	laneReady   phase = iota // its first message is to be sent
	laneFlying               // that message has an attempt in flight
	laneJudged               // a duplicate reply for it must be judged
	laneDoubted              // whether it is stored must be read from the stream
	laneRefused              // it is being made a dead letter
	laneHeld                 // it waits in a hold
)

// A lane is the run of messages with one key. Only its first is ever in
// flight, so that nothing overtakes it.
type lane struct {
	key         string
	first, last *parcel
	n           int
	phase       phase
	stuck       bool  // it waits for more than its turn
	hold        *hold // the trouble it waits for, or is the probe of
	next        *lane // in the list that it is in
}

// A parcel is one message in its lane.
type parcel struct {
	entry
	behindIt *parcel
	sentAt   time.Time
	// What bounds the attempts whose outcome is open (entry.maybe): none of
	// them was stored before since, nor at sequence floor or below.
	since time.Time
	floor uint64
	clear bool   // the stream was read just now: it may be sent whatever its age
	only  bool   // it is to be stored directly behind floor or not at all, see taken.go
	taken uint64 // how far the leader had taken messages when it refused that, 0 when looked into
	dup   uint64 // the sequence that a duplicate reply named, 0 when judged
}

// parcelBytes is what a message costs in a lane beside its bytes, a lane of its
// own with its place in a map included.
const parcelBytes = int(unsafe.Sizeof(parcel{})+unsafe.Sizeof(lane{})) + 64

func parcelSize(m *Message) int { return parcelBytes + dataLen(m) + len(m.Key) }

// newParcel copies m. Its bytes are its own: parcels leave in no order, and
// one that is held back must not keep the memory of others.
func newParcel(m *Message, t *template) *parcel {
	p := &parcel{entry: entry{data: make([]byte, dataLen(m)), template: t}}
	p.encode(m)
	return p
}

func (ln *lane) push(p *parcel) {
	if ln.last == nil {
		ln.first = p
	} else {
		ln.last.behindIt = p
	}
	ln.last = p
	ln.n++
}

// pop takes the first message out and gives what it counted for.
func (ln *lane) pop() (size int) {
	p := ln.first
	ln.first = p.behindIt
	if ln.first == nil {
		ln.last = nil
	}
	ln.n--
	return parcelBytes + len(p.data) + len(ln.key)
}

// A laneList is a list of lanes, each of which is in one list at most.
type laneList struct {
	head, tail *lane
	n          int
}

func (l *laneList) pushBack(ln *lane) {
	ln.next = nil
	if l.tail == nil {
		l.head = ln
	} else {
		l.tail.next = ln
	}
	l.tail = ln
	l.n++
}

func (l *laneList) pushFront(ln *lane) {
	ln.next = l.head
	l.head = ln
	if l.tail == nil {
		l.tail = ln
	}
	l.n++
}

// pop gives nil if there is none.
func (l *laneList) pop() *lane {
	ln := l.head
	if ln == nil {
		return nil
	}
	l.head = ln.next
	if l.head == nil {
		l.tail = nil
	}
	ln.next = nil
	l.n--
	return ln
}

// take empties the list.
func (l *laneList) take() []*lane {
	out := make([]*lane, 0, l.n)
	for ln := l.pop(); ln != nil; ln = l.pop() {
		out = append(out, ln)
	}
	return out
}
