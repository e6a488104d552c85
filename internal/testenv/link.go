package testenv

import (
	"net"
	"sync"
	"time"
)

// A link is one connection through a [Proxy].
type link struct {
	proxy          *Proxy
	client, server net.Conn
	once           sync.Once
	done           chan struct{} // closed with both connections
}

// A chunk is what one read brought.
type chunk struct {
	bytes []byte
	at    time.Time
}

// Sizes of what a link keeps back in one direction.
const (
	chunkBytes = 32 << 10
	chunks     = 1024
)

// close ends the link for both sides at once.
func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// run returns when both directions have ended and the connections are closed.
func (l *link) run() {
	var both sync.WaitGroup
	both.Go(func() { l.carry(Upstream, l.client, l.server) })
	both.Go(func() { l.carry(Downstream, l.server, l.client) })
	both.Wait()
	l.close()
}

// carry moves one direction: a goroutine reads, this one delivers, so that a
// fault never keeps the sender from sending.
func (l *link) carry(d Direction, from, to net.Conn) {
	queue := make(chan chunk, chunks)
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() {
		defer close(queue)
		for {
			bytes := make([]byte, chunkBytes)
			n, err := from.Read(bytes)
			if n > 0 {
				select {
				case queue <- chunk{bytes: bytes[:n], at: time.Now()}:
				case <-l.done:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})

	l.deliver(d, queue, to)
}

// deliver writes what comes, in order, as the direction's flow allows. It
// returns when the sender has closed and all is delivered, or the link is.
func (l *link) deliver(d Direction, queue <-chan chunk, to net.Conn) {
	var (
		next    chunk
		waiting bool // next has not had its turn
		ended   bool // the sender closed
		lost    bool // something was swallowed
	)
	for {
		f, changed := l.proxy.flow(d)
		var due <-chan time.Time
		switch {
		case lost && !f.swallow:
			// What follows a hole is nothing that a connection may deliver.
			l.close()
			return
		case f.swallow:
			lost, waiting = lost || waiting, false
		case f.hold:
		case waiting:
			if delay := f.latency - time.Since(next.at); delay > 0 {
				due = time.After(delay)
				break
			}
			if _, err := to.Write(next.bytes); err != nil {
				l.close()
				return
			}
			waiting = false
		case ended:
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // the other direction may go on
			}
			return
		}
		more := queue
		if waiting || ended {
			more = nil
		}
		select {
		case <-l.done:
			return
		case <-changed:
		case <-due:
		case c, ok := <-more:
			next, waiting, ended = c, ok, !ok
		}
	}
}
