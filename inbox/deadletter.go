package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// maxKept is the largest payload that is copied into the database.
	maxKept = 1 << 20
	// maxErrorBytes bounds the error text that is kept.
	maxErrorBytes = 4096
)

// Reasons of dead letters.
const (
	reasonPermanent  = "permanent"
	reasonAttempts   = "attempts"
	reasonUnreadable = "unreadable"
	reasonUnknown    = "unknown type"
	reasonUnsigned   = "unsigned"
	reasonUnknownKey = "unknown key"
	reasonForged     = "bad signature"
)

// bury writes a dead letter. It is committed, and kept by the database, before
// the message is terminated.
func (c *Consumer) bury(ctx context.Context, e *entry, attempts int, reason string, cause error) error {
	headers, err := json.Marshal(keptHeaders(e.Headers))
	if err != nil {
		return fmt.Errorf("write headers as JSON: %w", err)
	}
	// Without an id of its own a message is known by its place.
	var id any
	if e.foreign == nil || e.ID != e.place() {
		id = e.ID
	}
	var payload []byte
	if len(e.Raw) <= maxKept {
		payload = append([]byte{}, e.Raw...)
	}
	sum := sha256.Sum256(e.Raw)
	var storedAt any
	if !e.storedAt.IsZero() {
		storedAt = e.storedAt.UTC().Format(time.RFC3339Nano)
	}
	err = c.within(ctx, func(u unit) error {
		var n int64
		var setting string
		err := u.query(ctx, c.sql.bury, []any{
			c.cfg.Name, id, text(e.Type), aggregateKey(e.Message), e.Stream, int64(e.Sequence), //nolint:gosec // sequences stay below 2^63
			text(e.Subject), string(headers), payload, int64(len(e.Raw)), sum[:], attempts, reason, errorText(cause), storedAt,
		}, func(scan func(...any) error) error { return scan(&n, &setting) })
		if err != nil {
			return err
		}
		return c.tidy(ctx, u, &entry{Message: e.Message, parked: e.parked})
	})
	if err != nil {
		return fmt.Errorf("write the dead letter of event %s: %w", e.ID, err)
	}
	c.count.deadLettered.Add(1)
	c.tele.done(ctx, DeadLettered)
	c.log.WarnContext(ctx, "event is a dead letter: see `walrelay deadletters --consumer`", slog.String("event_id", e.ID),
		slog.String("event_type", e.Type), slog.Uint64("sequence", e.Sequence), slog.String("reason", reason),
		slog.Int("attempt", attempts), slog.Any("err", cause))
	return nil
}

func (m *Message) place() string { return fmt.Sprintf("%s:%d", m.Stream, m.Sequence) }

func errorText(err error) string {
	s := text(err.Error())
	if len(s) > maxErrorBytes {
		s = text(s[:maxErrorBytes])
	}
	return s
}

// keptHeaders gives headers as an object of strings, with a list where a name
// has several values.
func keptHeaders(h nats.Header) map[string]any {
	out := make(map[string]any, len(h))
	for name, values := range h {
		kept := make([]string, len(values))
		for i, v := range values {
			kept[i] = text(v)
		}
		if len(kept) == 1 {
			out[text(name)] = kept[0]
			continue
		}
		out[text(name)] = kept
	}
	return out
}

// readHeaders is the way back from keptHeaders.
func readHeaders(s string) (nats.Header, error) {
	var kept map[string]any
	if err := json.Unmarshal([]byte(s), &kept); err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	h := make(nats.Header, len(kept))
	for name, v := range kept {
		switch v := v.(type) {
		case string:
			h[name] = []string{v}
		case []any:
			for _, one := range v {
				s, ok := one.(string)
				if !ok {
					return nil, errors.New("read headers: a value is not text")
				}
				h[name] = append(h[name], s)
			}
		default:
			return nil, errors.New("read headers: a value is not text")
		}
	}
	return h, nil
}
