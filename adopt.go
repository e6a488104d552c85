package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/envelope"
	"github.com/walrelay/walrelay/internal/dedup"
	"github.com/walrelay/walrelay/internal/publish"
	"github.com/walrelay/walrelay/internal/slot"
	"github.com/walrelay/walrelay/internal/witness"
)

// An Adoption is what [Adopt] finds and is about to declare.
type Adoption struct {
	Stream string `json:"stream"`
	// Known is the end that the relay remembers, Now the one that there is.
	Known StreamEnd `json:"known"`
	Now   StreamEnd `json:"now"`
	// ConfirmedLSN is where the slot goes on, and UndeliveredBytes the WAL
	// behind it; nil where there is no slot.
	ConfirmedLSN     string `json:"confirmed_lsn,omitempty"`
	UndeliveredBytes *int64 `json:"undelivered_bytes,omitempty"`
	// ProvenAt is when what was written before was last known to be stored; it
	// is not sent again. Zero: never.
	ProvenAt time.Time `json:"proven_at,omitzero"`
	// Gaps are the open gaps of the stream, which are accepted.
	Gaps []AdoptedGap `json:"gaps"`
	// Nothing says that the stream is the one that the relay knows: there is
	// nothing to adopt.
	Nothing bool `json:"nothing"`
	// Adopted says that it is done.
	Adopted bool `json:"adopted"`
}

// A StreamEnd is where a stream ends.
type StreamEnd struct {
	Created  time.Time `json:"created,omitzero"`
	Sequence uint64    `json:"sequence"`
	Position string    `json:"position,omitempty"` // of the last live event, if it is ours
}

// An AdoptedGap is an open gap of the stream.
type AdoptedGap struct {
	ID      int64     `json:"id"`
	Kind    string    `json:"kind"`
	FoundAt time.Time `json:"found_at"`
	Events  int64     `json:"events"` // 0: not known
}

// Adopt declares that a stream as it is now (made anew, or a copy) continues
// the one that cfg's relay wrote to: nothing that was delivered to the old one
// is sent again. It looks, asks go on, and does it if that says yes. A halted
// relay goes on when it looks again.
func Adopt(ctx context.Context, cfg Config, stream, by string, goOn func(Adoption) (bool, error)) (Adoption, error) {
	found := Adoption{Stream: stream}
	conn, err := openVerb(ctx, &cfg, "adopt")
	if err != nil {
		return found, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	known, err := found.database(ctx, conn, &cfg)
	if err != nil {
		return found, err
	}
	tail, err := endOf(ctx, &cfg, stream)
	if err != nil {
		return found, err
	}
	now := presentState(&cfg, stream, tail)
	found.Now = endOfState(now)
	lost := dedup.CheckLoss(stream, markTail(tail), dedup.Known{Created: known.Created, LastSeq: known.LastSeq})
	found.Nothing = lost == nil && len(found.Gaps) == 0
	if yes, err := goOn(found); err != nil || !yes || found.Nothing {
		return found, err
	}
	_, err = witness.AdoptStream(ctx, conn, cfg.Schema, cfg.Source, witness.Adoption{Stream: stream, Now: now, By: by})
	found.Adopted = err == nil
	return found, err
}

// database fills in what PostgreSQL knows.
func (a *Adoption) database(ctx context.Context, conn *pgx.Conn, cfg *Config) (witness.StreamState, error) {
	if _, err := checkSchema(ctx, conn, cfg.Schema); err != nil {
		return witness.StreamState{}, err
	}
	w, err := witness.Read(ctx, conn, cfg.Schema, cfg.Source)
	if err != nil {
		return witness.StreamState{}, err
	}
	known, knows := w.Streams[a.Stream]
	if !knows {
		return known, fmt.Errorf("source %q has never written to stream %q: there is nothing to adopt; a stream that is new in the routes needs no word", cfg.Source, a.Stream)
	}
	a.Known = endOfState(known)
	if a.Gaps, err = gapsToAdopt(ctx, conn, cfg, a.Stream); err != nil {
		return known, err
	}
	last, some, err := witness.Newest(ctx, conn, cfg.Schema, cfg.Source)
	if err != nil {
		return known, err
	}
	if some {
		a.ProvenAt = last.At
	}
	info, err := slot.Inspect(ctx, conn, cfg.Slot)
	if err == nil && info.Exists {
		a.ConfirmedLSN = info.Confirmed.String()
		behind := between(info.Confirmed, max(info.ServerWALEnd, envelope.LSN(0)))
		a.UndeliveredBytes = &behind
	}
	return known, err
}

// presentState is what the witness is to remember of a stream as it is now.
func presentState(cfg *Config, stream string, tail publish.Tail) witness.StreamState {
	now := witness.StreamState{Created: tail.Created, LastSeq: tail.LastSeq, At: time.Now().UTC()}
	if tail.Ours {
		mark := markTail(tail)
		now.Position, now.MsgID = mark.Position, mark.MsgID
	}
	if cfg.stream(stream).Shared {
		now.From = tail.LastSeq
	}
	return now
}

func endOfState(s witness.StreamState) StreamEnd {
	end := StreamEnd{Created: s.Created, Sequence: s.LastSeq}
	if !s.Position.IsZero() {
		end.Position = s.Position.String()
	}
	return end
}

// gapsToAdopt gives the open gaps of a stream, or of all if it is empty.
func gapsToAdopt(ctx context.Context, conn *pgx.Conn, cfg *Config, stream string) ([]AdoptedGap, error) {
	open, err := witness.OpenGaps(ctx, conn, cfg.Schema, cfg.Source)
	if err != nil {
		return nil, err
	}
	list := []AdoptedGap{}
	for _, g := range open {
		if stream == "" || g.Stream == stream {
			list = append(list, AdoptedGap{ID: g.ID, Kind: g.Kind, FoundAt: g.FoundAt, Events: g.Events})
		}
	}
	return list, nil
}

// endOf reads the end of a stream, once.
func endOf(ctx context.Context, cfg *Config, stream string) (publish.Tail, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	nats := natsConnection(cfg, "walrelay adopt")
	nats.Logger = slog.New(slog.DiscardHandler)
	conn, err := publish.Open(ctx, nats)
	if err != nil {
		return publish.Tail{}, fmt.Errorf("connect to NATS: %w", err)
	}
	defer conn.Close()
	_, err = conn.StreamInfo(ctx, stream)
	if missing, ok := errors.AsType[*publish.APIError](err); ok && missing.NotFound() {
		return publish.Tail{}, fmt.Errorf("stream %q does not exist: make it first, such as with walrelay migrate --stream %s (%w)", stream, stream, err)
	}
	tail, err := publish.New(conn, publish.Config{Stream: stream, Source: cfg.Source, Logger: nats.Logger}).Tail(ctx)
	if err != nil {
		return tail, fmt.Errorf("read the end of stream %q: %w", stream, err)
	}
	return tail, nil
}
