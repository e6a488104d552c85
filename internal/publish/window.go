package publish

// A window is the ordered run of messages that are queued or in flight, and
// the arithmetic of the chain over it.
//
// Entries have indices that only grow. Invariant: head <= next <= tail; the
// entries in [head, next) are sent, those in [next, tail) wait; the message at
// sequence base is the last one known to be stored, so that entry i belongs at
// sequence base+1+(i-head).
//
// Each send has a number. Numbers grow over all sends, repeats included, so
// that an answer to an attempt from before a resync is told from one of now.
type window struct {
	arena arena
	ring  []entry

	head, next, tail uint64
	base             uint64
	firstNumber      uint64 // number of the entry that was head when this round began
	firstIndex       uint64 // its index
	unanswered       int
	groups           int // single messages and batches that have no answer yet
	bytes            int
}

const ringStart = 256

func (w *window) at(i uint64) *entry { return &w.ring[ringIndex(i, w.ring)] }

// ringIndex is where index i lies in a ring, whose length is a power of two.
func ringIndex(i uint64, ring []entry) uint64 { return i & (uint64(len(ring)) - 1) }

func (w *window) held() int     { return int(w.tail - w.head) } //nolint:gosec // bounded by memory
func (w *window) inFlight() int { return int(w.next - w.head) } //nolint:gosec // bounded by memory

// seq is the sequence at which entry i belongs.
func (w *window) seq(i uint64) uint64 { return w.base + 1 + (i - w.head) }

// number is the send number of entry i in this round.
func (w *window) number(i uint64) uint64 { return w.firstNumber + (i - w.firstIndex) }

// index is the entry whose attempt of this round has that number.
func (w *window) index(number uint64) (uint64, bool) {
	if number < w.firstNumber {
		return 0, false
	}
	i := w.firstIndex + (number - w.firstNumber)
	return i, i >= w.head && i < w.next
}

// push copies m to the end.
func (w *window) push(m *Message, t *template) *entry {
	if w.held() == len(w.ring) {
		w.grow()
	}
	e := w.at(w.tail)
	data, c := w.arena.alloc(dataLen(m))
	*e = entry{data: data, chunk: c, template: t}
	e.encode(m)
	w.bytes += e.size()
	w.tail++
	return e
}

func (w *window) grow() {
	ring := make([]entry, max(ringStart, 2*len(w.ring)))
	for i := w.head; i < w.tail; i++ {
		ring[ringIndex(i, ring)] = *w.at(i)
	}
	w.ring = ring
}

// sent notes that the entry at next is in flight.
func (w *window) sent() {
	w.next++
	w.unanswered++
}

// answer notes that entry i of this round has its answer.
func (w *window) answer(e *entry) {
	e.answered = true
	w.unanswered--
}

func (w *window) pop(stored bool) {
	e := w.at(w.head)
	e.leaves(stored)
	if w.head == w.next {
		w.next++
	} else if !e.answered {
		w.unanswered--
	}
	w.bytes -= e.size()
	w.arena.release(e.chunk)
	*e = entry{}
	w.head++
}

// stored removes the head, which the stream has in its place.
func (w *window) stored() {
	w.pop(true)
	w.base++
}

// drop removes the head, which will never be in its place: a dead letter, or
// found elsewhere in the stream (stored). Every later entry moves up one sequence, so
// what was attempted at the old ones cannot have been stored.
func (w *window) drop(stored bool) {
	w.pop(stored)
	for i := w.head; i < w.tail; i++ {
		w.at(i).maybe = false
	}
}

// rewind begins a new round: everything is to be sent again from head.
func (w *window) rewind() {
	w.close()
	w.firstNumber = w.number(w.next)
	w.firstIndex = w.head
	w.next = w.head
	w.unanswered, w.groups = 0, 0
	for i := w.head; i < w.tail; i++ {
		e := w.at(i)
		e.answered, e.acked, e.fail, e.batch = false, false, nil, 0
	}
}

// close turns what has no answer into what may be stored.
func (w *window) close() {
	for i := w.head; i < w.next; i++ {
		e := w.at(i)
		e.maybe = e.maybe || !e.answered
		e.tried = true
	}
}
