package walrelay

import (
	"context"
	"fmt"
	"time"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/publish"
)

const (
	// confirmEvery is how often PostgreSQL hears of progress at most.
	confirmEvery = 100 * time.Millisecond
	// witnessEvery is how often the witness is written at most.
	witnessEvery = time.Second
)

// A confirmer owns the writes to the replication connection and the witness,
// which belong together: an LSN behind an event is confirmed only after the
// witness knows that event's place in its stream. Should the stream's last
// message be gone at the next start, the witness and the stream's sequence
// count what is stored, and the count needs every event behind the witness to
// be sent again.
type confirmer struct {
	s         *session
	safe      envelope.LSN // what the ledger let go
	covered   envelope.LSN // the part of it that the witness covers: what is confirmed
	sent      envelope.LSN
	sentAt    time.Time
	witnessed map[string]dedup.Known
	writtenAt time.Time
	frames    uint64
	framesAt  time.Time
}

// confirmLoop runs until ctx ends: status on its own timer, whatever the reader
// and the publishers are doing.
func (s *session) confirmLoop(ctx context.Context) error {
	c := newConfirmer(s)
	interval := s.cfg.StatusInterval
	if t := s.repl.Server().SenderTimeout; t > 0 {
		interval = min(interval, t/3)
	}
	tick := time.NewTicker(min(confirmEvery, interval))
	defer tick.Stop()
	for {
		now := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.reply:
			now = true
		case <-tick.C:
		}
		if err := c.cover(ctx, false); err != nil {
			return ended(ctx, "write the witness", err)
		}
		s.progress.note(s.received.Load(), s.r.count.stored.Load(), max(c.safe, c.covered), s.r.now())
		if now || c.covered > c.sent || time.Since(c.sentAt) >= interval {
			if err := c.send(); err != nil {
				return ended(ctx, "confirm", err)
			}
		}
	}
}

// confirmLast writes the witness and the last status, after everything else
// has ended.
func (s *session) confirmLast(ctx context.Context) error {
	c := newConfirmer(s)
	if s.relayed.Load() {
		if err := c.cover(ctx, true); err != nil {
			return err
		}
	}
	return c.send()
}

func newConfirmer(s *session) *confirmer {
	return &confirmer{s: s, sentAt: time.Now(), framesAt: time.Now(), sent: lsn(&s.confirmed), covered: lsn(&s.confirmed)}
}

// cover finds what may be confirmed now. The ledger is read before the streams:
// what it let go is stored in them, so their ends cover it.
func (c *confirmer) cover(ctx context.Context, last bool) error {
	s := c.s
	if !s.relayed.Load() {
		return nil
	}
	s.mu.Lock()
	c.safe = s.ledger.Confirmed()
	s.mu.Unlock()
	streams, changed := c.ends()
	switch {
	case !changed && !last:
		c.covered = max(c.covered, c.s.cover.limit(c.safe))
		return nil
	case time.Since(c.writtenAt) < witnessEvery && !last:
		return nil
	}
	if err := s.write(ctx, c.safe, streams); err != nil {
		return err
	}
	c.witnessed, c.writtenAt = streams, time.Now()
	c.covered = max(c.covered, c.s.cover.limit(c.safe))
	return nil
}

// ends gives how far each stream is known to hold our events, and whether the
// witness has yet to learn of it.
func (c *confirmer) ends() (streams map[string]dedup.Known, changed bool) {
	streams = make(map[string]dedup.Known, len(c.s.streams))
	for _, st := range c.s.streams {
		if lanes, ok := st.pub.(*publish.Lanes); ok && st.started && c.safe > 0 {
			st.from.Store(max(st.from.Load(), lanes.Floor(c.s.position(c.safe))))
		}
		known := st.stored()
		streams[st.name] = known
		changed = changed || c.witnessed[st.name].LastSeq != known.LastSeq || c.witnessed[st.name].Created != known.Created
	}
	return streams, changed
}

// send tells PostgreSQL. It asks for an answer when nothing came for a while,
// so that silence means something.
func (c *confirmer) send() error {
	s := c.s
	now := time.Now()
	if n := s.frames.Load(); n != c.frames {
		c.frames, c.framesAt = n, now
	}
	if err := s.repl.Status(c.covered, now.Sub(c.framesAt) > s.cfg.Silence/3); err != nil {
		return fmt.Errorf("tell PostgreSQL what is stored: %w", err)
	}
	c.sent, c.sentAt = c.covered, now
	s.confirmed.Store(uint64(c.covered))
	return nil
}
