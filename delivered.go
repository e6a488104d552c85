package walrelay

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"sync/atomic"
)

// A delivery is which events the slot has sent in this session. Its zero value
// remembers none. Those that are too many for memory are in a temporary file.
type delivery struct {
	on      atomic.Bool
	mu      sync.Mutex
	most    int
	keys    map[keyed]struct{} // those that no file holds
	file    *os.File
	written int64 // bytes of the file
	failed  error // why there can be no file; then all stay in memory
}

func (d *delivery) begin(most int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.most, d.keys = most, map[keyed]struct{}{}
	d.on.Store(true)
}

// end forgets all. It can be called again.
func (d *delivery) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.on.Store(false)
	d.keys = nil
	if d.file != nil {
		_ = d.file.Close() // it has no name any more
		d.file, d.written = nil, 0
	}
}

func (d *delivery) add(id string) {
	if !d.on.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keys == nil {
		return
	}
	d.keys[keyOf(id)] = struct{}{}
	if len(d.keys) < d.most || d.failed != nil {
		return
	}
	if d.failed = d.write(); d.failed == nil {
		clear(d.keys)
	}
}

// write appends what memory holds to the file.
func (d *delivery) write() error {
	if d.file == nil {
		file, err := os.CreateTemp("", "walrelay-delivered-")
		if err != nil {
			return err
		}
		if err := os.Remove(file.Name()); err != nil { // nothing is left behind, however the process ends
			_ = file.Close()
			return err
		}
		d.file = file
	}
	w := bufio.NewWriterSize(io.NewOffsetWriter(d.file, d.written), 1<<16)
	for k := range d.keys {
		if _, err := w.Write(k[:]); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	d.written += int64(len(d.keys) * len(keyed{}))
	return nil
}

// trouble is why all is held in memory; nil where it is not.
func (d *delivery) trouble() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		return nil
	}
	return fmt.Errorf("write a temporary file: %w; TMPDIR names another folder", d.failed)
}

// each gives those that were there when it was called.
func (d *delivery) each(note func(keyed) error) error {
	d.mu.Lock()
	keys, file, written := maps.Clone(d.keys), d.file, d.written
	d.mu.Unlock()
	for k := range keys {
		if err := note(k); err != nil {
			return err
		}
	}
	if file == nil {
		return nil
	}
	var k keyed
	for r := bufio.NewReaderSize(io.NewSectionReader(file, 0, written), 1<<16); ; {
		switch _, err := io.ReadFull(r, k[:]); {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("read what was delivered in this session: %w", err)
		}
		if err := note(k); err != nil {
			return err
		}
	}
}
