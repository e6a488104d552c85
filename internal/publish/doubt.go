package publish

import (
	"context"
	"time"
)

// look reads from the stream which messages of lanes in doubt are stored: those
// with attempts whose outcome is open, when the stream may have forgotten their
// ids. What is not found may still be among what the leader has taken; see
// taken.go for how it is sent again.
func (l *Lanes) look(ctx context.Context) error {
	l.mu.Lock()
	lanes := l.doubted.take()
	s := search{Lanes: l, ids: make(map[string][]*lane, len(lanes)), found: map[*lane]uint64{}}
	if !l.sure {
		s.arrived = map[string]uint64{}
		s.read = l.read
	}
	for i, ln := range lanes {
		s.ids[ln.first.id()] = append(s.ids[ln.first.id()], ln)
		if i == 0 && l.sure || ln.first.floor < s.read {
			s.read = ln.first.floor
		}
	}
	l.mu.Unlock()
	if len(lanes) == 0 {
		return nil
	}
	asked := time.Now()
	if err := s.run(ctx); err != nil {
		if ends(err) {
			return err
		}
		return l.unread(ctx, lanes, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cameBehind(&s)
	for _, ln := range lanes {
		if seq := s.found[ln]; seq > 0 {
			l.found(ln, seq)
			continue
		}
		l.notFound(ln, s.read, asked)
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
	// arrived is what else there is of our source, nil where that is known.
	arrived map[string]uint64
}

// run reads to the stream's end.
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
	if s.arrived != nil && len(s.ids[id.msgID]) == 0 {
		s.arrived[id.msgID] = m.Seq
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
