package walrelay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/slot"
)

// inspectEvery is how often slot and publication are looked at while events
// flow.
const inspectEvery = 10 * time.Second

// inspectLoop watches what PostgreSQL says of slot and publication. A table
// taken out of the publication is silent in the stream, and so is a missing
// publication on PostgreSQL 18: the rows just pass.
func (s *session) inspectLoop(ctx context.Context) error {
	tick := time.NewTicker(s.r.looks)
	defer tick.Stop()
	for {
		if err := s.look(ctx); err != nil {
			return ended(ctx, "look at slot and publication", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.lookNow:
		}
		if s.signKeyReplaced() {
			s.renew(ctx, "the key that signs messages was replaced")
			return nil
		}
	}
}

func (s *session) look(ctx context.Context) error {
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		info, err := slot.Inspect(ctx, conn, s.cfg.Slot)
		if err != nil {
			return err
		}
		now := s.r.now()
		s.slotInfo.Store(&slotSeen{Info: info, at: now})
		if info.Exists {
			s.progress.seen(info.ServerWALEnd, now)
		}
		if err = s.lookWithheld(ctx, conn, info, now); err != nil {
			return err
		}
		s.countLetters(ctx, conn)
		s.lookAsked(ctx, conn)
		if _, err = checkTables(ctx, conn, s.cfg); err != nil {
			return err
		}
		_, err = s.republished(ctx, conn)
		return err
	})
}

// republished says whether the publication was changed in this session, and has
// a new one begin then. A table that was taken out, and put back before anybody
// looked, leaves no other trace: its rows of that time passed unseen, and the new
// session's audit finds them.
func (s *session) republished(ctx context.Context, conn *pgx.Conn) (bool, error) {
	if s.renewal.Load() {
		return true, nil
	}
	version, err := slot.PublicationVersion(ctx, conn, s.cfg.Publication)
	if err != nil || version == s.published {
		return false, err
	}
	s.renew(ctx, "the publication was changed")
	return true, nil
}

// slotSeen is what PostgreSQL said of the slot, and when.
type slotSeen struct {
	slot.Info
	at time.Time
}
