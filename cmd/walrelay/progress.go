package main

import (
	"fmt"
	"io"
	"time"
)

// progress is one line on a terminal that says how far long work is. Elsewhere
// it says nothing.
type progress struct {
	out   io.Writer
	total int64

	shown time.Time
}

func (p *progress) show(done int64) {
	if !isTerminal(p.out) || time.Since(p.shown) < 200*time.Millisecond {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.out, "\r%d of %d (%d %%) ", done, p.total, 100*min(done, p.total)/max(p.total, 1))
}

// end makes room for what is written next.
func (p *progress) end() {
	if !p.shown.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
