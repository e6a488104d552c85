package walrelay

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/witness"
)

// noteGap makes a publisher's finding outlive the process: the next session
// would begin behind the events that are missing. It gives back the publisher's
// error, with what went wrong in noting it.
func (s *session) noteGap(ctx context.Context, err error) error {
	second, ok := errors.AsType[*publish.SecondWriterError](err)
	if !ok {
		return err
	}
	// One that slept while another took over meets what that one has stored.
	if lost := s.stillHolds(ctx); errors.Is(lost, witness.ErrSessionLost) {
		return lost
	}
	if len(second.Missing) == 0 {
		return err
	}
	positions := make([]string, 0, min(len(second.Missing), 1000))
	for _, p := range second.Missing[:cap(positions)] {
		positions = append(positions, p.String())
	}
	gap := witness.Gap{
		Kind: witness.GapDisplaced, Epoch: s.epoch, Stream: second.Stream, Events: int64(len(second.Missing)),
		From: positions[0], To: second.Missing[len(second.Missing)-1].String(), Detail: witness.GapDetail{Positions: positions},
	}
	return errors.Join(err, s.recordGap(ctx, gap, nil))
}

// stillHolds gives witness.ErrSessionLost where another session has taken over.
func (s *session) stillHolds(ctx context.Context) error {
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return s.fence(ctx, tx) })
	})
}
