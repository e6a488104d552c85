package publish

// chunkBytes is the size of the pieces that held messages are copied into. A
// message over a quarter of it gets a piece of its own, so that at most a
// quarter of a chunk is ever left unused.
const chunkBytes = 256 << 10

// spareChunks bounds what is kept for reuse after an outage has drained.
const spareChunks = 8

// A chunk holds the bytes of messages that entered one after the other. It is
// free again when the last of them has left.
type chunk struct {
	buf  []byte
	used int
	live int
}

// An arena holds copies of messages until they are stored. They leave in about
// the order they came, so whole chunks are reused and nothing is allocated per
// message.
type arena struct {
	current *chunk
	spare   []*chunk
}

// alloc gives n bytes that stay untouched until their chunk is released.
func (a *arena) alloc(n int) ([]byte, *chunk) {
	if n > chunkBytes/4 {
		c := &chunk{buf: make([]byte, n), used: n, live: 1}
		return c.buf, c
	}
	if a.current == nil || a.current.used+n > len(a.current.buf) {
		a.current = a.fresh()
	}
	c := a.current
	b := c.buf[c.used : c.used+n : c.used+n]
	c.used += n
	c.live++
	return b, c
}

func (a *arena) fresh() *chunk {
	if last := len(a.spare) - 1; last >= 0 {
		c := a.spare[last]
		a.spare = a.spare[:last]
		return c
	}
	return &chunk{buf: make([]byte, chunkBytes)}
}

// release gives up one message's bytes of c.
func (a *arena) release(c *chunk) {
	c.live--
	if c.live > 0 {
		return
	}
	c.used = 0
	if c != a.current && len(c.buf) == chunkBytes && len(a.spare) < spareChunks {
		a.spare = append(a.spare, c)
	}
}
