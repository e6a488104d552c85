package walrelay

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/slot"
)

// With synchronized_standby_slots PostgreSQL sends a logical slot nothing that a
// standby of that list has not received, so that no event is published which a
// promotion would undo. While such a standby is away the relay has everything it
// needs but events: it looks idle from its own side, and stalled once the
// server's end shows that it is not. The walsender tells what it waits for, and
// so the relay does.

// lookWithheld asks whom the walsender waits for. It says so in the log from one
// look to the next: a moment's wait is what each transaction costs there.
func (s *session) lookWithheld(ctx context.Context, conn *pgx.Conn, info slot.Info, now time.Time) error {
	var why string
	if info.HolderWait == slot.WaitsForStandby {
		laggards, err := slot.Laggards(ctx, conn)
		if err != nil {
			return err
		}
		why = waitsFor(laggards)
	}
	s.withheld.Store(&why)
	reason := s.withheldAt(now)
	if s.withheldSaid == (reason != "") {
		return nil
	}
	s.withheldSaid = reason != ""
	if s.withheldSaid {
		s.log.WarnContext(ctx, "PostgreSQL sends nothing", slog.String("cause", reason))
	} else {
		s.log.InfoContext(ctx, "PostgreSQL sends again")
	}
	return nil
}

// withheldAt says whom PostgreSQL waits for; empty where it does not, or where
// something has moved just now.
func (s *session) withheldAt(now time.Time) string {
	why := s.withheld.Load()
	if why == nil || *why == "" {
		return ""
	}
	if _, still := s.progress.behind(); still.IsZero() || now.Sub(still) < withheldAfter {
		return ""
	}
	return *why
}

// waitsFor puts it into words; empty for nobody.
func waitsFor(laggards []slot.Laggard) string {
	if len(laggards) == 0 {
		return ""
	}
	list := make([]string, len(laggards))
	for i, l := range laggards {
		switch {
		case !l.Exists:
			list[i] = fmt.Sprintf("there is no physical slot %q", l.Slot)
		case !l.Streams:
			list[i] = fmt.Sprintf("no standby streams through slot %q, which is %d bytes behind", l.Slot, l.Behind)
		default:
			list[i] = fmt.Sprintf("the standby of slot %q is %d bytes behind", l.Slot, l.Behind)
		}
	}
	return "PostgreSQL sends nothing that the standbys of synchronized_standby_slots have not received, and " + strings.Join(list, "; ") +
		": bring that standby back, or take its slot out of the setting and run SELECT pg_reload_conf()"
}
