package walrelay

import (
	"context"
	"fmt"
	"time"

	"github.com/walrelay/walrelay/internal/reconcile"
)

// What a stream has let go tells nothing of the event that it was. Of the rows
// that no proof covers, those that a heal does not find may have been among it:
// then they were stored, and newer ones of their aggregates behind them. They are
// sent, since the same may never have been stored; but they are said to be late.

// removedUntil gives up to when messages may have been stored of those behind a sequence
// that a stream has no more; zero where it has all of them.
func (s *session) removedUntil(ctx context.Context, stream string, from uint64) (until time.Time, err error) {
	info, err := s.nats.StreamInfo(ctx, stream)
	if err != nil {
		return until, fmt.Errorf("ask what stream %q has let go: %w", stream, err)
	}
	switch {
	case info.LastSeq <= from:
		return until, nil
	case info.Messages < info.LastSeq-info.FirstSeq+1: // anywhere
		return time.Now().Add(marginOfClock), nil
	case info.FirstSeq <= from+1:
		return until, nil
	}
	first, there, err := s.nats.GetFromLeader(ctx, stream, info.FirstSeq)
	if err != nil {
		return until, fmt.Errorf("ask what stream %q has let go: %w", stream, err)
	}
	if !there { // just now
		return time.Now().Add(marginOfClock), nil
	}
	return first.Time.Add(goneMargin), nil
}

// goneMargin is how much later than a row's created_at says its message may
// have been stored before another one, clocks being what they are.
const goneMargin = 10 * time.Minute

// newerMayStand gives, for each stream that has let go messages of those behind a
// sequence, up to when they may have been stored.
func (s *session) newerMayStand(ctx context.Context, from map[string]uint64, removed map[string]bool) (map[string]time.Time, error) {
	newer := map[string]time.Time{}
	for stream, some := range removed {
		if !some {
			continue
		}
		until, err := s.removedUntil(ctx, stream, from[stream])
		if err != nil {
			return nil, err
		}
		newer[stream] = until
	}
	return newer, nil
}

// mayBeLate says whether newer events of the row's aggregate may be stored, as
// its own may have been and was let go.
func (s *seen) mayBeLate(row *reconcile.Row, stream string) bool {
	until := s.newer[stream]
	created, ok := row.CreatedAt()
	return !until.IsZero() && (!ok || !created.After(until))
}
