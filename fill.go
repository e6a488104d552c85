package walrelay

import (
	"context"
	"time"
)

// FillStatus is what a stream held when it was last asked, and its limits.
type FillStatus struct {
	LookedAt time.Time `json:"looked_at"`
	Messages uint64    `json:"messages"`
	Bytes    uint64    `json:"bytes"`
	// MaxMessages and MaxBytes are the stream's limits, 0 where there is none.
	MaxMessages int64 `json:"max_messages,omitempty"`
	MaxBytes    int64 `json:"max_bytes,omitempty"`
	// Refuses says that a full stream takes nothing more (discard: new); else
	// it removes its oldest messages.
	Refuses bool `json:"refuses,omitempty"`
}

// Ratio is how full the stream is, from 0 to 1, and false where it has no limit.
func (f *FillStatus) Ratio() (ratio float64, limited bool) {
	if f.MaxMessages > 0 {
		ratio, limited = float64(f.Messages)/float64(f.MaxMessages), true
	}
	if f.MaxBytes > 0 {
		ratio, limited = max(ratio, float64(f.Bytes)/float64(f.MaxBytes)), true
	}
	return ratio, limited
}

// fillLoop asks the streams how full they are, as often as the slot is looked
// at, until ctx ends. Not to know it does no harm.
func (s *session) fillLoop(ctx context.Context) error {
	tick := time.NewTicker(s.r.looks)
	defer tick.Stop()
	for {
		for _, st := range s.streams {
			st.lookFill(ctx, s)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (st *stream) lookFill(ctx context.Context, s *session) {
	info, err := s.nats.StreamInfo(ctx, st.name)
	if err != nil {
		st.fill.Store(nil)
		return
	}
	st.fill.Store(&FillStatus{
		LookedAt: s.r.now(), Messages: info.Messages, Bytes: info.Bytes, MaxMessages: info.Facts.MaxMsgs, MaxBytes: info.Facts.MaxBytes,
		Refuses: info.Facts.Discard == "new",
	})
}
