package walrelay

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/deadletter"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/router"
	"github.com/walrelay/walrelay/internal/witness"
)

// record commits a dead letter. It returns once the row is durable; an error
// ends the session, and the next one meets the same event again.
func (s *session) record(ctx context.Context, letter deadletter.Letter) error {
	letter.Source = s.cfg.Source
	return s.sql.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := deadletter.Record(ctx, conn, s.cfg.Schema, letter, func(ctx context.Context, tx pgx.Tx) error {
			return witness.Lock(ctx, tx, s.cfg.Schema, s.cfg.Source, s.id)
		})
		return err
	})
}

// letterOfRow is the record of a row that the router refused.
func letterOfRow(r *router.Router, row *router.Row, routed *router.Routed) deadletter.Letter {
	e := &routed.Event
	return deadletter.Letter{
		Columns:  r.Further(row),
		Position: row.Position, EventID: e.ID, Table: e.Table,
		AggregateType: e.AggregateType, AggregateID: e.AggregateID, EventType: e.EventType,
		Stream: routed.Stream, Subject: routed.Message.Subject, RowHeaders: e.Headers, Payload: e.Payload, PayloadNull: e.NullPayload,
		Reason: string(routed.Refusal.Reason), Error: routed.Refusal.Detail, CommittedAt: row.CommittedAt,
	}
}

// refusedByServer records an event that the stream can never store. Its
// publisher has sent nothing behind it, and sends nothing before this returns.
func (s *session) refusedByServer(ctx context.Context, refused publish.Refused) error {
	reason := strings.ReplaceAll(refused.Reason, " ", "_")
	header := make(map[string]string, len(refused.Message.Headers))
	for _, h := range refused.Message.Headers {
		header[h.Name] = h.Value
	}
	aggregateType, aggregateID, eventType := header[envelope.HeaderAggregateType], header[envelope.HeaderAggregateID], header[envelope.HeaderEventType]
	for _, v := range []*string{&aggregateType, &aggregateID, &eventType} {
		if plain, err := envelope.Unescape(*v); err == nil {
			*v = plain
		}
	}
	aside := refused.Tx >= asideTx
	if aside {
		refused.Position = envelope.Position{} // it was read from the table, which knows none
	}
	id := refused.Message.MsgID
	if event := header[envelope.HeaderEventID]; event != "" {
		id = event // the other one is a replay's alone
	}
	committed, _ := time.Parse(time.RFC3339Nano, header[envelope.HeaderCommittedAt]) // zero where the header is left out
	take := s.recordRefused
	if r := s.repairOf(refused.Tx); aside && r != nil && r.refuse != nil {
		take = func(ctx context.Context, l deadletter.Letter) (bool, error) { return false, r.refuse(ctx, l) }
	}
	parked, err := take(ctx, deadletter.Letter{
		Position: refused.Position, EventID: id, Table: refused.Message.Table,
		AggregateType: aggregateType, AggregateID: aggregateID, EventType: eventType,
		Stream: refused.Stream, Subject: refused.Message.Subject, Payload: refused.Message.Body,
		PayloadNull: header[envelope.HeaderPayload] == "null",
		Reason:      reason, Error: refused.Detail, CommittedAt: committed, Late: header[envelope.HeaderLate] == "1",
	})
	if err != nil {
		return err
	}
	s.r.count.refused.Add(1)
	s.log.WarnContext(ctx, "event refused by the stream and recorded as a dead letter",
		slog.String("reason", reason), slog.String("detail", refused.Detail), slog.String("position", refused.Position.String()))
	if parked {
		// Later events of the aggregate may have been handed over already. The
		// next session reads them again, and parks them.
		return s.restart(ctx, "the aggregate of an event that its stream refused is parked")
	}
	if aside {
		s.aside(refused.Tx, 1, true)
		return nil
	}
	s.settle(refused.Tx, 1)
	return nil
}
