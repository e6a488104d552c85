package publish

import (
	"context"
	"time"
)

// looks is how often the stream's end is read in one go at most, each time from
// where the last reading ended.
const looks = 5

// look reads from the stream which messages of lanes in doubt are stored: those
// with attempts whose outcome is open, when the stream may have forgotten their
// ids. What is not found may be sent again at once: should an older attempt
// still arrive, then the stream knows the id of whichever came first.
func (l *Lanes) look(ctx context.Context) error {
	l.mu.Lock()
	lanes := l.doubted.take()
	s := search{Lanes: l, ids: make(map[string][]*lane, len(lanes)), found: map[*lane]uint64{}}
	for i, ln := range lanes {
		s.ids[ln.first.id()] = append(s.ids[ln.first.id()], ln)
		if i == 0 || ln.first.floor < s.read {
			s.read = ln.first.floor
		}
	}
	window := l.facts.DuplicateWindow
	l.mu.Unlock()
	if len(lanes) == 0 {
		return nil
	}
	var asked time.Time
	for range looks {
		asked = time.Now()
		err := s.run(ctx)
		if err != nil && ends(err) {
			return err
		}
		if err != nil {
			return l.unread(ctx, lanes, err)
		}
		if time.Since(asked) < window/4 {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range lanes {
		p := ln.first
		if seq := s.found[ln]; seq > 0 {
			l.found(ln, seq)
			continue
		}
		p.since, p.floor, p.clear = asked, s.read, true
		if p.fail != nil && p.fail.class == ClassPermanent {
			l.refuse(ln)
			continue
		}
		ln.phase = laneReady
		l.ready.pushFront(ln)
	}
	l.assess()
	l.pump()
	l.wake()
	l.deliver()
	return nil
}

// A search looks for messages behind a sequence. Its lanes are in doubt, so
// that nobody else touches their first messages.
type search struct {
	*Lanes
	ids   map[string][]*lane
	read  uint64
	found map[*lane]uint64
}

// run reads from where the last run has ended to the stream's end.
func (s *search) run(ctx context.Context) error {
	info, err := s.holdsItsWord(ctx)
	if err != nil {
		return err
	}
	s.read, err = s.headers(ctx, info.Facts, s.read, info.LastSeq, func(m StoredMessage) error { return s.compare(ctx, m) })
	return err
}

func (s *search) compare(ctx context.Context, m StoredMessage) error {
	id := place{msg: m}.identity()
	if id.source != s.cfg.Source {
		return nil
	}
	for _, ln := range s.ids[id.msgID] {
		is := id.pos == ln.first.pos
		if !is {
			// Its body may tell.
			at, err := s.place(ctx, m.Seq)
			if err != nil {
				return err
			}
			is = at.found && at.is(s.cfg.Source, &ln.first.entry)
		}
		if is && s.found[ln] == 0 {
			s.found[ln] = m.Seq
		}
	}
	return nil
}
