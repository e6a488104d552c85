package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/witness"
)

// noteGap makes a publisher's finding outlive the process: the next session
// would begin behind the events that are missing. It gives back the publisher's
// error, with what went wrong in noting it.
func (s *session) noteGap(ctx context.Context, err error) error {
	second, ok := errors.AsType[*publish.SecondWriterError](err)
	if !ok || len(second.Missing) == 0 {
		return err
	}
	positions := make([]string, 0, min(len(second.Missing), 1000))
	for _, p := range second.Missing[:cap(positions)] {
		positions = append(positions, p.String())
	}
	gap := witness.Gap{
		Kind: witness.GapDisplaced, Epoch: s.epoch, Stream: second.Stream, Events: int64(len(second.Missing)),
		From: positions[0], To: second.Missing[len(second.Missing)-1].String(), Detail: map[string]any{"positions": positions},
	}
	s.log.ErrorContext(ctx, "gap found", slog.String("kind", gap.Kind), slog.String("stream", gap.Stream), slog.Int64("events", gap.Events),
		slog.String("from", gap.From), slog.String("to", gap.To))
	return errors.Join(err, s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return witness.RecordGap(ctx, conn, s.cfg.Schema, s.cfg.Source, s.id, gap)
	}))
}

// checkGaps halts while a gap is open.
func (s *session) checkGaps(ctx context.Context) error {
	var gaps []witness.Gap
	err := s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		gaps, err = witness.OpenGaps(ctx, conn, s.cfg.Schema, s.cfg.Source)
		return err
	})
	if err != nil || len(gaps) == 0 {
		return err
	}
	return openGap(s.cfg.Schema, gaps[0])
}

func openGap(schema string, g witness.Gap) *HaltError {
	return &HaltError{
		Object:  fmt.Sprintf("gap %d (%s) found at %s", g.ID, g.Kind, g.FoundAt.UTC().Format(time.RFC3339)),
		Problem: fmt.Sprintf("is open: %d events between %s and %s may be in no stream; their rows are in the outbox table", g.Events, g.From, g.To),
		Fix: fmt.Sprintf("look at them, send what consumers need again by other means, then let the relay go on with: UPDATE %s SET state = 'closed', ended_at = now() WHERE id = %d",
			pgx.Identifier{schema, "gap"}.Sanitize(), g.ID),
	}
}
